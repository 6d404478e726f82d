// Matmul with 2:4 sparse weights: a warp has one output column and up to eight rows. A lane reads a
// group of four weights as 8 bytes and multiplies the two that are kept.

#include <cuda_fp16.h>
#include <stdint.h>

namespace {

constexpr int kWarps = 4, kRows = 8;

__global__ void __launch_bounds__(32 * kWarps) columns(const __half* x, const __half* w,
                                                       __half* out, int64_t m, int64_t k,
                                                       int64_t n) {
  const int lane = threadIdx.x % 32;
  const int64_t col = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int64_t row = int64_t(blockIdx.y) * kRows;
  if (col >= n) return;
  const int rows = int(m - row < kRows ? m - row : kRows);
  float sum[kRows] = {};
  for (int64_t group = lane; group < k / 4; group += 32) {
    const uint2 bits = *reinterpret_cast<const uint2*>(w + col * k + 4 * group);
    const __half* weights = reinterpret_cast<const __half*>(&bits);
    int places[2] = {0, 0}, found = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (__half2float(weights[i]) != 0.0f && found < 2) places[found++] = i;
    for (int i = 0; i < found; ++i) {
      const float weight = __half2float(weights[places[i]]);
      const __half* at = x + row * k + 4 * group + places[i];
#pragma unroll
      for (int r = 0; r < kRows; ++r)
        if (r < rows) sum[r] += weight * __half2float(at[r * k]);
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    for (int offset = 16; offset > 0; offset /= 2)
      sum[r] += __shfl_xor_sync(~0u, sum[r], offset);
    if (lane == r && r < rows) out[(row + r) * n + col] = __float2half_rn(sum[r]);
  }
}

}  // namespace

extern "C" void sparse24_matmul(const __half* x, const __half* w, __half* out, int64_t m, int64_t k,
                                int64_t n, cudaStream_t stream) {
  const dim3 grid(unsigned((n + kWarps - 1) / kWarps), unsigned((m + kRows - 1) / kRows));
  columns<<<grid, 32 * kWarps, 0, stream>>>(x, w, out, m, k, n);
}
