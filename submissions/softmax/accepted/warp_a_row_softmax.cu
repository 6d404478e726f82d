// Softmax with one warp a row: each lane sums every 32nd element, with the hardware's fast
// exponential and division, and shuffles add the lanes.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

template <typename T>
__global__ void softmax_rows(const T* x, T* out, int64_t rows, int64_t cols) {
  const int64_t row = int64_t(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= rows) return;
  x += row * cols;
  out += row * cols;
  float highest = -INFINITY;
  for (int64_t i = threadIdx.x; i < cols; i += 32) highest = fmaxf(highest, float(x[i]));
  for (int lane = 16; lane > 0; lane /= 2)
    highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, lane));
  float sum = 0.0f;
  for (int64_t i = threadIdx.x; i < cols; i += 32) sum += __expf(float(x[i]) - highest);
  for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lane);
  for (int64_t i = threadIdx.x; i < cols; i += 32)
    out[i] = T(__fdividef(__expf(float(x[i]) - highest), sum));
}

template <typename T>
void launch(const T* x, T* out, int64_t rows, int64_t cols, cudaStream_t stream) {
  const dim3 block(32, 4);
  const int64_t blocks = (rows + block.y - 1) / block.y;
  softmax_rows<<<unsigned(blocks), block, 0, stream>>>(x, out, rows, cols);
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
