// Softmax with one thread a row: the first kernel of every course. Three passes over the row, and
// sums in sequence.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

template <typename T>
__global__ void softmax_rows(const T* x, T* out, int64_t rows, int64_t cols) {
  const int64_t row = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  x += row * cols;
  out += row * cols;
  float highest = -INFINITY;
  for (int64_t i = 0; i < cols; ++i) highest = fmaxf(highest, float(x[i]));
  float sum = 0.0f;
  for (int64_t i = 0; i < cols; ++i) sum += expf(float(x[i]) - highest);
  for (int64_t i = 0; i < cols; ++i) out[i] = T(expf(float(x[i]) - highest) / sum);
}

template <typename T>
void launch(const T* x, T* out, int64_t rows, int64_t cols, cudaStream_t stream) {
  const int threads = 32;
  const int64_t blocks = (rows + threads - 1) / threads;
  softmax_rows<<<unsigned(blocks), threads, 0, stream>>>(x, out, rows, cols);
}

extern "C" void softmax(const float* x, float* out, int64_t rows, int64_t cols,
                        cudaStream_t stream) {
  launch(x, out, rows, cols, stream);
}

extern "C" void softmax_fp16(const __half* x, __half* out, int64_t rows, int64_t cols,
                             cudaStream_t stream) {
  launch(x, out, rows, cols, stream);
}

extern "C" void softmax_bf16(const __nv_bfloat16* x, __nv_bfloat16* out, int64_t rows,
                             int64_t cols, cudaStream_t stream) {
  launch(x, out, rows, cols, stream);
}
