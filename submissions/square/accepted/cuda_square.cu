// Square in CUDA C++: 16 bytes a load, whatever the dtype, and the matrix taken
// as one vector. The last few elements, which fill no 16 bytes, go one by one.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

constexpr int kThreads = 256;

template <typename T> struct alignas(16) Pack {
  T at[16 / sizeof(T)];
};

template <typename T> __device__ T squared(T v) { return T(float(v) * float(v)); }

template <typename T>
__global__ void square_all(const T* __restrict__ x, T* __restrict__ out, int64_t count) {
  constexpr int kPack = 16 / sizeof(T);
  const int64_t thread = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t threads = int64_t(gridDim.x) * kThreads;
  const int64_t packs = count / kPack;
  for (int64_t i = thread; i < packs; i += threads) {
    Pack<T> pack = reinterpret_cast<const Pack<T>*>(x)[i];
#pragma unroll
    for (int j = 0; j < kPack; ++j) pack.at[j] = squared(pack.at[j]);
    reinterpret_cast<Pack<T>*>(out)[i] = pack;
  }
  const int64_t left = packs * kPack + thread;
  if (left < count) out[left] = squared(x[left]);
}

template <typename T>
void launch(const T* x, T* out, int64_t rows, int64_t cols, cudaStream_t stream) {
  const int64_t count = rows * cols;
  const int64_t packs = count * int64_t(sizeof(T)) / 16 + 1;
  const int64_t blocks = (packs + kThreads - 1) / kThreads;
  square_all<<<unsigned(blocks), kThreads, 0, stream>>>(x, out, count);
}

extern "C" void square(const float* x, float* out, int64_t rows, int64_t cols,
                       cudaStream_t stream) {
  launch(x, out, rows, cols, stream);
}

extern "C" void square_fp16(const __half* x, __half* out, int64_t rows, int64_t cols,
                            cudaStream_t stream) {
  launch(x, out, rows, cols, stream);
}

extern "C" void square_bf16(const __nv_bfloat16* x, __nv_bfloat16* out, int64_t rows, int64_t cols,
                            cudaStream_t stream) {
  launch(x, out, rows, cols, stream);
}
