// Transpose in CUDA C++ through a tile of 32×32 in shared memory, padded against bank conflicts.

#include <cuda_bf16.h>
#include <stdint.h>

constexpr int kTile = 32;
constexpr int kRows = 8;

template <typename T>
__global__ void transpose_tiles(const T* x, T* out, int64_t rows, int64_t cols, int64_t across) {
  __shared__ T tile[kTile][kTile + 1];
  const int64_t first_row = blockIdx.x / across * kTile, first_col = blockIdx.x % across * kTile;
  for (int i = threadIdx.y; i < kTile; i += kRows) {
    const int64_t row = first_row + i, col = first_col + threadIdx.x;
    if (row < rows && col < cols) tile[i][threadIdx.x] = x[row * cols + col];
  }
  __syncthreads();
  for (int i = threadIdx.y; i < kTile; i += kRows) {
    const int64_t row = first_row + threadIdx.x, col = first_col + i;
    if (row < rows && col < cols) out[col * rows + row] = tile[threadIdx.x][i];
  }
}

template <typename T>
void launch(const T* x, T* out, int64_t rows, int64_t cols, cudaStream_t stream) {
  const int64_t across = (cols + kTile - 1) / kTile, down = (rows + kTile - 1) / kTile;
  const dim3 block(kTile, kRows);
  transpose_tiles<<<unsigned(across * down), block, 0, stream>>>(x, out, rows, cols, across);
}

extern "C" void transpose(const float* x, float* out, int64_t rows, int64_t cols,
                          cudaStream_t stream) {
  launch(x, out, rows, cols, stream);
}

extern "C" void transpose_bf16(const __nv_bfloat16* x, __nv_bfloat16* out, int64_t rows,
                               int64_t cols, cudaStream_t stream) {
  launch(x, out, rows, cols, stream);
}
