// Row sums in CUDA C++, by the length of a row: a group of lanes for several rows, a group or a
// warp a row, a block a row, or many blocks a row. A thread has four or eight loads of 16 bytes on
// their way before it adds the first; what is before the first multiple of 16 bytes in a long row,
// and behind the last, is loaded by element. Of several blocks that share a row, the last to finish
// adds up their sums, in a fixed order.

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

namespace {

constexpr int kThreads = 128;       // of a block that has a row, or shares one
constexpr int kShortThreads = 64;   // of a block that has many rows
constexpr int kLoads = 8;           // of a thread before the first addition, in long rows
constexpr int kShortLoads = 4;      // the same in short ones
constexpr int kGroup = 8;           // lanes that share short rows
constexpr int kGroupPacks = 16;     // most packs of a row of which a group has kGroup at once
constexpr int kRowPacks = 64;       // most packs of a row that a group has
constexpr int kWarpPacks = 256;     // most packs of a row that a warp has
constexpr int kLongRow = 1 << 16;   // bytes of a row from which on blocks may share it
constexpr int kBlocksPerSM = 8;     // of blocks that share rows
constexpr int kMostShares = 1 << 13;  // blocks of all shared rows together
constexpr unsigned kAll = 0xffffffffu;

// Of shared rows; launches on one stream use them one by one. A count is 0 between calls.
__device__ float share_sums[kMostShares];
__device__ unsigned shares_done[kMostShares];

__device__ float to_float(float v) { return v; }
__device__ float to_float(__nv_bfloat16 v) { return __bfloat162float(v); }

// V elements that are loaded at once: 16 bytes, or one element.
template <typename T, int V> struct alignas(sizeof(T) * V) Pack {
  T at[V];
};

template <typename T, int V> __device__ float sum_of(const Pack<T, V>& pack) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < V; ++i) sum += to_float(pack.at[i]);
  return sum;
}

// The sum of this thread's packs: thread, thread + threads, ...
template <typename T, int V, int LOADS>
__device__ float sum_packs(const T* x, int64_t packs, int thread, int threads) {
  const Pack<T, V>* const pack_at = reinterpret_cast<const Pack<T, V>*>(x);
  float sum = 0.0f;
  for (int64_t i = thread; i < packs; i += LOADS * threads) {
    Pack<T, V> pack[LOADS];
#pragma unroll
    for (int j = 0; j < LOADS; ++j)
      if (i + j * threads < packs) pack[j] = pack_at[i + j * threads];
#pragma unroll
    for (int j = 0; j < LOADS; ++j)
      if (i + j * threads < packs) sum += sum_of(pack[j]);
  }
  return sum;
}

// The sum of this thread's share of `count` elements, wherever they begin.
template <typename T>
__device__ float sum_share(const T* x, int64_t count, int thread, int threads) {
  constexpr int kPack = 16 / sizeof(T);
  const int64_t before = (kPack - int(reinterpret_cast<uintptr_t>(x) / sizeof(T) % kPack)) % kPack;
  const int64_t head = before < count ? before : count;
  const int64_t packs = (count - head) / kPack, tail = head + packs * kPack;
  float sum = sum_packs<T, kPack, kLoads>(x + head, packs, thread, threads);
  if (thread < head) sum += to_float(x[thread]);
  if (tail + thread < count) sum += to_float(x[tail + thread]);
  return sum;
}

template <int LANES> __device__ float sum_lanes(float v) {
#pragma unroll
  for (int offset = LANES / 2; offset > 0; offset /= 2) v += __shfl_xor_sync(kAll, v, offset);
  return v;
}

// The sum over the block; every thread of the first warp has it.
__device__ float sum_block(float v) {
  __shared__ float warps[kThreads / 32];
  v = sum_lanes<32>(v);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = v;
  __syncthreads();
  return sum_lanes<32>(threadIdx.x < kThreads / 32 ? warps[threadIdx.x] : 0.0f);
}

// A warp has 32 rows. Its groups take the next rows together, and at the end lane j of a group
// stores the group's row number j, so that the warp stores neighbours at once.
template <typename T, int V>
__global__ void __launch_bounds__(kShortThreads)
    sum_groups_of_rows(const T* __restrict__ x, float* __restrict__ out, int64_t rows,
                       int64_t cols) {
  constexpr int kGroups = 32 / kGroup;
  const int lane = threadIdx.x % kGroup;
  const int64_t warp = (int64_t(blockIdx.x) * kShortThreads + threadIdx.x) / 32;
  const int64_t first = warp * 32 + threadIdx.x % 32 / kGroup;
  float sum[kGroup] = {};
  for (int64_t i = lane; i < cols / V; i += kGroup) {
    Pack<T, V> pack[kGroup];
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      const int64_t row = first + j * kGroups;
      if (row < rows) pack[j] = reinterpret_cast<const Pack<T, V>*>(x + row * cols)[i];
    }
#pragma unroll
    for (int j = 0; j < kGroup; ++j)
      if (first + j * kGroups < rows) sum[j] += sum_of(pack[j]);
  }
  float mine = 0.0f;
