// grade: device=cuda
// Launches a kernel that never ends; the call returns at once, its work never finishes.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

// The value that it waits for is never written. The load is volatile and from global memory, so
// that the compiler cannot remove the loop.
__global__ void endless(const volatile unsigned char* out) {
  while (*out != 7) {
  }
}

extern "C" void softmax(const float* x, float* out, int64_t rows, int64_t cols,
                        cudaStream_t stream) {
  endless<<<1, 1, 0, stream>>>(reinterpret_cast<unsigned char*>(out));
}

extern "C" void softmax_fp16(const __half* x, __half* out, int64_t rows, int64_t cols,
                             cudaStream_t stream) {
  endless<<<1, 1, 0, stream>>>(reinterpret_cast<unsigned char*>(out));
}

extern "C" void softmax_bf16(const __nv_bfloat16* x, __nv_bfloat16* out, int64_t rows,
                             int64_t cols, cudaStream_t stream) {
  endless<<<1, 1, 0, stream>>>(reinterpret_cast<unsigned char*>(out));
}
