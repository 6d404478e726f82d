// Softmax in CUDA C++ for Hopper. Every row is read once and written once: it stays in the registers
// of a warp, of a block, or of a cluster of up to 16 blocks (262,144 elements), whose partial sums
// travel through distributed shared memory.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

namespace {

constexpr int kThreads = 512;  // per block of a cluster that shares a row; two blocks fit an SM
constexpr int kElements = 32;  // per thread of such a block
constexpr int kShare = kThreads * kElements;
constexpr int kMostBlocks = 16;  // the largest cluster; more than 8 needs an attribute
constexpr int kMostWarps = kThreads / 32;
constexpr int kRowsPerBlock = 4;  // if each warp has a row
constexpr float kLog2e = 1.4426950408889634f;

// A part of a row: its maximum, and the sum of exp(x - maximum). A part of only -inf sums to 0, not
// NaN, since the rest of the row may be finite.
struct Part {
  float highest, total;
};

__device__ float minus_infinity() { return __int_as_float(0xff800000); }
__device__ float exp_fast(float v) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(v * kLog2e));
  return result;
}

__device__ float to_float(float v) { return v; }
__device__ float to_float(__half v) { return __half2float(v); }
__device__ float to_float(__nv_bfloat16 v) { return __bfloat162float(v); }
template <typename T> __device__ T from_float(float v);
template <> __device__ float from_float<float>(float v) { return v; }
template <> __device__ __half from_float<__half>(float v) { return __float2half_rn(v); }
template <> __device__ __nv_bfloat16 from_float<__nv_bfloat16>(float v) {
  return __float2bfloat16_rn(v);
}

__device__ float warp_max(float v) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, offset));
  return v;
}

__device__ float warp_sum(float v) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) v += __shfl_xor_sync(0xffffffffu, v, offset);
  return v;
}

// V elements: 16 bytes, or one element. They are used once, so they are evicted first.
template <typename T, int V> struct alignas(sizeof(T) * V) Pack {
  T at[V];
};

template <typename T, int V> __device__ Pack<T, V> load(const T* at) {
  Pack<T, V> pack;
  if constexpr (sizeof(pack) == 16)
    *reinterpret_cast<uint4*>(&pack) = __ldcs(reinterpret_cast<const uint4*>(at));
  else
    pack.at[0] = __ldcs(at);
  return pack;
}

template <typename T, int V> __device__ void store(T* at, const Pack<T, V>& pack) {
  if constexpr (sizeof(pack) == 16)
    __stcs(reinterpret_cast<uint4*>(at), *reinterpret_cast<const uint4*>(&pack));
  else
    __stcs(at, pack.at[0]);
}

// Thread t of `threads` takes packs t, t + threads, ... of `count` elements; -inf lies beyond.
template <typename T, int V, int E>
__device__ void load_share(const T* x, int count, int thread, int threads, float (&value)[E]) {
#pragma unroll
  for (int i = 0; i < E / V; ++i) {
    const int at = (i * threads + thread) * V;
    if (at < count) {
      const Pack<T, V> pack = load<T, V>(x + at);
#pragma unroll
      for (int j = 0; j < V; ++j) value[i * V + j] = to_float(pack.at[j]);
    } else {
#pragma unroll
      for (int j = 0; j < V; ++j) value[i * V + j] = minus_infinity();
    }
  }
}

template <typename T, int V, int E>
__device__ void store_share(T* out, int count, int thread, int threads, const float (&value)[E],
                            float factor) {
#pragma unroll
  for (int i = 0; i < E / V; ++i) {
    const int at = (i * threads + thread) * V;
    if (at >= count) continue;
    Pack<T, V> pack;
#pragma unroll
    for (int j = 0; j < V; ++j) pack.at[j] = from_float<T>(value[i * V + j] * factor);
    store<T, V>(out + at, pack);
  }
}

// Replaces a warp's values by exp(value - maximum of the warp), and gives the warp's part.
template <int E> __device__ Part exponentiate(float (&value)[E]) {
  float highest = value[0];
#pragma unroll
  for (int i = 1; i < E; ++i) highest = fmaxf(highest, value[i]);
  highest = warp_max(highest);
  const float base = highest == minus_infinity() ? 0.0f : highest;
  float total = 0.0f;
#pragma unroll
  for (int i = 0; i < E; ++i) {
    value[i] = exp_fast(value[i] - base);
    total += value[i];
  }
  return {highest, warp_sum(total)};
}

// The factor that turns the values of `mine` into probabilities, given all parts of the row. A row
// of only -inf gives NaN, as it must.
__device__ float factor_of(const Part& mine, const Part* parts, int count) {
  const int lane = threadIdx.x % 32;
  float highest = minus_infinity();
  for (int i = lane; i < count; i += 32) highest = fmaxf(highest, parts[i].highest);
  highest = warp_max(highest);
  float total = 0.0f;
  for (int i = lane; i < count; i += 32)
    total += parts[i].total * exp_fast(parts[i].highest - highest);
  return exp_fast(mine.highest - highest) / warp_sum(total);
}

// Cluster operations in PTX: their header takes longer to compile than the rest of this file.

__device__ int cluster_rank() {
  int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ int cluster_blocks() {
  int blocks;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
  return blocks;
}

// Writes to the address of `at` in the shared memory of another block of the cluster.
__device__ void store_remote(const Part* at, int rank, const Part& part) {
  const unsigned here = unsigned(__cvta_generic_to_shared(at));
  unsigned there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
  asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(there), "f"(part.highest),
               "f"(part.total)
               : "memory");
}