#pragma unroll
  for (int j = 0; j < kGroup; ++j) {
    const float whole = sum_lanes<kGroup>(sum[j]);
    if (lane == j) mine = whole;
  }
  if (first + lane * kGroups < rows) out[first + lane * kGroups] = mine;
}

template <typename T, int V, int LANES>
__global__ void __launch_bounds__(kShortThreads)
    sum_short_rows(const T* __restrict__ x, float* __restrict__ out, int64_t rows, int64_t cols) {
  const int64_t row = (int64_t(blockIdx.x) * kShortThreads + threadIdx.x) / LANES;
  float sum = 0.0f;
  const int lane = threadIdx.x % LANES;
  if (row < rows) sum = sum_packs<T, V, kShortLoads>(x + row * cols, cols / V, lane, LANES);
  sum = sum_lanes<LANES>(sum);
  if (row < rows && lane == 0) out[row] = sum;
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    sum_rows(const T* __restrict__ x, float* __restrict__ out, int64_t cols) {
  const int64_t row = blockIdx.x;
  const float sum = sum_block(sum_share(x + row * cols, cols, threadIdx.x, kThreads));
  if (threadIdx.x == 0) out[row] = sum;
}

// `shares` blocks have `share` elements of a row each; the last may have fewer.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    sum_shared_rows(const T* __restrict__ x, float* __restrict__ out, int64_t cols, int shares,
                    int64_t share) {
  __shared__ bool is_last;
  const int64_t row = blockIdx.x / shares, first = blockIdx.x % shares * share;
  const int64_t count = cols - first < share ? cols - first : share;
  float sum = 0.0f;
  if (count > 0) sum = sum_share(x + row * cols + first, count, threadIdx.x, kThreads);
  sum = sum_block(sum);
  if (threadIdx.x == 0) {
    share_sums[blockIdx.x] = sum;
    __threadfence();  // before the count says so
    is_last = atomicAdd(&shares_done[row], 1u) == unsigned(shares - 1);
  }
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  sum = 0.0f;
  const volatile float* const sums = share_sums + row * shares;
  for (int i = threadIdx.x; i < shares; i += kThreads) sum += sums[i];
  sum = sum_block(sum);
  if (threadIdx.x == 0) {
    out[row] = sum;
    shares_done[row] = 0;
  }
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int processors() {
  static int count = 0;
  if (count == 0) {
    int device;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  }
  return count;
}

template <typename T>
void launch_long(const T* x, float* out, int64_t rows, int64_t cols, cudaStream_t stream) {
  const int64_t wanted = int64_t(processors()) * kBlocksPerSM;
  if (rows < wanted && cols * int64_t(sizeof(T)) >= kLongRow) {
    const int64_t most = kMostShares / rows, least = ceil_div(wanted, rows);
    const int64_t shares = most < least ? most : least;
    if (shares > 1) {
      // A multiple of 16 bytes, so that all shares begin as the row does.
      constexpr int kPack = 16 / sizeof(T);
      const int64_t share = ceil_div(ceil_div(cols, shares), kPack) * kPack;
      sum_shared_rows<<<unsigned(rows * shares), kThreads, 0, stream>>>(x, out, cols, int(shares),
                                                                        share);
      return;
    }
  }
  sum_rows<<<unsigned(rows), kThreads, 0, stream>>>(x, out, cols);
}

template <typename T, int V>
void launch(const T* x, float* out, int64_t rows, int64_t cols, cudaStream_t stream) {
  const int64_t packs = cols / V;
  const auto blocks = [&](int lanes) { return unsigned(ceil_div(rows * lanes, kShortThreads)); };
  if (packs <= kGroupPacks)
    sum_groups_of_rows<T, V><<<blocks(1), kShortThreads, 0, stream>>>(x, out, rows, cols);
  else if (packs <= kRowPacks)
    sum_short_rows<T, V, kGroup><<<blocks(kGroup), kShortThreads, 0, stream>>>(x, out, rows, cols);
  else if (packs <= kWarpPacks)
    sum_short_rows<T, V, 32><<<blocks(32), kShortThreads, 0, stream>>>(x, out, rows, cols);
  else
    launch_long(x, out, rows, cols, stream);
}

template <typename T>
void dispatch(const T* x, float* out, int64_t rows, int64_t cols, cudaStream_t stream) {
  constexpr int kPack = 16 / sizeof(T);
  if (cols % kPack == 0)
    launch<T, kPack>(x, out, rows, cols, stream);
  else
    launch<T, 1>(x, out, rows, cols, stream);
}

}  // namespace

extern "C" void reduce_sum(const float* x, float* out, int64_t rows, int64_t cols,
                           cudaStream_t stream) {
  dispatch(x, out, rows, cols, stream);
}

extern "C" void reduce_sum_bf16(const __nv_bfloat16* x, float* out, int64_t rows, int64_t cols,
                                cudaStream_t stream) {
  dispatch(x, out, rows, cols, stream);
}
