// Unscaling and norm in CUDA C++: one launch for up to 1500 tensors, whose addresses and lengths are
// passed by value as kernel arguments. Each block adds its sum of squares to one of 64 numbers; a last
// kernel adds these. The numbers are allocated and cleared on the stream in every call.

#include <cuda_runtime.h>
#include <stdint.h>

namespace {

// Kernel arguments may take 32764 bytes since CUDA 12.1, and 4096 before.
#if CUDART_VERSION >= 12010
constexpr int kTensors = 1500;
#else
constexpr int kTensors = 190;
#endif
constexpr int kThreads = 256;
constexpr int kChunk = 8192;
constexpr int kSums = 64;

struct Tensors {
  float* grad[kTensors];
  int64_t length[kTensors];
  int first_chunk[kTensors];
  int count;
};

static_assert(sizeof(Tensors) + 32 <= (kTensors > 190 ? 32764 : 4096), "too large");

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

__global__ void __launch_bounds__(kThreads)
    scale(const __grid_constant__ Tensors tensors, float inv_scale, float* sums) {
  const int owner = owner_of(tensors, blockIdx.x);
  const int64_t first = int64_t(blockIdx.x - tensors.first_chunk[owner]) * kChunk;
  const int64_t length = tensors.length[owner] - first;
  float* grad = tensors.grad[owner] + first;
  float mine = 0.0f;
  if (length >= kChunk && reinterpret_cast<uintptr_t>(grad) % 16 == 0) {
#pragma unroll 4
    for (int i = threadIdx.x; i < kChunk / 4; i += kThreads) {
      float4 g = reinterpret_cast<float4*>(grad)[i];
      g.x *= inv_scale, g.y *= inv_scale, g.z *= inv_scale, g.w *= inv_scale;
      reinterpret_cast<float4*>(grad)[i] = g;
      mine += (g.x * g.x + g.y * g.y) + (g.z * g.z + g.w * g.w);
    }
  } else {
    for (int i = threadIdx.x; i < kChunk && i < length; i += kThreads) {
      grad[i] *= inv_scale;
      mine += grad[i] * grad[i];
    }
  }
  for (int lane = 16; lane > 0; lane /= 2) mine += __shfl_xor_sync(0xffffffffu, mine, lane);
  if (threadIdx.x % 32 == 0) atomicAdd(sums + blockIdx.x % kSums, mine);
}

__global__ void finish(const float* sums, float* norm, int32_t* overflow) {
  float total = sums[threadIdx.x] + sums[32 + threadIdx.x];
  for (int lane = 16; lane > 0; lane /= 2) total += __shfl_xor_sync(0xffffffffu, total, lane);
  if (threadIdx.x != 0) return;
  *norm = sqrtf(total);
  *overflow = isfinite(total) ? 0 : 1;
}

}  // namespace

extern "C" void multi_tensor_scale_norm(float* const* grads, const int64_t* grads_lengths,
                                        int64_t grads_count, double inv_scale, float* norm,
                                        int32_t* overflow, cudaStream_t stream) {
  float* sums = nullptr;
  cudaMallocAsync(&sums, kSums * sizeof(float), stream);
  cudaMemsetAsync(sums, 0, kSums * sizeof(float), stream);
  for (int64_t start = 0; start < grads_count; start += kTensors) {
    Tensors tensors;
    tensors.count = int(grads_count - start < kTensors ? grads_count - start : kTensors);
    int chunks = 0;
    for (int i = 0; i < tensors.count; ++i) {
      tensors.grad[i] = grads[start + i];
      tensors.length[i] = grads_lengths[start + i];
      tensors.first_chunk[i] = chunks;
      chunks += int((tensors.length[i] + kChunk - 1) / kChunk);
    }
    if (chunks > 0) scale<<<chunks, kThreads, 0, stream>>>(tensors, float(inv_scale), sums);
  }
  finish<<<1, 32, 0, stream>>>(sums, norm, overflow);
  cudaFreeAsync(sums, stream);
}
