// SGD with momentum in CUDA C++: one launch for up to 900 tensors. Addresses, lengths and first chunks
// are passed by value as kernel arguments, so no host memory has to outlive the call and the launches
// can be captured into a CUDA graph. A block finds its tensor by binary search.

#include <cuda_runtime.h>
#include <stdint.h>

namespace {

// Kernel arguments may take 32764 bytes since CUDA 12.1, and 4096 before.
#if CUDART_VERSION >= 12010
constexpr int kTensors = 900;
#else
constexpr int kTensors = 112;
#endif
constexpr int kThreads = 256;
constexpr int kChunk = 4096;

struct Tensors {
  float* param[kTensors];
  const float* grad[kTensors];
  float* buffer[kTensors];
  int64_t length[kTensors];
  int first_chunk[kTensors];
  int count;
};

struct Scalars {
  float lr, momentum, decay;
  bool nesterov;
};

static_assert(sizeof(Tensors) + sizeof(Scalars) <= (kTensors > 112 ? 32764 : 4096), "too large");

__device__ void update(float& param, float grad, float& buffer, const Scalars& s) {
  const float slope = grad + s.decay * param;
  buffer = s.momentum * buffer + slope;
  param -= s.lr * (s.nesterov ? slope + s.momentum * buffer : buffer);
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
    sgd(const __grid_constant__ Tensors tensors, const __grid_constant__ Scalars scalars) {
  const int owner = owner_of(tensors, blockIdx.x);
  const int64_t first = int64_t(blockIdx.x - tensors.first_chunk[owner]) * kChunk;
  const int64_t length = tensors.length[owner] - first;
  float* param = tensors.param[owner] + first;
  const float* grad = tensors.grad[owner] + first;
  float* buffer = tensors.buffer[owner] + first;

  if (length >= kChunk && aligned(param) && aligned(grad) && aligned(buffer)) {
    constexpr int kPacks = kChunk / (kThreads * 4);
    float4 p[kPacks], g[kPacks], b[kPacks];
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int at = i * kThreads + threadIdx.x;
      p[i] = reinterpret_cast<const float4*>(param)[at];
      g[i] = reinterpret_cast<const float4*>(grad)[at];
      b[i] = reinterpret_cast<const float4*>(buffer)[at];
    }
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int at = i * kThreads + threadIdx.x;
      update(p[i].x, g[i].x, b[i].x, scalars);
      update(p[i].y, g[i].y, b[i].y, scalars);
      update(p[i].z, g[i].z, b[i].z, scalars);
      update(p[i].w, g[i].w, b[i].w, scalars);
      reinterpret_cast<float4*>(param)[at] = p[i];
      reinterpret_cast<float4*>(buffer)[at] = b[i];
    }
    return;
  }
  for (int at = threadIdx.x; at < kChunk && at < length; at += kThreads)
    update(param[at], grad[at], buffer[at], scalars);
}

}  // namespace

extern "C" void multi_tensor_sgd_momentum(
    float* const* params, const int64_t* params_lengths, int64_t params_count,
    const float* const* grads, const int64_t* grads_lengths, int64_t grads_count,
    float* const* buffers, const int64_t* buffers_lengths, int64_t buffers_count, double lr,
    double momentum, double weight_decay, bool nesterov, cudaStream_t stream) {
  const Scalars scalars = {float(lr), float(momentum), float(weight_decay), nesterov};
  for (int64_t start = 0; start < params_count; start += kTensors) {
    Tensors tensors;
    tensors.count = int(params_count - start < kTensors ? params_count - start : kTensors);
    int chunks = 0;
    for (int i = 0; i < tensors.count; ++i) {
      tensors.param[i] = params[start + i];
      tensors.grad[i] = grads[start + i];
      tensors.buffer[i] = buffers[start + i];
      tensors.length[i] = params_lengths[start + i];
      tensors.first_chunk[i] = chunks;
      chunks += int((tensors.length[i] + kChunk - 1) / kChunk);
    }
    if (chunks > 0) sgd<<<chunks, kThreads, 0, stream>>>(tensors, scalars);
  }
}