template <typename T, int V, int E>
__global__ void __launch_bounds__(32 * kRowsPerBlock)
    warp_rows(const T* __restrict__ x, T* __restrict__ out, int64_t rows, int cols) {
  const int64_t row = int64_t(blockIdx.x) * kRowsPerBlock + threadIdx.y;
  if (row >= rows) return;  // the whole warp
  float value[E];
  load_share<T, V>(x + row * cols, cols, threadIdx.x, 32, value);
  const Part part = exponentiate(value);
  const float factor = part.highest == minus_infinity() ? __int_as_float(0x7fffffff)
                                                        : 1.0f / part.total;
  store_share<T, V>(out + row * cols, cols, threadIdx.x, 32, value, factor);
}

template <typename T, int V, int E>
__global__ void __launch_bounds__(kThreads, E > 16 ? 2 : 3)
    block_rows(const T* __restrict__ x, T* __restrict__ out, int cols) {
  __shared__ Part parts[kMostWarps];
  const int64_t first = int64_t(blockIdx.x) * cols;
  float value[E];
  load_share<T, V>(x + first, cols, threadIdx.x, blockDim.x, value);
  const Part mine = exponentiate(value);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = mine;
  __syncthreads();
  const float factor = factor_of(mine, parts, blockDim.x / 32);
  store_share<T, V>(out + first, cols, threadIdx.x, blockDim.x, value, factor);
}

// The blocks of a cluster share a row, `share` elements each. Every warp sends its part to all
// blocks; after one barrier each block has all parts of the row.
template <typename T, int V>
__global__ void __launch_bounds__(kThreads, 2)
    cluster_rows(const T* __restrict__ x, T* __restrict__ out, int cols, int share) {
  // A block may be written to once it has started: arrive now, wait for the others later.
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
  __shared__ Part parts[kMostBlocks * kMostWarps];
  const int rank = cluster_rank(), blocks = cluster_blocks();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t first = int64_t(blockIdx.x / blocks) * cols + rank * share;
  const int count = min(share, cols - rank * share);  // may be negative

  float value[kElements];
  load_share<T, V>(x + first, count, threadIdx.x, kThreads, value);
  const Part mine = exponentiate(value);
  asm volatile("barrier.cluster.wait;" ::: "memory");
  if (lane < blocks) store_remote(&parts[rank * kMostWarps + warp], lane, mine);
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
  const float factor = factor_of(mine, parts, blocks * kMostWarps);
  store_share<T, V>(out + first, count, threadIdx.x, kThreads, value, factor);
}

int ceil_div(int64_t a, int64_t b) { return int((a + b - 1) / b); }

template <typename T, int V, int E>
void launch_warps(const T* x, T* out, int64_t rows, int cols, cudaStream_t stream) {
  const dim3 block(32, kRowsPerBlock);
  warp_rows<T, V, E><<<ceil_div(rows, kRowsPerBlock), block, 0, stream>>>(x, out, rows, cols);
}

template <typename T, int V, int E>
void launch_blocks(const T* x, T* out, int64_t rows, int cols, cudaStream_t stream) {
  const int threads = ceil_div(ceil_div(cols, E), 32) * 32;
  block_rows<T, V, E><<<unsigned(rows), threads, 0, stream>>>(x, out, cols);
}

template <typename T, int V>
void launch_clusters(const T* x, T* out, int64_t rows, int cols, cudaStream_t stream) {
  int blocks = 2;
  while (blocks * kShare < cols) blocks *= 2;
  const int share = ceil_div(ceil_div(cols, blocks), V) * V;
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {unsigned(blocks), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(unsigned(rows * blocks));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  cudaFuncSetAttribute(cluster_rows<T, V>, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  cudaLaunchKernelEx(&config, cluster_rows<T, V>, x, out, cols, share);
}

template <typename T, int V>
void launch(const T* x, T* out, int64_t rows, int cols, cudaStream_t stream) {
  if (cols <= 256) return launch_warps<T, V, 8>(x, out, rows, cols, stream);
  if (cols <= 512) return launch_warps<T, V, 16>(x, out, rows, cols, stream);
  if (cols <= 1024) return launch_warps<T, V, 32>(x, out, rows, cols, stream);
  if (cols <= kThreads * 16) return launch_blocks<T, V, 16>(x, out, rows, cols, stream);
  if (cols <= kShare) return launch_blocks<T, V, 32>(x, out, rows, cols, stream);
  launch_clusters<T, V>(x, out, rows, cols, stream);
}

template <typename T>
void dispatch(const T* x, T* out, int64_t rows, int64_t cols, cudaStream_t stream) {
  constexpr int kPack = 16 / sizeof(T);
  const bool aligned = cols % kPack == 0 && reinterpret_cast<uintptr_t>(x) % 16 == 0 &&
                       reinterpret_cast<uintptr_t>(out) % 16 == 0;
  if (aligned)
    launch<T, kPack>(x, out, rows, int(cols), stream);
  else
    launch<T, 1>(x, out, rows, int(cols), stream);
}

}  // namespace

extern "C" void softmax(const float* x, float* out, int64_t rows, int64_t cols,
                        cudaStream_t stream) {
  dispatch(x, out, rows, cols, stream);
}

extern "C" void softmax_fp16(const __half* x, __half* out, int64_t rows, int64_t cols,
                             cudaStream_t stream) {
  dispatch(x, out, rows, cols, stream);
}

extern "C" void softmax_bf16(const __nv_bfloat16* x, __nv_bfloat16* out, int64_t rows,
                             int64_t cols, cudaStream_t stream) {
  dispatch(x, out, rows, cols, stream);
}
