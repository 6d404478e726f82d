// RMSNorm with one warp a row: each lane sums every 32nd square, and shuffles add the lanes.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

template <typename T>
__global__ void normalize_rows(const T* x, const T* weight, T* out, float eps, int64_t rows,
                               int64_t cols) {
  const int64_t row = int64_t(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= rows) return;
  x += row * cols;
  out += row * cols;
  float sum = 0.0f;
  for (int64_t i = threadIdx.x; i < cols; i += 32) sum += float(x[i]) * float(x[i]);
  for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lane);
  const float root = rsqrtf(sum / float(cols) + eps);
  for (int64_t i = threadIdx.x; i < cols; i += 32)
    out[i] = T(float(x[i]) * root * float(weight[i]));
}

template <typename T>
void launch(const T* x, const T* weight, T* out, double eps, int64_t rows, int64_t cols,
            cudaStream_t stream) {
  const dim3 block(32, 4);
  const int64_t blocks = (rows + block.y - 1) / block.y;
  normalize_rows<<<unsigned(blocks), block, 0, stream>>>(x, weight, out, float(eps), rows, cols);
}

extern "C" void rms_norm(const float* x, const float* weight, float* out, double eps, int64_t rows,
                         int64_t cols, cudaStream_t stream) {
  launch(x, weight, out, eps, rows, cols, stream);
}

extern "C" void rms_norm_bf16(const __nv_bfloat16* x, const __nv_bfloat16* weight,
                              __nv_bfloat16* out, double eps, int64_t rows, int64_t cols,
                              cudaStream_t stream) {
  launch(x, weight, out, eps, rows, cols, stream);
}

extern "C" void rms_norm_fp16(const __half* x, const __half* weight, __half* out, double eps,
                              int64_t rows, int64_t cols, cudaStream_t stream) {
  launch(x, weight, out, eps, rows, cols, stream);
}
