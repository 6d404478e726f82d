// Uses a variable that is not declared: nvcc rejects it.

#include <stdint.h>

__global__ void rows_kernel(const float* x, float* out, int64_t cols) {
  out[blockIdx.x * cols] = undeclared_scale * x[blockIdx.x * cols];
}

extern "C" void softmax(const float* x, float* out, int64_t rows, int64_t cols,
                        cudaStream_t stream) {
  rows_kernel<<<unsigned(rows), 1, 0, stream>>>(x, out, cols);
}
