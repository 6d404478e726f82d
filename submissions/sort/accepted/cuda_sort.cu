// Sort in CUDA C++ by a bitonic network: steps at small distances in shared memory, the others over
// memory, filled up with infinity to a power of two.

#include <stdint.h>

constexpr int kThreads = 512;
constexpr int kTile = 2 * kThreads;

__device__ void order(float& low, float& high, bool ascends) {
  const float smaller = fminf(low, high), larger = fmaxf(low, high);
  low = ascends ? smaller : larger;
  high = ascends ? larger : smaller;
}

__global__ void fill(const float* x, float* keys, int64_t n, int64_t length) {
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i < length) keys[i] = i < n ? x[i] : INFINITY;
}

__global__ void exchange(float* keys, int64_t half, int64_t size, int64_t distance) {
  const int64_t pair = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (pair >= half) return;
  const int64_t low = 2 * pair - (pair & (distance - 1));
  order(keys[low], keys[low + distance], (low & size) == 0);
}

// The steps of all sizes from `size` to `last` whose pairs lie in one tile.
__global__ void exchange_in_tile(float* keys, int64_t size, int64_t last) {
  __shared__ float tile[kTile];
  const int64_t first = int64_t(blockIdx.x) * kTile;
  for (int i = threadIdx.x; i < kTile; i += kThreads) tile[i] = keys[first + i];
  for (; size <= last; size *= 2) {
    for (int distance = int(size < kTile ? size : kTile) / 2; distance > 0; distance /= 2) {
      __syncthreads();
      const int low = 2 * threadIdx.x - (threadIdx.x & (distance - 1));
      order(tile[low], tile[low + distance], ((first + low) & size) == 0);
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kTile; i += kThreads) keys[first + i] = tile[i];
}

__global__ void take(const float* keys, float* out, int64_t n) {
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) out[i] = keys[i];
}

unsigned blocks_for(int64_t count) { return unsigned((count + kThreads - 1) / kThreads); }

extern "C" void sort(const float* x, float* out, int64_t n, cudaStream_t stream) {
  int64_t length = kTile;
  while (length < n) length *= 2;
  float* keys;
  if (cudaMallocAsync(&keys, length * sizeof(float), stream) != cudaSuccess) return;
  const unsigned tiles = unsigned(length / kTile);
  fill<<<blocks_for(length), kThreads, 0, stream>>>(x, keys, n, length);
  exchange_in_tile<<<tiles, kThreads, 0, stream>>>(keys, 2, kTile);
  for (int64_t size = 2 * kTile; size <= length; size *= 2) {
    for (int64_t distance = size / 2; distance >= kTile; distance /= 2)
      exchange<<<blocks_for(length / 2), kThreads, 0, stream>>>(keys, length / 2, size, distance);
    exchange_in_tile<<<tiles, kThreads, 0, stream>>>(keys, size, size);
  }
  take<<<blocks_for(n), kThreads, 0, stream>>>(keys, out, n);
  cudaFreeAsync(keys, stream);
}
