// Softmax in CUDA C++ for Hopper. Every row is read once and written once: its exponentials stay in
// registers between the two. A row of up to 1,024 columns belongs to a warp, one of up to 16,384 to
// a block. A longer row is shared by a cluster of 2, 4, 8 or 16 blocks (up to 524,288 columns),
// which exchange partial sums through distributed shared memory. These clusters stay on the GPU and
// take rows in turn: once a row is in registers, a bulk copy fetches the next into shared memory.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

namespace {

constexpr int kPackBytes = 16;         // of an aligned load or store
constexpr int kRowsPerBlock = 4;       // where each warp has a row
constexpr int kBlockThreads = 512;     // where a block has a row: at most
constexpr int kClusterThreads = 1024;  // of a block that shares a row: one block fits an SM
constexpr int kClusterElements = 32;   // of a thread of such a block
constexpr int kShare = kClusterThreads * kClusterElements;  // elements of such a block at most
constexpr int kClusterWarps = kClusterThreads / 32;
constexpr int kMostBlocks = 16;  // of a cluster; more than 8 needs an attribute
constexpr int kMostParts = kMostBlocks * kClusterWarps;
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

// V elements that are loaded or stored at once: 16 bytes, or one element.
template <typename T, int V> struct alignas(sizeof(T) * V) Pack {
  T at[V];
};

// Thread t of `threads` takes packs t, t + threads, ... of `count` elements; -inf lies beyond.
template <typename T, int V, int E>
__device__ void load_share(const T* x, int count, int thread, int threads, float (&value)[E]) {
  Pack<T, V> pack[E / V];
#pragma unroll
  for (int i = 0; i < E / V; ++i) {
    const int at = (i * threads + thread) * V;
    if (at < count)
      pack[i] = *reinterpret_cast<const Pack<T, V>*>(x + at);
    else
#pragma unroll
      for (int j = 0; j < V; ++j) pack[i].at[j] = from_float<T>(minus_infinity());
  }
#pragma unroll
  for (int i = 0; i < E; ++i) value[i] = to_float(pack[i / V].at[i % V]);
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
    *reinterpret_cast<Pack<T, V>*>(out + at) = pack;
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
// of only -inf gives NaN, as it must. MOST bounds `count`.
template <int MOST>
__device__ float factor_of(const Part& mine, const Part* parts, int count) {
  const int lane = threadIdx.x % 32;
  float highest = minus_infinity();
  for (int i = lane; i < MOST && i < count; i += 32) highest = fmaxf(highest, parts[i].highest);
  highest = warp_max(highest);
  float total = 0.0f;
  for (int i = lane; i < MOST && i < count; i += 32)
    total += parts[i].total * exp_fast(parts[i].highest - highest);
  return exp_fast(mine.highest - highest) / warp_sum(total);
}

// A warp a row, or a block a row ------------------------------------------------------------------

template <typename T, int V, int E>
__global__ void __launch_bounds__(32 * kRowsPerBlock, 8)
    warp_rows(const T* __restrict__ x, T* __restrict__ out, int64_t rows, int cols) {
  const int64_t row = int64_t(blockIdx.x) * kRowsPerBlock + threadIdx.y;
  if (row >= rows) return;  // the whole warp
  float value[E];
  load_share<T, V>(x + row * cols, cols, threadIdx.x, 32, value);
  const Part part = exponentiate(value);
  const float factor = part.highest == minus_infinity() ? __int_as_float(0x7fffffff)  // NaN
                                                        : 1.0f / part.total;
  store_share<T, V>(out + row * cols, cols, threadIdx.x, 32, value, factor);
}

// As many blocks on an SM as leave a thread enough registers: 64 for 32 elements, else 32, or 40
// where elements are loaded one by one.
template <typename T, int V, int E>
__global__ void __launch_bounds__(kBlockThreads, E > 16 ? 2 : V > 1 ? 4 : 3)
    block_rows(const T* __restrict__ x, T* __restrict__ out, int cols) {
  __shared__ Part parts[kBlockThreads / 32];
  const int64_t first = int64_t(blockIdx.x) * cols;
  float value[E];
  load_share<T, V>(x + first, cols, threadIdx.x, blockDim.x, value);
  const Part mine = exponentiate(value);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = mine;
  __syncthreads();
  const float factor = factor_of<kBlockThreads / 32>(mine, parts, blockDim.x / 32);
  store_share<T, V>(out + first, cols, threadIdx.x, blockDim.x, value, factor);
}

// A cluster a row ---------------------------------------------------------------------------------
// Cluster operations are in PTX: their header takes longer to compile than the rest of this file.

__device__ uint32_t shared_address(const void* at) {
  return uint32_t(__cvta_generic_to_shared(at));
}
__device__ int cluster_rank() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ int cluster_blocks() {
  int blocks;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
  return blocks;
}
__device__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Writes to the address of `at` in the shared memory of another block of the cluster.
__device__ void store_remote(const Part* at, int rank, const Part& part) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(there)
               : "r"(shared_address(at)), "r"(rank));
  asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(there), "f"(part.highest),
               "f"(part.total)
               : "memory");
}

