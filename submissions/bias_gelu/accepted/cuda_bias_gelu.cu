// Bias and GELU in CUDA C++: a thread owns a column, keeps its bias, and goes down some rows.
// Neighbouring threads have neighbouring columns, so every load of a warp is one piece of memory.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

constexpr int kColumns = 256;
constexpr int kRows = 16;

template <typename T>
__global__ void bias_gelu_columns(const T* __restrict__ x, const T* __restrict__ bias,
                                  T* __restrict__ out, int64_t rows, int64_t cols) {
  const int64_t across = (cols + kColumns - 1) / kColumns;
  const int64_t col = blockIdx.x % across * kColumns + threadIdx.x;
  if (col >= cols) return;
  const float added = float(bias[col]);
  const int64_t first = blockIdx.x / across * kRows;
  const int64_t last = first + kRows < rows ? first + kRows : rows;
  for (int64_t row = first; row < last; ++row) {
    const float v = float(x[row * cols + col]) + added;
    const float inner = 1.5957691216f * v * (1.0f + 0.044715f * v * v);
    out[row * cols + col] = T(v / (1.0f + __expf(-inner)));
  }
}

template <typename T>
void launch(const T* x, const T* bias, T* out, int64_t rows, int64_t cols, cudaStream_t stream) {
  const int64_t blocks = (cols + kColumns - 1) / kColumns * ((rows + kRows - 1) / kRows);
  bias_gelu_columns<<<unsigned(blocks), kColumns, 0, stream>>>(x, bias, out, rows, cols);
}

extern "C" void bias_gelu(const float* x, const float* bias, float* out, int64_t rows,
                          int64_t cols, cudaStream_t stream) {
  launch(x, bias, out, rows, cols, stream);
}

extern "C" void bias_gelu_fp16(const __half* x, const __half* bias, __half* out, int64_t rows,
                               int64_t cols, cudaStream_t stream) {
  launch(x, bias, out, rows, cols, stream);
}

extern "C" void bias_gelu_bf16(const __nv_bfloat16* x, const __nv_bfloat16* bias,
                               __nv_bfloat16* out, int64_t rows, int64_t cols,
                               cudaStream_t stream) {
  launch(x, bias, out, rows, cols, stream);
}
