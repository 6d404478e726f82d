// AdamW in CUDA C++: one launch per few hundred tensors. Addresses, lengths and first chunks are
// passed by value as kernel arguments, so no host memory has to outlive the call and the launches
// can be captured into a CUDA graph. A block finds its tensor by binary search.

#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>

namespace {

// Kernel arguments may take 32764 bytes since CUDA 12.1, and 4096 before.
#if CUDART_VERSION >= 12010
constexpr int kTensors = 720;
#else
constexpr int kTensors = 88;
#endif
constexpr int kThreads = 256;
constexpr int kChunk = 4096;
constexpr int kStride = kThreads * 4;

struct Tensors {
  float* param[kTensors];
  const float* grad[kTensors];
  float* mean[kTensors];
  float* square[kTensors];
  int64_t length[kTensors];
  int first_chunk[kTensors];
  int count;
};

struct Step {
  float decay, rate, beta1, beta2, rest1, rest2, root, eps;
};

static_assert(sizeof(Tensors) + sizeof(Step) <= (kTensors > 88 ? 32764 : 4096), "too large");

__device__ void update(float& param, float grad, float& mean, float& square, const Step& step) {
  mean = step.beta1 * mean + step.rest1 * grad;
  square = step.beta2 * square + step.rest2 * grad * grad;
  param = param * step.decay - step.rate * mean / (sqrtf(square) * step.root + step.eps);
}

__device__ void update(float4& param, const float4& grad, float4& mean, float4& square,
                       const Step& step) {
  update(param.x, grad.x, mean.x, square.x, step);
  update(param.y, grad.y, mean.y, square.y, step);
  update(param.z, grad.z, mean.z, square.z, step);
  update(param.w, grad.w, mean.w, square.w, step);
}

// The last tensor that starts at or before this chunk. An empty tensor has the same start as the
// next one, so the last is the one with elements.
__device__ int owner_of(const Tensors& tensors, int chunk) {
  int low = 0, high = tensors.count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (tensors.first_chunk[middle] <= chunk)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

__device__ bool aligned(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % 16 == 0;
}

__global__ void __launch_bounds__(kThreads)
    adamw(const __grid_constant__ Tensors tensors, const __grid_constant__ Step step) {
  const int owner = owner_of(tensors, blockIdx.x);
  const int64_t first = int64_t(blockIdx.x - tensors.first_chunk[owner]) * kChunk;
  const int64_t length = tensors.length[owner] - first;
  float* param = tensors.param[owner] + first;
  const float* grad = tensors.grad[owner] + first;
  float* mean = tensors.mean[owner] + first;
  float* square = tensors.square[owner] + first;

  if (length >= kChunk && aligned(param) && aligned(grad) && aligned(mean) && aligned(square)) {
    float4 p[kChunk / kStride], g[kChunk / kStride], m[kChunk / kStride], v[kChunk / kStride];
#pragma unroll
    for (int i = 0; i < kChunk / kStride; ++i) {
      const int at = i * kThreads + threadIdx.x;
      p[i] = reinterpret_cast<const float4*>(param)[at];
      g[i] = reinterpret_cast<const float4*>(grad)[at];
      m[i] = reinterpret_cast<const float4*>(mean)[at];
      v[i] = reinterpret_cast<const float4*>(square)[at];
    }
#pragma unroll
    for (int i = 0; i < kChunk / kStride; ++i) {
      const int at = i * kThreads + threadIdx.x;
      update(p[i], g[i], m[i], v[i], step);
      reinterpret_cast<float4*>(param)[at] = p[i];
      reinterpret_cast<float4*>(mean)[at] = m[i];
      reinterpret_cast<float4*>(square)[at] = v[i];
    }
    return;
  }
  for (int at = threadIdx.x; at < kChunk && at < length; at += kThreads)
    update(param[at], grad[at], mean[at], square[at], step);
}

}  // namespace

extern "C" void multi_tensor_adamw(
    float* const* params, const int64_t* params_lengths, int64_t params_count,
    const float* const* grads, const int64_t* grads_lengths, int64_t grads_count,
    float* const* exp_avgs, const int64_t* exp_avgs_lengths, int64_t exp_avgs_count,
    float* const* exp_avg_sqs, const int64_t* exp_avg_sqs_lengths, int64_t exp_avg_sqs_count,
    double lr, double beta1, double beta2, double eps, double weight_decay, int64_t step,
    cudaStream_t stream) {
  const Step scalars = {
      float(1 - lr * weight_decay),
      float(lr / (1 - pow(beta1, double(step)))),
      float(beta1),
      float(beta2),
      float(1 - beta1),
      float(1 - beta2),
      float(1 / sqrt(1 - pow(beta2, double(step)))),
      float(eps),
  };
  for (int64_t start = 0; start < params_count; start += kTensors) {
    Tensors tensors;
    tensors.count = int(params_count - start < kTensors ? params_count - start : kTensors);
    int chunks = 0;
    for (int i = 0; i < tensors.count; ++i) {
      tensors.param[i] = params[start + i];
      tensors.grad[i] = grads[start + i];
      tensors.mean[i] = exp_avgs[start + i];
      tensors.square[i] = exp_avg_sqs[start + i];
      tensors.length[i] = params_lengths[start + i];
      tensors.first_chunk[i] = chunks;
      chunks += int((tensors.length[i] + kChunk - 1) / kChunk);
    }
    if (chunks > 0) adamw<<<chunks, kThreads, 0, stream>>>(tensors, scalars);
  }
}
