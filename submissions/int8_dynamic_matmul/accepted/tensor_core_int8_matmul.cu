// Int8 matmul in CUDA C++: tensor cores (WMMA) on tiles of 64x64, summed in int32.

#include <cuda_fp16.h>
#include <mma.h>
#include <stdint.h>

namespace {

constexpr int kTile = 64, kDepth = 64, kThreads = 128;
constexpr int kPad = 16;  // bytes after each row in shared memory, against bank conflicts

// kTile rows of kDepth codes, with zeros beyond the matrix.
__device__ void load_tile(const int8_t* from, int64_t row, int64_t rows, int64_t start, int64_t k,
                          signed char (&tile)[kTile][kDepth + kPad]) {
  for (int i = threadIdx.x; i < kTile * kDepth; i += kThreads) {
    const int r = i / kDepth, c = i % kDepth;
    const bool inside = row + r < rows && start + c < k;
    tile[r][c] = inside ? from[(row + r) * k + start + c] : 0;
  }
}

__global__ void __launch_bounds__(kThreads) tiles(const int8_t* a, const float* a_scales,
                                                  const int8_t* b, const float* b_scales,
                                                  __half* out, int64_t m, int64_t k, int64_t n) {
  using namespace nvcuda;
  __shared__ __align__(32) signed char a_tile[kTile][kDepth + kPad];
  __shared__ __align__(32) signed char b_tile[kTile][kDepth + kPad];
  __shared__ __align__(32) int corner[kThreads / 32][16][16];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t row = int64_t(blockIdx.x) * kTile, col = int64_t(blockIdx.y) * kTile;

  // A warp has 16 rows and all columns of the tile.
  wmma::fragment<wmma::accumulator, 16, 16, 16, int> sums[kTile / 16];
#pragma unroll
  for (auto& sum : sums) wmma::fill_fragment(sum, 0);

  for (int64_t start = 0; start < k; start += kDepth) {
    load_tile(a, row, m, start, k, a_tile);
    load_tile(b, col, n, start, k, b_tile);
    __syncthreads();
#pragma unroll
    for (int depth = 0; depth < kDepth; depth += 16) {
      wmma::fragment<wmma::matrix_a, 16, 16, 16, signed char, wmma::row_major> left;
      wmma::load_matrix_sync(left, &a_tile[warp * 16][depth], kDepth + kPad);
#pragma unroll
      for (int j = 0; j < kTile / 16; ++j) {
        wmma::fragment<wmma::matrix_b, 16, 16, 16, signed char, wmma::col_major> right;
        wmma::load_matrix_sync(right, &b_tile[j * 16][depth], kDepth + kPad);
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
      if (r < m && c < n)
        out[r * n + c] = __float2half_rn(float(corner[warp][i / 16][i % 16]) * a_scales[r] *
                                         b_scales[c]);
    }
    __syncwarp();
  }
}

}  // namespace

extern "C" void int8_dynamic_matmul(const int8_t* a, const float* a_scales, const int8_t* b,
                                    const float* b_scales, __half* out, int64_t m, int64_t k,
                                    int64_t n, cudaStream_t stream) {
  const dim3 grid(unsigned((m + kTile - 1) / kTile), unsigned((n + kTile - 1) / kTile));
  tiles<<<grid, kThreads, 0, stream>>>(a, a_scales, b, b_scales, out, m, k, n);
}
