// The chain with one block a row. The sum of both inputs is kept in shared memory, and read three
// times from there: for the mean, for the variance and for the result.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

constexpr int kThreads = 256;

// The sum over the block, in every thread. `partial` has one element per warp.
__device__ float block_sum(float value, float* partial) {
  for (int lane = 16; lane > 0; lane /= 2) value += __shfl_xor_sync(0xffffffffu, value, lane);
  __syncthreads();  // the last sum has been read
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  float total = 0.0f;
  for (int warp = 0; warp < kThreads / 32; ++warp) total += partial[warp];
  return total;
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    chain_row(const T* x, const T* residual, const T* weight, const T* bias, T* out, float eps,
              int64_t cols) {
  extern __shared__ float sums[];
  __shared__ float partial[kThreads / 32];
  const int64_t start = blockIdx.x * cols;
  float mine = 0.0f;
  for (int64_t i = threadIdx.x; i < cols; i += kThreads) {
    sums[i] = float(x[start + i]) + float(residual[start + i]);
    mine += sums[i];
  }
  const float mean = block_sum(mine, partial) / float(cols);
  mine = 0.0f;
  for (int64_t i = threadIdx.x; i < cols; i += kThreads)
    mine += (sums[i] - mean) * (sums[i] - mean);
  const float root = rsqrtf(block_sum(mine, partial) / float(cols) + eps);
  for (int64_t i = threadIdx.x; i < cols; i += kThreads) {
    const float normal = (sums[i] - mean) * root * float(weight[i]) + float(bias[i]);
    out[start + i] = T(0.5f * normal * (1.0f + erff(normal * 0.70710678f)));
  }
}

template <typename T>
void launch(const T* x, const T* residual, const T* weight, const T* bias, T* out, double eps,
            int64_t rows, int64_t cols, cudaStream_t stream) {
  const int bytes = int(cols * sizeof(float));
  cudaFuncSetAttribute(chain_row<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  chain_row<T><<<unsigned(rows), kThreads, bytes, stream>>>(x, residual, weight, bias, out,
                                                            float(eps), cols);
}

extern "C" void add_layer_norm_gelu(const float* x, const float* residual, const float* weight,
                                    const float* bias, float* out, double eps, int64_t rows,
                                    int64_t cols, cudaStream_t stream) {
  launch(x, residual, weight, bias, out, eps, rows, cols, stream);
}

extern "C" void add_layer_norm_gelu_bf16(const __nv_bfloat16* x, const __nv_bfloat16* residual,
                                         const __nv_bfloat16* weight, const __nv_bfloat16* bias,
                                         __nv_bfloat16* out, double eps, int64_t rows,
                                         int64_t cols, cudaStream_t stream) {
  launch(x, residual, weight, bias, out, eps, rows, cols, stream);
}

extern "C" void add_layer_norm_gelu_fp16(const __half* x, const __half* residual,
                                         const __half* weight, const __half* bias, __half* out,
                                         double eps, int64_t rows, int64_t cols,
                                         cudaStream_t stream) {
  launch(x, residual, weight, bias, out, eps, rows, cols, stream);
}
