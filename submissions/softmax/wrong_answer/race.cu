// grade: device=cuda
// Softmax whose threads add to a shared sum without atomics: a race that loses most terms.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

template <typename T> __global__ void racing_rows(const T* x, T* out, int64_t cols) {
  __shared__ volatile float sum;
  x += blockIdx.x * cols;
  out += blockIdx.x * cols;
  float highest = __int_as_float(0xff800000);
  for (int64_t c = 0; c < cols; ++c) highest = fmaxf(highest, float(x[c]));
  if (threadIdx.x == 0) sum = 0.0f;
  __syncthreads();
  for (int64_t c = threadIdx.x; c < cols; c += blockDim.x)
    sum = sum + expf(float(x[c]) - highest);
  __syncthreads();
  for (int64_t c = threadIdx.x; c < cols; c += blockDim.x)
    out[c] = T(expf(float(x[c]) - highest) / sum);
}

extern "C" void softmax(const float* x, float* out, int64_t rows, int64_t cols,
                        cudaStream_t stream) {
  racing_rows<<<unsigned(rows), 256, 0, stream>>>(x, out, cols);
}

extern "C" void softmax_fp16(const __half* x, __half* out, int64_t rows, int64_t cols,
                             cudaStream_t stream) {
  racing_rows<<<unsigned(rows), 256, 0, stream>>>(x, out, cols);
}

extern "C" void softmax_bf16(const __nv_bfloat16* x, __nv_bfloat16* out, int64_t rows,
                             int64_t cols, cudaStream_t stream) {
  racing_rows<<<unsigned(rows), 256, 0, stream>>>(x, out, cols);
}
