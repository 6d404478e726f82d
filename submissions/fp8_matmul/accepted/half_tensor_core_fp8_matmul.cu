// Fp8 matmul in CUDA C++: codes become fp16, exactly, on their way into shared memory, and meet in
// tensor cores (WMMA) with fp32 sums. After each block of 128 the sums are scaled and added up.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <mma.h>
#include <stdint.h>

namespace {

constexpr int kTile = 64, kDepth = 32, kBlock = 128, kThreads = 128;
constexpr int kPad = 8;  // halves after each row in shared memory, against bank conflicts
constexpr int kOwned = kTile * kTile / kThreads;  // results of a thread

__device__ void load_tile(const __nv_fp8_e4m3* from, int64_t row, int64_t rows, int64_t start,
                          int64_t k, __half (&tile)[kTile][kDepth + kPad]) {
  for (int i = threadIdx.x; i < kTile * kDepth; i += kThreads) {
    const int r = i / kDepth, c = i % kDepth;
    tile[r][c] = row + r < rows ? __half(from[(row + r) * k + start + c]) : __half(0.0f);
  }
}

__global__ void __launch_bounds__(kThreads) tiles(const __nv_fp8_e4m3* a, const float* a_scales,
                                                  const __nv_fp8_e4m3* b, const float* b_scales,
                                                  __nv_bfloat16* out, int64_t m, int64_t k,
                                                  int64_t n) {
  using namespace nvcuda;
  __shared__ __align__(32) __half a_tile[kTile][kDepth + kPad];
  __shared__ __align__(32) __half b_tile[kTile][kDepth + kPad];
  __shared__ __align__(32) float products[kTile][kTile];
  const int warp = threadIdx.x / 32;
  const int64_t row = int64_t(blockIdx.x) * kTile, col = int64_t(blockIdx.y) * kTile;
  const int64_t blocks = k / kBlock;
  float total[kOwned] = {};

  for (int64_t block = 0; block < blocks; ++block) {
    // A warp has 16 rows and all columns of the tile.
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums[kTile / 16];
#pragma unroll
    for (auto& sum : sums) wmma::fill_fragment(sum, 0.0f);
    for (int step = 0; step < kBlock; step += kDepth) {
      load_tile(a, row, m, block * kBlock + step, k, a_tile);
      load_tile(b, col, n, block * kBlock + step, k, b_tile);
      __syncthreads();
#pragma unroll
      for (int depth = 0; depth < kDepth; depth += 16) {
        wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> left;
        wmma::load_matrix_sync(left, &a_tile[warp * 16][depth], kDepth + kPad);
#pragma unroll
        for (int j = 0; j < kTile / 16; ++j) {
          wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> right;
          wmma::load_matrix_sync(right, &b_tile[j * 16][depth], kDepth + kPad);
          wmma::mma_sync(sums[j], left, right, sums[j]);
        }
      }
      __syncthreads();
    }
#pragma unroll
    for (int j = 0; j < kTile / 16; ++j)
      wmma::store_matrix_sync(&products[warp * 16][j * 16], sums[j], kTile, wmma::mem_row_major);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kOwned; ++i) {
      const int at = i * kThreads + threadIdx.x, r = at / kTile, c = at % kTile;
      if (row + r < m && col + c < n)
        total[i] += products[r][c] * a_scales[(row + r) * blocks + block] *
                    b_scales[(col + c) / kBlock * blocks + block];
    }
    __syncthreads();
  }

#pragma unroll
  for (int i = 0; i < kOwned; ++i) {
    const int at = i * kThreads + threadIdx.x, r = at / kTile, c = at % kTile;
    if (row + r < m && col + c < n) out[(row + r) * n + col + c] = __float2bfloat16_rn(total[i]);
  }
}

}  // namespace

extern "C" void fp8_matmul(const __nv_fp8_e4m3* a, const float* a_scales, const __nv_fp8_e4m3* b,
                           const float* b_scales, __nv_bfloat16* out, int64_t m, int64_t k,
                           int64_t n, cudaStream_t stream) {
  const dim3 grid(unsigned((m + kTile - 1) / kTile), unsigned((n + kTile - 1) / kTile));
  tiles<<<grid, kThreads, 0, stream>>>(a, a_scales, b, b_scales, out, m, k, n);
}
