// GELU in CUDA C++ as the textbook has it, with tanhf: one thread an element.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

template <typename T> __global__ void gelu_all(const T* x, T* out, int64_t n) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float v = float(x[i]);
  const float inner = 0.7978845608f * (v + 0.044715f * v * v * v);
  out[i] = T(0.5f * v * (1.0f + tanhf(inner)));
}

template <typename T> void launch(const T* x, T* out, int64_t n, cudaStream_t stream) {
  const int threads = 256;
  gelu_all<<<unsigned((n + threads - 1) / threads), threads, 0, stream>>>(x, out, n);
}

extern "C" void gelu(const float* x, float* out, int64_t n, cudaStream_t stream) {
  launch(x, out, n, stream);
}

extern "C" void gelu_fp16(const __half* x, __half* out, int64_t n, cudaStream_t stream) {
  launch(x, out, n, stream);
}

extern "C" void gelu_bf16(const __nv_bfloat16* x, __nv_bfloat16* out, int64_t n,
                          cudaStream_t stream) {
  launch(x, out, n, stream);
}
