// LayerNorm with one warp a row: each lane updates a mean and a sum of squared deviations by Welford,
// and shuffles merge the lanes by Chan's formula.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

struct Statistics {
  float count, mean, spread;
};

__device__ Statistics merged(const Statistics& a, const Statistics& b) {
  const float count = a.count + b.count;
  if (count == 0.0f) return a;
  const float away = b.mean - a.mean, share = b.count / count;
  return {count, a.mean + away * share, a.spread + b.spread + away * away * a.count * share};
}

template <typename T>
__global__ void normalize_rows(const T* x, const T* weight, const T* bias, T* out, float eps,
                               int64_t rows, int64_t cols) {
  const int64_t row = int64_t(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= rows) return;
  x += row * cols;
  out += row * cols;
  Statistics mine = {0.0f, 0.0f, 0.0f};
  for (int64_t i = threadIdx.x; i < cols; i += 32) {
    const float away = float(x[i]) - mine.mean;
    mine.count += 1.0f;
    mine.mean += away / mine.count;
    mine.spread += away * (float(x[i]) - mine.mean);
  }
  for (int lane = 16; lane > 0; lane /= 2) {
    const Statistics other = {__shfl_down_sync(0xffffffffu, mine.count, lane),
                              __shfl_down_sync(0xffffffffu, mine.mean, lane),
                              __shfl_down_sync(0xffffffffu, mine.spread, lane)};
    mine = merged(mine, other);
  }
  const float mean = __shfl_sync(0xffffffffu, mine.mean, 0);
  const float spread = __shfl_sync(0xffffffffu, mine.spread, 0);
  const float root = rsqrtf(spread / float(cols) + eps);
  for (int64_t i = threadIdx.x; i < cols; i += 32)
    out[i] = T((float(x[i]) - mean) * root * float(weight[i]) + float(bias[i]));
}

template <typename T>
void launch(const T* x, const T* weight, const T* bias, T* out, double eps, int64_t rows,
            int64_t cols, cudaStream_t stream) {
  const dim3 block(32, 4);
  const int64_t blocks = (rows + block.y - 1) / block.y;
  normalize_rows<<<unsigned(blocks), block, 0, stream>>>(x, weight, bias, out, float(eps), rows,
                                                         cols);
}

extern "C" void layer_norm(const float* x, const float* weight, const float* bias, float* out,
                           double eps, int64_t rows, int64_t cols, cudaStream_t stream) {
  launch(x, weight, bias, out, eps, rows, cols, stream);
}

extern "C" void layer_norm_bf16(const __nv_bfloat16* x, const __nv_bfloat16* weight,
                                const __nv_bfloat16* bias, __nv_bfloat16* out, double eps,
                                int64_t rows, int64_t cols, cudaStream_t stream) {
  launch(x, weight, bias, out, eps, rows, cols, stream);
}

extern "C" void layer_norm_fp16(const __half* x, const __half* weight, const __half* bias,
                                __half* out, double eps, int64_t rows, int64_t cols,
                                cudaStream_t stream) {
  launch(x, weight, bias, out, eps, rows, cols, stream);
}
