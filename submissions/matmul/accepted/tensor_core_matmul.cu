// Matmul in CUDA C++: tensor cores (WMMA) on tiles of 64x64 in shared memory, where any size is
// padded by zeros.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>
#include <stdint.h>

namespace {

constexpr int kTile = 64, kDepth = 32, kThreads = 128;
constexpr int kPad = 8;  // elements after each row in shared memory, against bank conflicts

template <typename T>
__global__ void __launch_bounds__(kThreads) tiles(const T* a, const T* b, T* out, int64_t m,
                                                  int64_t k, int64_t n) {
  using namespace nvcuda;
  __shared__ __align__(32) T a_tile[kTile][kDepth + kPad];
  __shared__ __align__(32) T b_tile[kDepth][kTile + kPad];
  __shared__ __align__(32) float corner[kThreads / 32][16][16];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t row = int64_t(blockIdx.x) * kTile, col = int64_t(blockIdx.y) * kTile;

  // A warp has 16 rows and all columns of the tile.
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums[kTile / 16];
#pragma unroll
  for (auto& sum : sums) wmma::fill_fragment(sum, 0.0f);

  for (int64_t start = 0; start < k; start += kDepth) {
    for (int i = threadIdx.x; i < kTile * kDepth; i += kThreads) {
      const int r = i / kDepth, c = i % kDepth;
      const bool inside = row + r < m && start + c < k;
      a_tile[r][c] = inside ? a[(row + r) * k + start + c] : T(0.0f);
    }
    for (int i = threadIdx.x; i < kDepth * kTile; i += kThreads) {
      const int r = i / kTile, c = i % kTile;
      const bool inside = start + r < k && col + c < n;
      b_tile[r][c] = inside ? b[(start + r) * n + col + c] : T(0.0f);
    }
    __syncthreads();
#pragma unroll
    for (int depth = 0; depth < kDepth; depth += 16) {
      wmma::fragment<wmma::matrix_a, 16, 16, 16, T, wmma::row_major> left;
      wmma::load_matrix_sync(left, &a_tile[warp * 16][depth], kDepth + kPad);
#pragma unroll
      for (int j = 0; j < kTile / 16; ++j) {
        wmma::fragment<wmma::matrix_b, 16, 16, 16, T, wmma::row_major> right;
        wmma::load_matrix_sync(right, &b_tile[depth][j * 16], kTile + kPad);
        wmma::mma_sync(sums[j], left, right, sums[j]);
      }
    }
    __syncthreads();
  }

#pragma unroll
  for (int j = 0; j < kTile / 16; ++j) {
    wmma::store_matrix_sync(&corner[warp][0][0], sums[j], 16, wmma::mem_row_major);
    __syncwarp();
    for (int i = lane; i < 256; i += 32) {
      const int64_t r = row + warp * 16 + i / 16, c = col + j * 16 + i % 16;
      if (r < m && c < n) out[r * n + c] = T(corner[warp][i / 16][i % 16]);
    }
    __syncwarp();
  }
}

template <typename T>
void launch(const T* a, const T* b, T* out, int64_t m, int64_t k, int64_t n, cudaStream_t stream) {
  const dim3 grid(unsigned((m + kTile - 1) / kTile), unsigned((n + kTile - 1) / kTile));
  tiles<T><<<grid, kThreads, 0, stream>>>(a, b, out, m, k, n);
}

}  // namespace

extern "C" void matmul(const __half* a, const __half* b, __half* out, int64_t m, int64_t k,
                       int64_t n, cudaStream_t stream) {
  launch(a, b, out, m, k, n, stream);
}

extern "C" void matmul_bf16(const __nv_bfloat16* a, const __nv_bfloat16* b, __nv_bfloat16* out,
                            int64_t m, int64_t k, int64_t n, cudaStream_t stream) {
  launch(a, b, out, m, k, n, stream);
}
