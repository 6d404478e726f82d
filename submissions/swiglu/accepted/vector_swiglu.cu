// SwiGLU with 16 bytes of gates and of up for each thread, where a row's halves are aligned, and one
// element otherwise.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

template <typename T, int V> struct alignas(sizeof(T) * V) Pack {
  T at[V];
};

template <typename T, int V>
__global__ void swiglu_packs(const T* x, T* out, int64_t rows, int64_t cols) {
  const int64_t packs = cols / V, total = rows * packs;
  const int64_t step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < total; i += step) {
    const int64_t row = i / packs, col = i % packs * V;
    const T* from = x + row * 2 * cols + col;
    const Pack<T, V> gate = *reinterpret_cast<const Pack<T, V>*>(from);
    const Pack<T, V> up = *reinterpret_cast<const Pack<T, V>*>(from + cols);
    Pack<T, V> result;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const float g = float(gate.at[j]);
      // Not __fdividef, which gives 0 for a divisor above 2^126.
      result.at[j] = T(g / (1.0f + __expf(-g)) * float(up.at[j]));
    }
    *reinterpret_cast<Pack<T, V>*>(out + row * cols + col) = result;
  }
}

template <typename T> void launch(const T* x, T* out, int64_t rows, int64_t cols,
                                  cudaStream_t stream) {
  constexpr int kPack = 16 / sizeof(T);
  const bool aligned = cols % kPack == 0 && reinterpret_cast<uintptr_t>(x) % 16 == 0 &&
                       reinterpret_cast<uintptr_t>(out) % 16 == 0;
  const int64_t total = rows * (aligned ? cols / kPack : cols), needed = (total + 255) / 256;
  const unsigned blocks = unsigned(needed < 1 << 20 ? needed : 1 << 20);
  if (aligned)
    swiglu_packs<T, kPack><<<blocks, 256, 0, stream>>>(x, out, rows, cols);
  else
    swiglu_packs<T, 1><<<blocks, 256, 0, stream>>>(x, out, rows, cols);
}

extern "C" void swiglu(const float* x, float* out, int64_t rows, int64_t cols,
                       cudaStream_t stream) {
  launch(x, out, rows, cols, stream);
}

extern "C" void swiglu_bf16(const __nv_bfloat16* x, __nv_bfloat16* out, int64_t rows, int64_t cols,
                            cudaStream_t stream) {
  launch(x, out, rows, cols, stream);
}

extern "C" void swiglu_fp16(const __half* x, __half* out, int64_t rows, int64_t cols,
                            cudaStream_t stream) {
  launch(x, out, rows, cols, stream);
}
