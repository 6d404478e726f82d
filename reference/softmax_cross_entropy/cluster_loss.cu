// Cross-entropy with gradient in CUDA C++ for Hopper. Every row is read once and its gradient
// written once: its exponentials stay in registers between the two. A row of up to 1,024 classes
// belongs to a warp. A longer one is shared by a cluster of up to 16 blocks (524,288 classes), which
// exchange maxima and sums through distributed shared memory. Clusters stay on the GPU and take rows
// in turn: once a row is in registers, a bulk copy fetches the next into shared memory.
//
// Rows need not begin at a multiple of 16 bytes: they are cut into the tensor's own packs of 16
// bytes. In the first and the last pack of a row, which hold its neighbours too, only the row's own
// elements are used and written.

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

namespace {

constexpr int kPackBytes = 16;
constexpr int kRowsPerBlock = 4;   // where each warp has a row
constexpr int kWarpElements = 32;  // of a thread there
constexpr int kThreads = 1024;     // of a block that shares a row: one block fits an SM
constexpr int kElements = 32;      // of a thread of such a block
constexpr int kShare = kThreads * kElements;  // elements of such a block at most
constexpr int kWarps = kThreads / 32;
constexpr int kMostBlocks = 16;  // of a cluster; more than 8 needs an attribute
constexpr int kMostParts = kMostBlocks * kWarps;
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
__device__ float to_float(__nv_bfloat16 v) { return __bfloat162float(v); }
template <typename T> __device__ T from_float(float v);
template <> __device__ float from_float<float>(float v) { return v; }
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

// All parts of a row together, by a warp. MOST bounds `count`.
template <int MOST> __device__ Part joined(const Part* parts, int count) {
  const int lane = threadIdx.x % 32;
  float highest = minus_infinity();
  for (int i = lane; i < MOST && i < count; i += 32) highest = fmaxf(highest, parts[i].highest);
  highest = warp_max(highest);
  float total = 0.0f;
  for (int i = lane; i < MOST && i < count; i += 32)
    total += parts[i].total * exp_fast(parts[i].highest - highest);
  return {highest, warp_sum(total)};
}

__device__ float loss_of(const Part& row, float own_logit) {
  return logf(row.total) + (row.highest - own_logit);
}

// What turns a part's exponentials into scaled probabilities.
__device__ float factor_of(const Part& mine, const Part& row, float scale) {
  return scale * exp_fast(mine.highest - row.highest) / row.total;
}

// A warp a row -------------------------------------------------------------------------------------

template <typename T>
__global__ void __launch_bounds__(32 * kRowsPerBlock)
    warp_rows(const T* __restrict__ logits, const int64_t* __restrict__ labels, float scale,
              float* __restrict__ loss, T* __restrict__ grad, int64_t rows, int classes) {
  const int64_t row = int64_t(blockIdx.x) * kRowsPerBlock + threadIdx.y;
  if (row >= rows) return;  // the whole warp
  logits += row * classes, grad += row * classes;
  const int label = int(labels[row]), lane = threadIdx.x;
  float value[kWarpElements];
#pragma unroll
  for (int i = 0; i < kWarpElements; ++i) {
    const int at = 32 * i + lane;
    value[i] = at < classes ? to_float(logits[at]) : minus_infinity();
  }
  const float own_logit = to_float(logits[label]);
  const Part whole = exponentiate(value);
  if (lane == 0) loss[row] = loss_of(whole, own_logit);
  const float factor = factor_of(whole, whole, scale);
#pragma unroll
  for (int i = 0; i < kWarpElements; ++i) {
    const int at = 32 * i + lane;
    if (at < classes)
      grad[at] = from_float<T>(at == label ? value[i] * factor - scale : value[i] * factor);
  }
}

// A cluster a row ----------------------------------------------------------------------------------
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

template <typename T> struct alignas(kPackBytes) Pack {
  T at[kPackBytes / sizeof(T)];
};

// A block's share of a row: packs that begin at element `first` of the tensor, of which the elements
// from `begin` to `end` are of the row.
struct Share {
  int64_t first;
  int begin, end;
};

// The blocks of a cluster share a row, `share` elements each, counted from the pack that the row
// begins in. Every warp sends its part to all blocks; after one barrier each block has all parts of
// the row.
template <typename T>
__global__ void __launch_bounds__(kThreads, 1)
    cluster_rows(const T* __restrict__ logits, const int64_t* __restrict__ labels, float scale,
                 float* __restrict__ loss, T* __restrict__ grad, int64_t rows, int classes,
                 int share) {
  constexpr int V = kPackBytes / sizeof(T), kPacks = kElements / V;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ alignas(8) uint64_t barrier_word;
  __shared__ Part parts[2][kMostParts];  // of this row and of the next, in turn
  const Pack<T>* const fetched = reinterpret_cast<const Pack<T>*>(shared);
  const uint32_t arrived = shared_address(&barrier_word);
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int rank = cluster_rank(), blocks = cluster_blocks();
  const int64_t step = gridDim.x / blocks, elements = rows * classes;

  auto share_of = [&](int64_t row) {
    const int lead = int(row * classes % V);
    const int64_t first = row * classes - lead + int64_t(rank) * share;
    return Share{first, rank == 0 ? lead : 0, min(share, lead + classes - rank * share)};
  };
  // Elements of a share that a bulk copy fetches: whole packs, as far as the tensor has them.
  auto whole_of = [&](const Share& mine) {
    return int(min(int64_t((mine.end + V - 1) / V), (elements - mine.first) / V)) * V;
  };
  auto fetch_row = [&](int64_t row) {
    if (thread != 0 || row >= rows) return;
    const Share mine = share_of(row);
    fetch(shared, logits + mine.first, whole_of(mine) * int(sizeof(T)), arrived);
  };
  if (thread == 0) barrier_init(arrived);
  fetch_row(blockIdx.x / blocks);
  cluster_sync();  // no block is written to before it has started

  int turn = 0;
  for (int64_t row = blockIdx.x / blocks; row < rows; row += step, turn ^= 1) {
    const Share mine = share_of(row);
    const int whole = whole_of(mine);
    const int64_t label_at = row * classes + labels[row];
    float own_logit = 0.0f;
    if (thread == 0) own_logit = to_float(logits[label_at]);
    const int64_t label = label_at - mine.first;  // in this share, or elsewhere

    float value[kElements];
    barrier_wait(arrived, turn);
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int at = (i * kThreads + thread) * V;
      Pack<T> pack;
      if (at < whole)
        pack = fetched[at / V];
      else
#pragma unroll
        for (int j = 0; j < V; ++j)  // the tensor's last elements, or none
          pack.at[j] = at + j < mine.end ? logits[mine.first + at + j]
                                         : from_float<T>(minus_infinity());
#pragma unroll
      for (int j = 0; j < V; ++j) value[i * V + j] = to_float(pack.at[j]);
      if (at < mine.begin || at + V > mine.end)
#pragma unroll
        for (int j = 0; j < V; ++j)
          if (at + j < mine.begin || at + j >= mine.end) value[i * V + j] = minus_infinity();
    }
    __syncthreads();
    fetch_row(row + step);

    const Part own = exponentiate(value);
    if (lane < blocks) store_remote(&parts[turn][rank * kWarps + warp], lane, own);
    __syncwarp();
    cluster_sync();
    const Part all = joined<kMostParts>(parts[turn], blocks * kWarps);
    if (rank == 0 && thread == 0) loss[row] = loss_of(all, own_logit);
    const float factor = factor_of(own, all, scale);
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int at = (i * kThreads + thread) * V;
      if (at >= mine.end) continue;
      const int label_in = label - at >= 0 && label - at < V ? int(label - at) : -1;
      Pack<T> pack;
#pragma unroll
      for (int j = 0; j < V; ++j) {
        const float probability = value[i * V + j] * factor;
        pack.at[j] = from_float<T>(j == label_in ? probability - scale : probability);
      }
      T* const to = grad + mine.first + at;
      if (at >= mine.begin && at + V <= mine.end)
        __stcs(reinterpret_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&pack));
      else
#pragma unroll
        for (int j = 0; j < V; ++j)
          if (at + j >= mine.begin && at + j < mine.end) to[j] = pack.at[j];
    }
  }
}

