// Top k in CUDA C++: a block a row finds the maximum k times. A thread remembers how often it has
// given its best, and looks for the next below it among its own columns only.

#include <stdint.h>

constexpr int kThreads = 256;

// The largest of a thread's columns that comes after (value, column) in the order of the result.
__device__ void next_best(const float* x, int64_t cols, float& value, int64_t& column) {
  float best = -INFINITY;
  int64_t at = -1;
  for (int64_t i = threadIdx.x; i < cols; i += kThreads) {
    const bool is_left = column < 0 || x[i] < value || (x[i] == value && i > column);
    if (is_left && (at < 0 || x[i] > best)) best = x[i], at = i;
  }
  value = best;
  column = at;
}

__global__ void largest_of_rows(const float* x, float* out, int64_t cols, int k) {
  __shared__ float values[kThreads];
  __shared__ int owners[kThreads];
  x += int64_t(blockIdx.x) * cols;
  float value = INFINITY;
  int64_t column = -1;
  next_best(x, cols, value, column);
  for (int i = 0; i < k; ++i) {
    // A thread without columns left must not win over one whose best is minus infinity; both give
    // the same number, so that it does not matter who wins.
    values[threadIdx.x] = column < 0 ? -INFINITY : value;
    owners[threadIdx.x] = threadIdx.x;
    for (int half = kThreads / 2; half > 0; half /= 2) {
      __syncthreads();
      if (threadIdx.x < half && values[threadIdx.x + half] > values[threadIdx.x]) {
        values[threadIdx.x] = values[threadIdx.x + half];
        owners[threadIdx.x] = owners[threadIdx.x + half];
      }
    }
    __syncthreads();
    if (threadIdx.x == 0) out[int64_t(blockIdx.x) * k + i] = values[0];
    const bool was_mine = owners[0] == threadIdx.x;
    __syncthreads();
    if (was_mine && column >= 0) next_best(x, cols, value, column);
  }
}

extern "C" void top_k(const float* x, float* out, int64_t rows, int64_t cols, int64_t k,
                      cudaStream_t stream) {
  largest_of_rows<<<unsigned(rows), kThreads, 0, stream>>>(x, out, cols, int(k));
}
