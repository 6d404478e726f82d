// The rotation with one block a token: the token's row of the tables is read once into shared memory,
// then each thread rotates pairs of any head.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

template <typename T>
__global__ void rotate_token(const T* x, const int64_t* positions, const float* cosines,
                             const float* sines, T* out, int64_t heads, int64_t half) {
  extern __shared__ float tables[];
  const int64_t row = positions[blockIdx.x] * half;
  for (int64_t i = threadIdx.x; i < half; i += blockDim.x) {
    tables[i] = cosines[row + i];
    tables[half + i] = sines[row + i];
  }
  __syncthreads();
  const int64_t first_of_token = int64_t(blockIdx.x) * heads * 2 * half;
  for (int64_t i = threadIdx.x; i < heads * half; i += blockDim.x) {
    const int64_t at = first_of_token + i / half * 2 * half + i % half;
    const float first = float(x[at]), second = float(x[at + half]);
    const float cos = tables[i % half], sin = tables[half + i % half];
    out[at] = T(first * cos - second * sin);
    out[at + half] = T(second * cos + first * sin);
  }
}

template <typename T>
void launch(const T* x, const int64_t* positions, const float* cosines, const float* sines, T* out,
            int64_t tokens, int64_t heads, int64_t head_dim, cudaStream_t stream) {
  const size_t bytes = size_t(head_dim) * sizeof(float);
  rotate_token<<<unsigned(tokens), 256, bytes, stream>>>(x, positions, cosines, sines, out, heads,
                                                         head_dim / 2);
}

extern "C" void rope(const float* x, const int64_t* positions, const float* cosines,
                     const float* sines, float* out, int64_t tokens, int64_t heads,
                     int64_t head_dim, int64_t max_positions, cudaStream_t stream) {
  launch(x, positions, cosines, sines, out, tokens, heads, head_dim, stream);
}

extern "C" void rope_bf16(const __nv_bfloat16* x, const int64_t* positions, const float* cosines,
                          const float* sines, __nv_bfloat16* out, int64_t tokens, int64_t heads,
                          int64_t head_dim, int64_t max_positions, cudaStream_t stream) {
  launch(x, positions, cosines, sines, out, tokens, heads, head_dim, stream);
}

extern "C" void rope_fp16(const __half* x, const int64_t* positions, const float* cosines,
                          const float* sines, __half* out, int64_t tokens, int64_t heads,
                          int64_t head_dim, int64_t max_positions, cudaStream_t stream) {
  launch(x, positions, cosines, sines, out, tokens, heads, head_dim, stream);
}