// Launching ----------------------------------------------------------------------------------------

int ceil_div(int64_t a, int64_t b) { return int((a + b - 1) / b); }

template <typename T>
void launch(const T* logits, const int64_t* labels, double scale, float* loss, T* grad,
            int64_t rows, int64_t classes, cudaStream_t stream) {
  constexpr int V = kPackBytes / sizeof(T);
  const int count = int(classes);
  if (count <= 32 * kWarpElements) {
    const dim3 block(32, kRowsPerBlock);
    warp_rows<T><<<ceil_div(rows, kRowsPerBlock), block, 0, stream>>>(logits, labels, float(scale),
                                                                       loss, grad, rows, count);
    return;
  }
  const int most = count + V - 1;  // with what lies before the row in its first pack
  const int blocks = ceil_div(most, kShare);
  const int share = ceil_div(ceil_div(most, blocks), V) * V;
  const auto kernel = cluster_rows<T>;
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {unsigned(blocks), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(unsigned(blocks));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kShare * sizeof(T);
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
  cudaLaunchKernelEx(&config, kernel, logits, labels, float(scale), loss, grad, rows, count, share);
}

}  // namespace

extern "C" void softmax_cross_entropy(const float* logits, const int64_t* labels, double scale,
                                      float* loss, float* grad, int64_t rows, int64_t classes,
                                      cudaStream_t stream) {
  launch(logits, labels, scale, loss, grad, rows, classes, stream);
}

extern "C" void softmax_cross_entropy_bf16(const __nv_bfloat16* logits, const int64_t* labels,
                                           double scale, float* loss, __nv_bfloat16* grad,
                                           int64_t rows, int64_t classes, cudaStream_t stream) {
  launch(logits, labels, scale, loss, grad, rows, classes, stream);
}
