// Grouped matmul in CUDA C++: a block finds its group, then computes a tile of 64x64 on tensor
// cores (WMMA), where any size is padded by zeros in shared memory.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>
#include <stdint.h>

namespace {

constexpr int kTile = 64, kDepth = 32, kThreads = 128;
constexpr int kPad = 8;  // elements after each row in shared memory, against bank conflicts

template <typename T>
__global__ void __launch_bounds__(kThreads) tiles(const T* x, const T* w, const int32_t* sizes,
                                                  T* out, int64_t k, int64_t experts, int64_t n) {
  using namespace nvcuda;
  __shared__ __align__(32) T a_tile[kTile][kDepth + kPad];
  __shared__ __align__(32) T b_tile[kDepth][kTile + kPad];
  __shared__ __align__(32) float corner[kThreads / 32][16][16];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t col = int64_t(blockIdx.y) * kTile;

  // Tiles of this group and of those before it, and the group's first row.
  int64_t expert = 0, first = 0, before = 0;
  for (; expert < experts; ++expert) {
    const int64_t group_tiles = (sizes[expert] + kTile - 1) / kTile;
    if (before + group_tiles > blockIdx.x) break;
    before += group_tiles;
    first += sizes[expert];
  }
  if (expert == experts) return;  // all threads of the block
  const int64_t m = sizes[expert], row = (blockIdx.x - before) * kTile;
  const T* a = x + first * k;
  const T* b = w + expert * k * n;
  T* results = out + first * n;

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
      if (r < m && c < n) results[r * n + c] = T(corner[warp][i / 16][i % 16]);
    }
    __syncwarp();
  }
}

template <typename T>
void launch(const T* x, const T* w, const int32_t* sizes, T* out, int64_t tokens, int64_t k,
            int64_t experts, int64_t n, cudaStream_t stream) {
  // A partly empty tile for each expert; blocks without a tile end at once.
  const dim3 grid(unsigned(tokens / kTile + experts), unsigned((n + kTile - 1) / kTile));
  tiles<T><<<grid, kThreads, 0, stream>>>(x, w, sizes, out, k, experts, n);
}

}  // namespace

extern "C" void grouped_matmul(const __nv_bfloat16* x, const __nv_bfloat16* w,
                               const int32_t* sizes, __nv_bfloat16* out, int64_t tokens, int64_t k,
                               int64_t experts, int64_t n, cudaStream_t stream) {
  launch(x, w, sizes, out, tokens, k, experts, n, stream);
}

extern "C" void grouped_matmul_fp16(const __half* x, const __half* w, const int32_t* sizes,
                                    __half* out, int64_t tokens, int64_t k, int64_t experts,
                                    int64_t n, cudaStream_t stream) {
  launch(x, w, sizes, out, tokens, k, experts, n, stream);
}
