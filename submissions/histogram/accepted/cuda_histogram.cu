// Histogram in CUDA C++: one histogram in shared memory for each block, and a grid that strides.

#include <stdint.h>

constexpr int kThreads = 256;
constexpr int kBlocks = 1024;

__global__ void histogram_blocks(const float* x, int32_t* out, int64_t n, int bins) {
  extern __shared__ int counters[];
  for (int i = threadIdx.x; i < bins; i += kThreads) counters[i] = 0;
  __syncthreads();
  const int64_t step = int64_t(gridDim.x) * kThreads;
  for (int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x; i < n; i += step)
    atomicAdd(counters + min(int(x[i] * float(bins)), bins - 1), 1);
  __syncthreads();
  for (int i = threadIdx.x; i < bins; i += kThreads)
    if (counters[i] > 0) atomicAdd(out + i, counters[i]);
}

extern "C" void histogram(const float* x, int32_t* out, int64_t n, int64_t bins,
                          cudaStream_t stream) {
  const int64_t wanted = (n + kThreads - 1) / kThreads;
  const unsigned blocks = unsigned(wanted < kBlocks ? wanted : kBlocks);
  cudaMemsetAsync(out, 0, bins * sizeof(int32_t), stream);
  histogram_blocks<<<blocks, kThreads, bins * sizeof(int), stream>>>(x, out, n, int(bins));
}
