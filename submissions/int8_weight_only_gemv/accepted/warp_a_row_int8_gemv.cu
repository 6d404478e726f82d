// Int8 matrix-vector product: one warp a row, and 16 weights a lane at a time where rows are
// aligned, one otherwise.

#include <cuda_fp16.h>
#include <stdint.h>

namespace {

constexpr int kWarps = 4;

__global__ void __launch_bounds__(32 * kWarps) rows(const __half* x, const int8_t* w,
                                                    const __half* scales, __half* out, int64_t k,
                                                    int64_t n) {
  const int64_t row = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (row >= n) return;
  const int8_t* codes = w + row * k;
  float sum = 0.0f;
  if (k % 16 == 0) {
    for (int64_t j = lane * 16; j < k; j += 32 * 16) {
      const int4 bits = *reinterpret_cast<const int4*>(codes + j);
      const int4 first = *reinterpret_cast<const int4*>(x + j);
      const int4 second = *reinterpret_cast<const int4*>(x + j + 8);
      const int8_t* code = reinterpret_cast<const int8_t*>(&bits);
      const __half* low = reinterpret_cast<const __half*>(&first);
      const __half* high = reinterpret_cast<const __half*>(&second);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        sum += float(code[i]) * __half2float(low[i]);
        sum += float(code[i + 8]) * __half2float(high[i]);
      }
    }
  } else {
    for (int64_t j = lane; j < k; j += 32) sum += float(codes[j]) * __half2float(x[j]);
  }
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
  if (lane == 0) out[row] = __float2half_rn(sum * __half2float(scales[row]));
}

}  // namespace

extern "C" void int8_weight_only_gemv(const __half* x, const int8_t* w, const __half* scales,
                                      __half* out, int64_t k, int64_t n, cudaStream_t stream) {
  rows<<<unsigned((n + kWarps - 1) / kWarps), 32 * kWarps, 0, stream>>>(x, w, scales, out, k, n);
}
