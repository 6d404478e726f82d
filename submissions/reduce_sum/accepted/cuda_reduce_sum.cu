// Row sums in CUDA C++ as courses have it: a block a row, partial sums in shared memory, and a tree.

#include <cuda_bf16.h>
#include <stdint.h>

constexpr int kThreads = 256;

template <typename T> __global__ void sum_rows(const T* x, float* out, int64_t cols) {
  __shared__ float sums[kThreads];
  x += int64_t(blockIdx.x) * cols;
  float sum = 0.0f;
  for (int64_t i = threadIdx.x; i < cols; i += kThreads) sum += float(x[i]);
  sums[threadIdx.x] = sum;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) out[blockIdx.x] = sums[0];
}

extern "C" void reduce_sum(const float* x, float* out, int64_t rows, int64_t cols,
                           cudaStream_t stream) {
  sum_rows<<<unsigned(rows), kThreads, 0, stream>>>(x, out, cols);
}

extern "C" void reduce_sum_bf16(const __nv_bfloat16* x, float* out, int64_t rows, int64_t cols,
                                cudaStream_t stream) {
  sum_rows<<<unsigned(rows), kThreads, 0, stream>>>(x, out, cols);
}
