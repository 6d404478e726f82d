// Int4 matmul with one thread an output: k in sequence, each weight unpacked where it is used.

#include <cuda_fp16.h>
#include <stdint.h>

constexpr int64_t kGroup = 128;

__global__ void multiply(const __half* a, const uint8_t* b, const __half* scales, __half* out,
                         int64_t m, int64_t n, int64_t k) {
  const int64_t col = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t row = int64_t(blockIdx.y) * blockDim.y + threadIdx.y;
  if (row >= m || col >= n) return;
  float sum = 0.0f;
  for (int64_t i = 0; i < k; ++i) {
    const uint8_t pair = b[i * (n / 2) + col / 2];
    const int code = (col % 2 ? pair >> 4 : pair & 0xF) - 8;
    sum += __half2float(a[row * k + i]) * (code * __half2float(scales[i / kGroup * n + col]));
  }
  out[row * n + col] = __float2half_rn(sum);
}

extern "C" void int4_matmul(const __half* a, const uint8_t* b_packed, const __half* scales,
                            __half* out, int64_t m, int64_t k, int64_t n, cudaStream_t stream) {
  const dim3 block(128, 4);
  const dim3 grid(unsigned((n + block.x - 1) / block.x), unsigned((m + block.y - 1) / block.y));
  multiply<<<grid, block, 0, stream>>>(a, b_packed, scales, out, m, n, k);
}
