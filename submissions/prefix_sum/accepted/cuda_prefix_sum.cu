// Prefix sum in CUDA C++ with three kernels: the sum of each tile; the sums of all tiles before each,
// by one block; and the scan of each tile, beginning there.

#include <stdint.h>

constexpr int kThreads = 256;
constexpr int kItems = 16;  // consecutive elements of a thread
constexpr int kTile = kThreads * kItems;
constexpr int64_t kMostTiles = 1 << 17;

// One for each tile. Launches on one stream use it one by one.
__device__ float tile_sums[kMostTiles];

// The sum of the values of all threads before this one, and of all in the block.
__device__ float exclusive_in_block(float value, float* total) {
  __shared__ float warps[kThreads / 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float inclusive = value;
  for (int offset = 1; offset < 32; offset *= 2) {
    const float other = __shfl_up_sync(0xffffffffu, inclusive, offset);
    if (lane >= offset) inclusive += other;
  }
  const float from_left = __shfl_up_sync(0xffffffffu, inclusive, 1);
  __syncthreads();  // the sums of the last time may still be read
  if (lane == 31) warps[warp] = inclusive;
  __syncthreads();
  float before = lane > 0 ? from_left : 0.0f, all = 0.0f;
  for (int i = 0; i < kThreads / 32; ++i) {
    if (i < warp) before += warps[i];
    all += warps[i];
  }
  *total = all;
  return before;
}

__device__ int64_t load_items(const float* x, int64_t n, float (&item)[kItems]) {
  const int64_t at = int64_t(blockIdx.x) * kTile + threadIdx.x * kItems;
  for (int i = 0; i < kItems; ++i) item[i] = at + i < n ? x[at + i] : 0.0f;
  return at;
}

__global__ void sum_tiles(const float* x, int64_t n) {
  float item[kItems], sum = 0.0f, total;
  load_items(x, n, item);
  for (int i = 0; i < kItems; ++i) sum += item[i];
  exclusive_in_block(sum, &total);
  if (threadIdx.x == 0) tile_sums[blockIdx.x] = total;
}

__global__ void scan_sums(int64_t tiles) {
  float before = 0.0f, total;
  for (int64_t first = 0; first < tiles; first += kThreads) {
    const int64_t tile = first + threadIdx.x;
    const float sum = tile < tiles ? tile_sums[tile] : 0.0f;
    const float left = exclusive_in_block(sum, &total);
    if (tile < tiles) tile_sums[tile] = before + left;
    before += total;
  }
}

__global__ void scan_tiles(const float* x, float* out, int64_t n) {
  float item[kItems], sum = 0.0f, total;
  const int64_t at = load_items(x, n, item);
  for (int i = 0; i < kItems; ++i) sum += item[i];
  float running = exclusive_in_block(sum, &total) + tile_sums[blockIdx.x];
  for (int i = 0; i < kItems && at + i < n; ++i) out[at + i] = running += item[i];
}

extern "C" void prefix_sum(const float* x, float* out, int64_t n, cudaStream_t stream) {
  const int64_t tiles = (n + kTile - 1) / kTile;
  if (tiles > kMostTiles) return;  // 537 million elements: more than the problem has
  sum_tiles<<<unsigned(tiles), kThreads, 0, stream>>>(x, n);
  scan_sums<<<1, kThreads, 0, stream>>>(tiles);
  scan_tiles<<<unsigned(tiles), kThreads, 0, stream>>>(x, out, n);
}
