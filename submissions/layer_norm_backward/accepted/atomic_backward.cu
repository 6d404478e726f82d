// LayerNorm's gradients with a block a row for dx, and blocks of 512 rows and 32 columns for the column
// sums, which meet in fp32 sums by atomics. A last kernel rounds these. The workspace is allocated and
// cleared on the stream in every call.

#include <cuda_bf16.h>
#include <stdint.h>

constexpr int kThreads = 256;
constexpr int kTileRows = 512;

__device__ float block_sum(float value, float* partial) {
  for (int lane = 16; lane > 0; lane /= 2) value += __shfl_xor_sync(0xffffffffu, value, lane);
  __syncthreads();  // the last sum has been read
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  float total = 0.0f;
  for (int warp = 0; warp < kThreads / 32; ++warp) total += partial[warp];
  return total;
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    row_gradient(const T* dy, const T* x, const T* weight, const float* mean, const float* rstd,
                 T* dx, int64_t cols) {
  __shared__ float partial[kThreads / 32];
  const int64_t start = blockIdx.x * cols;
  const float center = mean[blockIdx.x], scale = rstd[blockIdx.x];
  float across = 0.0f, along = 0.0f;
  for (int64_t i = threadIdx.x; i < cols; i += kThreads) {
    const float inner = float(dy[start + i]) * float(weight[i]);
    across += inner;
    along += inner * (float(x[start + i]) - center) * scale;
  }
  across = block_sum(across, partial) / float(cols);
  along = block_sum(along, partial) / float(cols);
  for (int64_t i = threadIdx.x; i < cols; i += kThreads) {
    const float inner = float(dy[start + i]) * float(weight[i]);
    const float normal = (float(x[start + i]) - center) * scale;
    dx[start + i] = T((inner - across - normal * along) * scale);
  }
}

// A thread has a column, and every eighth of the tile's rows.
template <typename T>
__global__ void column_sums(const T* dy, const T* x, const float* mean, const float* rstd,
                            float* sums, int64_t rows, int64_t cols) {
  const int64_t col = int64_t(blockIdx.x) * 32 + threadIdx.x;
  if (col >= cols) return;
  float dweight = 0.0f, dbias = 0.0f;
  const int64_t first = int64_t(blockIdx.y) * kTileRows;
  const int64_t end = first + kTileRows < rows ? first + kTileRows : rows;
  for (int64_t row = first + threadIdx.y; row < end; row += blockDim.y) {
    const float grad = float(dy[row * cols + col]);
    dweight += grad * (float(x[row * cols + col]) - mean[row]) * rstd[row];
    dbias += grad;
  }
  atomicAdd(sums + col, dweight);
  atomicAdd(sums + cols + col, dbias);
}

template <typename T>
__global__ void round_sums(const float* sums, T* dweight, T* dbias, int64_t cols) {
  const int64_t col = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (col >= cols) return;
  dweight[col] = T(sums[col]);
  dbias[col] = T(sums[cols + col]);
}

template <typename T>
void launch(const T* dy, const T* x, const T* weight, const float* mean, const float* rstd, T* dx,
            T* dweight, T* dbias, int64_t rows, int64_t cols, cudaStream_t stream) {
  float* sums = nullptr;
  const size_t bytes = size_t(2 * cols) * sizeof(float);
  cudaMallocAsync(&sums, bytes, stream);
  cudaMemsetAsync(sums, 0, bytes, stream);
  row_gradient<<<unsigned(rows), kThreads, 0, stream>>>(dy, x, weight, mean, rstd, dx, cols);
  const dim3 grid(unsigned((cols + 31) / 32), unsigned((rows + kTileRows - 1) / kTileRows));
  column_sums<<<grid, dim3(32, 8), 0, stream>>>(dy, x, mean, rstd, sums, rows, cols);
  round_sums<<<unsigned((cols + 255) / 256), 256, 0, stream>>>(sums, dweight, dbias, cols);
  cudaFreeAsync(sums, stream);
}

extern "C" void layer_norm_backward(const float* dy, const float* x, const float* weight,
                                    const float* mean, const float* rstd, float* dx,
                                    float* dweight, float* dbias, int64_t rows, int64_t cols,
                                    cudaStream_t stream) {
  launch(dy, x, weight, mean, rstd, dx, dweight, dbias, rows, cols, stream);
}

extern "C" void layer_norm_backward_bf16(const __nv_bfloat16* dy, const __nv_bfloat16* x,
                                         const __nv_bfloat16* weight, const float* mean,
                                         const float* rstd, __nv_bfloat16* dx,
                                         __nv_bfloat16* dweight, __nv_bfloat16* dbias,
                                         int64_t rows, int64_t cols, cudaStream_t stream) {
  launch(dy, x, weight, mean, rstd, dx, dweight, dbias, rows, cols, stream);
}
