// Transpose in CUDA C++. Where rows and columns are multiples of 16 bytes, each thread turns a square
// of 16-byte rows (4×4 in fp32, 8×8 in bf16) within its registers: all loads and stores have 16 bytes,
// and a warp's lie side by side, 8 threads across and 4 down. Other shapes go through a tile in shared
// memory, whose rows are one element longer than the tile so that its columns lie in different banks.

#include <cuda_bf16.h>
#include <stdint.h>

namespace {

// With registers --------------------------------------------------------------------------------------

constexpr int kSide = 16;  // threads of a block, across and down
constexpr int kThreads = kSide * kSide;

template <typename T> struct alignas(16) Pack {
  T at[16 / sizeof(T)];
};

// `across` blocks lie side by side over the columns of x.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    turn_in_registers(const T* __restrict__ x, T* __restrict__ out, int64_t rows, int64_t cols,
                      int64_t across) {
  constexpr int kPack = 16 / sizeof(T);
  constexpr int kTile = kSide * kPack;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t block_down = blockIdx.x / across, block_across = blockIdx.x % across;
  const int64_t row = block_down * kTile + (warp / 2 * 4 + lane / 8) * kPack;
  const int64_t col = block_across * kTile + (warp % 2 * 8 + lane % 8) * kPack;
  if (row >= rows || col >= cols) return;  // else the whole square is inside

  Pack<T> from[kPack], to[kPack];
#pragma unroll
  for (int i = 0; i < kPack; ++i)
    from[i] = *reinterpret_cast<const Pack<T>*>(x + (row + i) * cols + col);
#pragma unroll
  for (int i = 0; i < kPack; ++i)
#pragma unroll
    for (int j = 0; j < kPack; ++j) to[j].at[i] = from[i].at[j];
#pragma unroll
  for (int j = 0; j < kPack; ++j)
    *reinterpret_cast<Pack<T>*>(out + (col + j) * rows + row) = to[j];
}

// With shared memory ----------------------------------------------------------------------------------

constexpr int kTile = 64;
constexpr int kDown = 8;  // warps of a block

template <typename T>
__global__ void __launch_bounds__(32 * kDown)
    turn_in_tile(const T* __restrict__ x, T* __restrict__ out, int64_t rows, int64_t cols,
                 int64_t across) {
  __shared__ T tile[kTile][kTile + 1];
  const int64_t first_row = blockIdx.x / across * kTile, first_col = blockIdx.x % across * kTile;
#pragma unroll
  for (int i = threadIdx.y; i < kTile; i += kDown)
#pragma unroll
    for (int j = threadIdx.x; j < kTile; j += 32)
      if (first_row + i < rows && first_col + j < cols)
        tile[i][j] = x[(first_row + i) * cols + first_col + j];
  __syncthreads();
#pragma unroll
  for (int j = threadIdx.y; j < kTile; j += kDown)
#pragma unroll
    for (int i = threadIdx.x; i < kTile; i += 32)
      if (first_row + i < rows && first_col + j < cols)
        out[(first_col + j) * rows + first_row + i] = tile[i][j];
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <typename T>
void launch(const T* x, T* out, int64_t rows, int64_t cols, cudaStream_t stream) {
  constexpr int kPack = 16 / sizeof(T);
  // The tensors themselves begin at multiples of 512 bytes.
  if (rows % kPack == 0 && cols % kPack == 0) {
    const int64_t across = ceil_div(cols, kSide * kPack), down = ceil_div(rows, kSide * kPack);
    turn_in_registers<<<unsigned(across * down), kThreads, 0, stream>>>(x, out, rows, cols, across);
  } else {
    const int64_t across = ceil_div(cols, kTile), down = ceil_div(rows, kTile);
    const dim3 block(32, kDown);
    turn_in_tile<<<unsigned(across * down), block, 0, stream>>>(x, out, rows, cols, across);
  }
}

}  // namespace

extern "C" void transpose(const float* x, float* out, int64_t rows, int64_t cols,
                          cudaStream_t stream) {
  launch(x, out, rows, cols, stream);
}

extern "C" void transpose_bf16(const __nv_bfloat16* x, __nv_bfloat16* out, int64_t rows,
                               int64_t cols, cudaStream_t stream) {
  launch(x, out, rows, cols, stream);
}
