// Int4 matmul with zero points: a thread has the two columns of a byte and up to four rows. The
// warps of a block take groups of k in turn, and add up in shared memory.

#include <cuda_fp16.h>
#include <stdint.h>

namespace {

constexpr int kGroup = 128, kRows = 4, kWarps = 8;

__global__ void __launch_bounds__(32 * kWarps) columns(const __half* a, const uint8_t* b,
                                                       const __half* scales, const uint8_t* zeros,
                                                       __half* out, int64_t m, int64_t k,
                                                       int64_t n) {
  __shared__ float2 parts[kWarps][kRows][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t byte = int64_t(blockIdx.x) * 32 + lane, row_bytes = n / 2;
  const int64_t row = int64_t(blockIdx.y) * kRows;
  const int rows = int(m - row < kRows ? m - row : kRows);
  float2 total[kRows] = {};

  if (byte < row_bytes) {
    for (int64_t group = warp; group < k / kGroup; group += kWarps) {
      const int zero = zeros[group * row_bytes + byte];
      const float low_zero = float(zero & 0xF), high_zero = float(zero >> 4);
      float2 sum[kRows] = {};
      for (int64_t l = group * kGroup; l < (group + 1) * kGroup; ++l) {
        const int bits = b[l * row_bytes + byte];
        const float low = float(bits & 0xF) - low_zero, high = float(bits >> 4) - high_zero;
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          if (r >= rows) break;
          const float x = __half2float(a[(row + r) * k + l]);
          sum[r].x += x * low;
          sum[r].y += x * high;
        }
      }
      const float low_scale = __half2float(scales[group * n + 2 * byte]);
      const float high_scale = __half2float(scales[group * n + 2 * byte + 1]);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        total[r].x += sum[r].x * low_scale;
        total[r].y += sum[r].y * high_scale;
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) parts[warp][r][lane] = total[r];
  __syncthreads();
  if (warp < rows && byte < row_bytes) {
    float2 sum = {};
    for (int w = 0; w < kWarps; ++w) {
      sum.x += parts[w][warp][lane].x;
      sum.y += parts[w][warp][lane].y;
    }
    out[(row + warp) * n + 2 * byte] = __float2half_rn(sum.x);
    out[(row + warp) * n + 2 * byte + 1] = __float2half_rn(sum.y);
  }
}

}  // namespace

extern "C" void int4_matmul_zeros(const __half* a, const uint8_t* b_packed, const __half* scales,
                                  const uint8_t* zeros_packed, __half* out, int64_t m, int64_t k,
                                  int64_t n, cudaStream_t stream) {
  const dim3 grid(unsigned((n / 2 + 31) / 32), unsigned((m + kRows - 1) / kRows));
  columns<<<grid, 32 * kWarps, 0, stream>>>(a, b_packed, scales, zeros_packed, out, m, k, n);
}
