// The loss with one block a row: each thread keeps a maximum and a sum of its logits, rescaled when the
// maximum grows; then the threads' are merged, and a second pass writes the gradient.

#include <cuda_bf16.h>
#include <stdint.h>

constexpr int kThreads = 512;

struct Part {
  float highest, total;
};

__device__ Part merged(const Part& a, const Part& b) {
  const float highest = fmaxf(a.highest, b.highest);
  if (highest == -INFINITY) return a;  // both are of hidden classes only
  return {highest,
          a.total * __expf(a.highest - highest) + b.total * __expf(b.highest - highest)};
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    loss_row(const T* logits, const int64_t* labels, float scale, float* loss, T* grad,
             int64_t classes) {
  __shared__ Part parts[kThreads / 32];
  logits += blockIdx.x * classes;
  grad += blockIdx.x * classes;
  Part mine = {-INFINITY, 0.0f};
  for (int64_t i = threadIdx.x; i < classes; i += kThreads)
    mine = merged(mine, {float(logits[i]), 1.0f});
  for (int lane = 16; lane > 0; lane /= 2)
    mine = merged(mine, {__shfl_xor_sync(0xffffffffu, mine.highest, lane),
                         __shfl_xor_sync(0xffffffffu, mine.total, lane)});
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = mine;
  __syncthreads();
  Part row = parts[0];
  for (int warp = 1; warp < kThreads / 32; ++warp) row = merged(row, parts[warp]);
  const int64_t label = labels[blockIdx.x];
  if (threadIdx.x == 0)
    loss[blockIdx.x] = logf(row.total) + (row.highest - float(logits[label]));
  for (int64_t i = threadIdx.x; i < classes; i += kThreads) {
    const float probability = __expf(float(logits[i]) - row.highest) / row.total;
    grad[i] = T((probability - (i == label ? 1.0f : 0.0f)) * scale);
  }
}

extern "C" void softmax_cross_entropy(const float* logits, const int64_t* labels, double scale,
                                      float* loss, float* grad, int64_t rows, int64_t classes,
                                      cudaStream_t stream) {
  loss_row<<<unsigned(rows), kThreads, 0, stream>>>(logits, labels, float(scale), loss, grad,
                                                    classes);
}

extern "C" void softmax_cross_entropy_bf16(const __nv_bfloat16* logits, const int64_t* labels,
                                           double scale, float* loss, __nv_bfloat16* grad,
                                           int64_t rows, int64_t classes, cudaStream_t stream) {
  loss_row<<<unsigned(rows), kThreads, 0, stream>>>(logits, labels, float(scale), loss, grad,
                                                    classes);
}