__device__ void barrier_init(uint32_t barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ void barrier_wait(uint32_t barrier, int parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// A bulk copy to shared memory. Addresses and `bytes` are multiples of 16.
__device__ void fetch(void* to, const void* from, int bytes, uint32_t barrier) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

// The blocks of a cluster share a row, `share` elements each. Every warp sends its part to all
// blocks; after one barrier each block has all parts of the row. Unaligned rows (V = 1) cannot be
// fetched by bulk copies, and are loaded when their turn comes.
template <typename T, int V>
__global__ void __launch_bounds__(kClusterThreads, 1)
    cluster_rows(const T* __restrict__ x, T* __restrict__ out, int64_t rows, int cols, int share) {
  constexpr bool kAhead = V > 1;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ alignas(8) uint64_t barrier_word;
  __shared__ Part parts[2][kMostParts];  // of this row and of the next, in turn
  T* const fetched = reinterpret_cast<T*>(shared);
  const uint32_t arrived = shared_address(&barrier_word);
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int rank = cluster_rank(), blocks = cluster_blocks();
  const int64_t first = blockIdx.x / blocks, step = gridDim.x / blocks;
  const int count = min(share, cols - rank * share);  // at least one: rows are long
  x += rank * share, out += rank * share;

  auto fetch_row = [&](int64_t row) {
    if (kAhead && thread == 0 && row < rows)
      fetch(fetched, x + row * cols, count * int(sizeof(T)), arrived);
  };
  if (thread == 0) barrier_init(arrived);
  fetch_row(first);
  cluster_sync();  // no block is written to before it has started

  int turn = 0;
  for (int64_t row = first; row < rows; row += step, turn ^= 1) {
    float value[kClusterElements];
    if (kAhead) {
      barrier_wait(arrived, turn);
      load_share<T, V>(fetched, count, thread, kClusterThreads, value);
      __syncthreads();
      fetch_row(row + step);
    } else {
      load_share<T, V>(x + row * cols, count, thread, kClusterThreads, value);
    }
    const Part mine = exponentiate(value);
    if (lane < blocks) store_remote(&parts[turn][rank * kClusterWarps + warp], lane, mine);
    __syncwarp();
    cluster_sync();
    const float factor = factor_of<kMostParts>(mine, parts[turn], blocks * kClusterWarps);
    store_share<T, V>(out + row * cols, count, thread, kClusterThreads, value, factor);
  }
}

// Launching ---------------------------------------------------------------------------------------

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
  const auto kernel = cluster_rows<T, V>;
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {unsigned(blocks), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(unsigned(blocks));
  config.blockDim = dim3(kClusterThreads);
  config.dynamicSmemBytes = V > 1 ? kShare * sizeof(T) : 0;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;

  static int at_once[kMostBlocks + 1] = {};  // clusters, by their blocks; asked for once
  if (blocks <= kMostBlocks && at_once[blocks] == 0) {
    const int bytes = int(config.dynamicSmemBytes);
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    cudaOccupancyMaxActiveClusters(&at_once[blocks], kernel, &config);
  }
  const int64_t clusters = blocks <= kMostBlocks && rows > at_once[blocks] ? at_once[blocks] : rows;
  config.gridDim = dim3(unsigned(clusters * blocks));
  cudaLaunchKernelEx(&config, kernel, x, out, rows, cols, share);
}

template <typename T, int V>
void launch(const T* x, T* out, int64_t rows, int cols, cudaStream_t stream) {
  if (cols <= 256) return launch_warps<T, V, 8>(x, out, rows, cols, stream);
  if (cols <= 512) return launch_warps<T, V, 16>(x, out, rows, cols, stream);
  if (cols <= 1024) return launch_warps<T, V, 32>(x, out, rows, cols, stream);
  if (cols <= kBlockThreads * 8) return launch_blocks<T, V, 8>(x, out, rows, cols, stream);
  if (cols <= kBlockThreads * 16) return launch_blocks<T, V, 16>(x, out, rows, cols, stream);
  if (cols <= kBlockThreads * 32) return launch_blocks<T, V, 32>(x, out, rows, cols, stream);
  launch_clusters<T, V>(x, out, rows, cols, stream);
}

template <typename T>
void dispatch(const T* x, T* out, int64_t rows, int64_t cols, cudaStream_t stream) {
  constexpr int kPack = kPackBytes / sizeof(T);
  const bool aligned = cols % kPack == 0 && reinterpret_cast<uintptr_t>(x) % kPackBytes == 0 &&
                       reinterpret_cast<uintptr_t>(out) % kPackBytes == 0;
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
