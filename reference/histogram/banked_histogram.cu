// Histogram in CUDA C++. Each block counts in shared memory, in up to 32 interleaved copies: the
// counter of a bin in copy c lies in bank c (mod 32), and each lane of a warp has a copy of its own
// where they fit. So the lanes of a warp neither share a counter nor a bank, whether all numbers
// fall into one bin or into all. At the end the copies are added up, once for each block.

#include <cuda_runtime.h>
#include <stdint.h>

namespace {

constexpr int kThreads = 1024;
constexpr int kLoads = 4;                // float4 loads of a thread before the first is used
constexpr int kMostCounters = 32 << 10;  // of a block: 128 KiB
constexpr int kBlocksPerSM = 2;

__device__ void count(int* counters, float x, float scale, int last, int copies, int copy) {
  const int bin = min(int(x * scale), last);  // 0 for negative zero
  atomicAdd(counters + bin * copies + copy, 1);
}

__global__ void __launch_bounds__(kThreads)
    histogram_blocks(const float* __restrict__ x, int* __restrict__ out, int64_t n, int bins,
                     int copies) {
  extern __shared__ int counters[];  // [bins][copies]
  for (int i = threadIdx.x; i < bins * copies; i += kThreads) counters[i] = 0;
  __syncthreads();

  const float scale = float(bins);
  const int last = bins - 1, copy = threadIdx.x % copies;
  const int64_t packs = n / 4, step = int64_t(gridDim.x) * kThreads;
  const int64_t first = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  const float4* const pack_at = reinterpret_cast<const float4*>(x);
  int64_t i = first;
  for (; i + (kLoads - 1) * step < packs; i += kLoads * step) {
    float4 pack[kLoads];
#pragma unroll
    for (int j = 0; j < kLoads; ++j) pack[j] = __ldcs(pack_at + i + j * step);
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      count(counters, pack[j].x, scale, last, copies, copy);
      count(counters, pack[j].y, scale, last, copies, copy);
      count(counters, pack[j].z, scale, last, copies, copy);
      count(counters, pack[j].w, scale, last, copies, copy);
    }
  }
  for (; i < packs; i += step) {
    const float4 pack = pack_at[i];
    count(counters, pack.x, scale, last, copies, copy);
    count(counters, pack.y, scale, last, copies, copy);
    count(counters, pack.z, scale, last, copies, copy);
    count(counters, pack.w, scale, last, copies, copy);
  }
  if (first < n - packs * 4) count(counters, x[packs * 4 + first], scale, last, copies, copy);
  __syncthreads();

  for (int bin = threadIdx.x; bin < bins; bin += kThreads) {
    int total = 0;
    // Beginning at another copy in each lane, so that a warp reads 32 different banks.
    for (int c = 0; c < copies; ++c) total += counters[bin * copies + (c + bin) % copies];
    if (total > 0) atomicAdd(out + bin, total);
  }
}

}  // namespace

extern "C" void histogram(const float* x, int32_t* out, int64_t n, int64_t bins,
                          cudaStream_t stream) {
  static int processors = 0;
  if (processors == 0) {
    int device;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    cudaFuncSetAttribute(histogram_blocks, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         kMostCounters * int(sizeof(int)));
  }
  int copies = 32;
  while (copies * bins > kMostCounters) copies /= 2;
  const int64_t wanted = (n / 4 + kThreads - 1) / kThreads;
  const int64_t most = int64_t(processors) * kBlocksPerSM;
  const int64_t blocks = wanted < 1 ? 1 : wanted < most ? wanted : most;
  cudaMemsetAsync(out, 0, bins * sizeof(int32_t), stream);
  histogram_blocks<<<unsigned(blocks), kThreads, bins * copies * sizeof(int), stream>>>(
      x, out, n, int(bins), copies);
}
