// Int4 matmul in CUDA C++ for Hopper: out^T = W^T a^T on wgmma, where the weights are the operand
// that may come from registers. A thread turns nibbles into fp16 there, in the layout that the
// tensor cores expect, while they multiply the weights before. Activations go from memory to shared
// memory to the tensor cores untouched. A block takes 256 columns and 8 to 128 rows. Some of its
// threads keep a ring of stages full, each with a group of 128 k, by bulk tensor copies. Where
// tiles are few, the blocks of a cluster share k, and add up through distributed shared memory in a
// fixed order. If n or a pointer is not aligned as such copies need it, ordinary loads fill stages.

#include <cuda.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

namespace {

constexpr int kGroup = 128;              // k of one scale, and of one stage
constexpr int kColumns = 256;            // of a block: two warpgroups of 128
constexpr int kConsumers = 256;          // threads that multiply
constexpr int kRowBytes = kColumns / 2;  // of weights
constexpr int kWeightBytes = kGroup * kRowBytes;
constexpr int kSharedBytes = 227 * 1024;  // of an SM
constexpr int kSwizzleBytes = 1024;       // alignment that the swizzle of 128 bytes needs
constexpr int kPlainRows = 64;            // of a tile that ordinary loads fill
constexpr int kMostSplits = 8;            // of k: the largest portable cluster
constexpr int kShortK = 4096;             // up to which two blocks on an SM may split k

template <int ROWS> constexpr int kBlocksPerSm = ROWS <= 32 ? 2 : 1;

// A stage: weights [128 k][128 bytes], activations [2 halves of k][ROWS][64 k], scales [256].
template <int ROWS> constexpr int kScalesAt = kWeightBytes + ROWS * kGroup * 2;
template <int ROWS> constexpr int kFilledBytes = kScalesAt<ROWS> + kColumns * 2;
template <int ROWS> constexpr int kStageBytes = kScalesAt<ROWS> + kSwizzleBytes;

// As many stages as fit. Of each block's memory, 1 KiB is reserved, 1 KiB is lost to alignment, and
// 1 KiB is for the barriers.
template <int ROWS>
constexpr int kStages = (kSharedBytes / kBlocksPerSm<ROWS> - 3 * 1024) / kStageBytes<ROWS>;
template <int ROWS> constexpr int kDynamicBytes = kStages<ROWS> * kStageBytes<ROWS> + kSwizzleBytes;

// Threads that fill stages: a warp, of which one lane does it; a warpgroup where registers move
// from it to the others, or where it loads without bulk copies.
template <int ROWS, bool PLAIN> constexpr int kProducers = PLAIN || ROWS == 128 ? 128 : 32;

struct Args {
  const __half* a;
  const uint8_t* b;
  const __half* scales;
  __half* out;
  int m, k, n;
  int column_tiles, tiles;
  bool wide_stores;  // four columns at once
};
struct Maps {
  CUtensorMap a, b, scales;
};

// Shared memory, PTX and barriers -----------------------------------------------------------------

__device__ uint32_t shared_address(const void* at) {
  return uint32_t(__cvta_generic_to_shared(at));
}
__device__ void barrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ void barrier_expect(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
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
__device__ void load_box(uint32_t to, const CUtensorMap* map, int x, int y, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(barrier)
      : "memory");
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
__device__ float4 load_remote(uint32_t at, int rank) {
  uint32_t there;
  float4 v;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(there)
               : "memory");
  return v;
}

// Weights -----------------------------------------------------------------------------------------

__device__ uint32_t sub2(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}
__device__ uint32_t mul2(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}
__device__ uint32_t fma2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
template <uint32_t MASK> __device__ uint32_t nibbles(uint32_t bits) {
  uint32_t d;  // (bits & MASK) | 0x64006400
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(d) : "r"(bits), "n"(MASK), "r"(0x64006400u));
  return d;
}

// `bits` holds four columns' codes of one k, and above them those of the next k. Gives, column by
// column, the weights of both k. The fp16 number 0x6400 | x is 1024 + x, exactly; with the codes in
// the upper nibbles it is 1024 + 16 x, so those are divided by 16.
__device__ void dequantise(uint32_t bits, const uint32_t (&scale)[4], uint32_t& c0, uint32_t& c1,
                           uint32_t& c2, uint32_t& c3) {
  const uint32_t above = bits >> 8;
  const uint32_t from_1032 = 0x64086408u, sixteenth = 0x2C002C00u, minus_72 = 0xD480D480u;
  c0 = mul2(sub2(nibbles<0x000F000Fu>(bits), from_1032), scale[0]);
  c1 = mul2(fma2(nibbles<0x00F000F0u>(bits), sixteenth, minus_72), scale[1]);
  c2 = mul2(sub2(nibbles<0x000F000Fu>(above), from_1032), scale[2]);
  c3 = mul2(fma2(nibbles<0x00F000F0u>(above), sixteenth, minus_72), scale[3]);
}

// Four 8 x 8 matrices of 16 bits, transposed: a thread gets two k of two neighbouring bytes each.
__device__ void load_matrices(uint32_t at, uint32_t (&bits)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared::cta.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(bits[0]), "=r"(bits[1]), "=r"(bits[2]), "=r"(bits[3])
               : "r"(at)
               : "memory");
}

// Tensor cores ------------------------------------------------------------------------------------

__device__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> __device__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

#define SUMS4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SUMS16(i) SUMS4(i), SUMS4(i + 4), SUMS4(i + 8), SUMS4(i + 12)
#define OPERANDS "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "l"(a)

// d += w · a^T, of 64 columns of weights and N rows of activations, over 16 k.
__device__ void wgmma(float (&d)[4], const uint32_t* w, uint64_t a) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, "
      "1, 1, 1, 0;"
      : SUMS4(0)
      : OPERANDS);
}
__device__ void wgmma(float (&d)[8], const uint32_t* w, uint64_t a) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7}, "
      "{%8, %9, %10, %11}, %12, 1, 1, 1, 0;"
      : SUMS4(0), SUMS4(4)
      : OPERANDS);
}
__device__ void wgmma(float (&d)[16], const uint32_t* w, uint64_t a) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, "
      "%9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19}, %20, 1, 1, 1, 0;"
      : SUMS16(0)
      : OPERANDS);
}
__device__ void wgmma(float (&d)[32], const uint32_t* w, uint64_t a) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, "
      "%9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, "
      "%27, %28, %29, %30, %31}, {%32, %33, %34, %35}, %36, 1, 1, 1, 0;"
      : SUMS16(0), SUMS16(16)
      : OPERANDS);
}
__device__ void wgmma(float (&d)[64], const uint32_t* w, uint64_t a) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, "
      "%9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, "
      "%27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, "
      "%45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, "
      "%63}, {%64, %65, %66, %67}, %68, 1, 1, 1, 0;"
      : SUMS16(0), SUMS16(16), SUMS16(32), SUMS16(48)
      : OPERANDS);
}

// A matrix of rows of 128 bytes, swizzled, k along the rows.
__device__ uint64_t descriptor(uint32_t at) {
  return uint64_t(at >> 4 & 0x3FFF) | uint64_t(1) << 16 | uint64_t(64) << 32 | uint64_t(1) << 62;
}

// The parts of the kernel -------------------------------------------------------------------------

// A block's ring of stages in shared memory, and its place in the work.
struct Ring {
  unsigned char* stages;
  uint32_t at, full, empty;     // addresses of the stages and of their barriers
  int first_group, last_group;  // of k: this block's
  int first_tile, tile_step;
};

// A position in the ring. The parity is that of its turns.
template <int STAGES> struct Position {
  int stage = 0, parity = 0;
  __device__ void advance() {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
};

struct Tile {
  int column, row;
};
template <int ROWS> __device__ Tile tile_at(const Args& p, int tile) {
  return {tile % p.column_tiles * kColumns, tile / p.column_tiles * ROWS};
}

// Where 128 bytes a row are swizzled: byte `x` of row `y`.
__device__ uint32_t swizzled(uint32_t y, uint32_t x) { return y * 128 + (x ^ (y & 7) << 4); }

template <int ROWS>
__device__ void fill_by_copies(const Maps& maps, Tile tile, int group, uint32_t to,
                               uint32_t barrier) {
  const int k = group * kGroup;
  barrier_expect(barrier, kFilledBytes<ROWS>);
  load_box(to, &maps.b, tile.column / 2, k, barrier);
  load_box(to + kWeightBytes, &maps.a, k, tile.row, barrier);
  load_box(to + kWeightBytes + ROWS * 128, &maps.a, k + 64, tile.row, barrier);
  load_box(to + kScalesAt<ROWS>, &maps.scales, tile.column, group, barrier);
}

// Does by ordinary loads of 128 threads what the copies do, zeros beyond the edges included.
template <int ROWS>
__device__ void fill_by_loads(const Args& p, Tile tile, int group, unsigned char* stage) {
  const int thread = threadIdx.x % 128;
  const int64_t width = p.n / 2, k = int64_t(group) * kGroup;
  const uint16_t* const from_a = reinterpret_cast<const uint16_t*>(p.a);
  const uint16_t* const from_scales = reinterpret_cast<const uint16_t*>(p.scales);
#pragma unroll 4
  for (int i = thread; i < kWeightBytes; i += 128) {
    const int y = i / kRowBytes, x = i % kRowBytes, at = tile.column / 2 + x;
    stage[swizzled(y, x)] = at < width ? p.b[(k + y) * width + at] : uint8_t(0);
  }
  uint16_t* const a = reinterpret_cast<uint16_t*>(stage + kWeightBytes);
#pragma unroll 4
  for (int i = thread; i < ROWS * kGroup; i += 128) {
    const int y = i / kGroup, x = i % kGroup, row = tile.row + y;
    a[(x / 64 * ROWS * 128 + swizzled(y, x % 64 * 2)) / 2] =
        row < p.m ? from_a[int64_t(row) * p.k + k + x] : uint16_t(0);
  }
  uint16_t* const scales = reinterpret_cast<uint16_t*>(stage + kScalesAt<ROWS>);
  for (int x = thread; x < kColumns; x += 128) {
    const int at = tile.column + x;
    scales[x] = at < p.n ? from_scales[int64_t(group) * p.n + at] : uint16_t(0);
  }
  // The tensor cores read shared memory by another way than the threads that wrote it.
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Fills the stages of all of the block's tiles, each once the threads that multiply have left it.
template <int ROWS, bool PLAIN>
__device__ void produce(const Args& p, const Maps& maps, const Ring& ring) {
  Position<kStages<ROWS>> to;
  for (int tile = ring.first_tile; tile < p.tiles; tile += ring.tile_step)
    for (int group = ring.first_group; group < ring.last_group; ++group) {
      const int offset = to.stage * kStageBytes<ROWS>;
      const uint32_t full = ring.full + 8 * to.stage;
      barrier_wait(ring.empty + 8 * to.stage, to.parity ^ 1);
      if constexpr (PLAIN) {
        fill_by_loads<ROWS>(p, tile_at<ROWS>(p, tile), group, ring.stages + offset);
        barrier_arrive(full);
      } else {
        fill_by_copies<ROWS>(maps, tile_at<ROWS>(p, tile), group, ring.at + offset, full);
      }
      to.advance();
    }
}

// The scales of four columns, each twice beside itself.
__device__ void load_scales(uint32_t at, uint32_t (&scale)[4]) {
  uint32_t pair[2];
  asm volatile("ld.shared::cta.v2.b32 {%0, %1}, [%2];"
               : "=r"(pair[0]), "=r"(pair[1])
               : "r"(at)
               : "memory");
#pragma unroll
  for (int i = 0; i < 4; ++i) scale[i] = __byte_perm(pair[i / 2], 0, i % 2 ? 0x3232 : 0x1010);
}

// Adds the product of one stage, a quarter of its k at a time. The weights of two quarters have
// registers: one is made while the tensor cores work on the other. `left` is the barrier of the
// stage before, which they have left once this stage's first quarter is under way; 0 for none.
template <int ROWS>
__device__ void multiply_stage(uint32_t stage, uint32_t left, uint32_t (&weights)[2][2][2][4],
                               float (&sum)[2][ROWS / 2]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t a = stage + kWeightBytes, matrices = stage + swizzled(lane, warp * 16);
  uint32_t scale[4];
  load_scales(stage + kScalesAt<ROWS> + (warp * 32 + lane / 4 * 4) * 2, scale);
#pragma unroll
  for (int quarter = 0; quarter < 4; ++quarter) {
    auto& w = weights[quarter % 2];  // [16 k][columns][operand]
    uint32_t bits[4];
    load_matrices(matrices + quarter * 32 * kRowBytes, bits);
#pragma unroll
    for (int i = 0; i < 4; ++i)  // of 8 k
      dequantise(bits[i], scale, w[i / 2][0][i % 2 * 2], w[i / 2][0][i % 2 * 2 + 1],
                 w[i / 2][1][i % 2 * 2], w[i / 2][1][i % 2 * 2 + 1]);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 2; ++i) {  // of 16 k
      const uint64_t rows = descriptor(a + quarter / 2 * ROWS * 128 + (quarter % 2 * 2 + i) * 32);
      wgmma(sum[0], w[i][0], rows);
      wgmma(sum[1], w[i][1], rows);
    }
    wgmma_commit();
    wgmma_wait<1>();
    if (quarter == 0 && left != 0 && lane == 0) barrier_arrive(left);
  }
}

// The sums of lane 4g + t are, for i below ROWS / 4, of row 8 (i / 2) + 2t + i % 2 and of columns
// 4g ... 4g + 3 of the warp's 32: the tensor cores take those as their rows g and g + 8, twice.
template <int N> __device__ float4 four_columns(const float (&sum)[2][N], int i) {
  const int at = i / 2 * 4 + i % 2;
  return make_float4(sum[0][at], sum[0][at + 2], sum[1][at], sum[1][at + 2]);
}

__device__ void store_columns(const Args& p, Tile tile, int i, float4 v) {
  const int lane = threadIdx.x % 32;
  const int row = tile.row + i / 2 * 8 + lane % 4 * 2 + i % 2;
  const int column = tile.column + threadIdx.x / 32 * 32 + lane / 4 * 4;
  if (row >= p.m || column >= p.n) return;
  const __half2 pair[2] = {__floats2half2_rn(v.x, v.y), __floats2half2_rn(v.z, v.w)};
  __half* const at = p.out + int64_t(row) * p.n + column;
  if (p.wide_stores) {
    *reinterpret_cast<uint2*>(at) = *reinterpret_cast<const uint2*>(pair);
    return;
  }
  at[0] = __low2half(pair[0]), at[1] = __high2half(pair[0]);
  if (column + 2 < p.n) at[2] = __low2half(pair[1]), at[3] = __high2half(pair[1]);  // n is even
}

// Adds up the sums of all blocks of the cluster, in their order. Each block adds and stores a part
// of the tile, from what all have put where their stages were.
template <int ROWS>
__device__ void add_splits(const Args& p, Tile tile, const Ring& ring,
                           const float (&sum)[2][ROWS / 2]) {
  const int rank = cluster_rank(), splits = cluster_blocks();
  // Every warp has waited for every stage, so no copy into this block's memory is under way.
  asm volatile("bar.sync 1, %0;" ::"n"(kConsumers) : "memory");
  float4* const parts = reinterpret_cast<float4*>(ring.stages);
#pragma unroll
  for (int i = 0; i < ROWS / 4; ++i)
    parts[i * kConsumers + threadIdx.x] = four_columns(sum, i);
  cluster_sync();
  for (int i = ROWS / 4 * rank / splits; i < ROWS / 4 * (rank + 1) / splits; ++i) {
    const uint32_t at = ring.at + (i * kConsumers + threadIdx.x) * sizeof(float4);
    float4 total = make_float4(0, 0, 0, 0);
    for (int split = 0; split < splits; ++split) {
      const float4 part = load_remote(at, split);
      total.x += part.x, total.y += part.y, total.z += part.z, total.w += part.w;
    }
    store_columns(p, tile, i, total);
  }
  cluster_sync();  // no block may end while others read its memory
}

// Multiplies and stores all of the block's tiles.
template <int ROWS> __device__ void consume(const Args& p, const Ring& ring) {
  Position<kStages<ROWS>> from;
  for (int index = ring.first_tile; index < p.tiles; index += ring.tile_step) {
    float sum[2][ROWS / 2];
#pragma unroll
    for (int i = 0; i < ROWS / 2; ++i) sum[0][i] = sum[1][i] = 0.0f;
    uint32_t weights[2][2][2][4];
    uint32_t left = 0;
    for (int group = ring.first_group; group < ring.last_group; ++group) {
      barrier_wait(ring.full + 8 * from.stage, from.parity);
      multiply_stage<ROWS>(ring.at + from.stage * kStageBytes<ROWS>, left, weights, sum);
      left = ring.empty + 8 * from.stage;
      from.advance();
    }
    wgmma_wait<0>();
    if (left != 0 && threadIdx.x % 32 == 0) barrier_arrive(left);

    const Tile tile = tile_at<ROWS>(p, index);
    if (cluster_blocks() > 1) {
      add_splits<ROWS>(p, tile, ring, sum);
    } else {
#pragma unroll
      for (int i = 0; i < ROWS / 4; ++i) store_columns(p, tile, i, four_columns(sum, i));
    }
  }
}

// The kernel --------------------------------------------------------------------------------------

// The blocks of a cluster split the k of one tile. Without clusters a block may take several tiles.
template <int ROWS, bool PLAIN>
__global__ void __launch_bounds__(kConsumers + kProducers<ROWS, PLAIN>, kBlocksPerSm<ROWS>)
    multiply(const __grid_constant__ Args p, const __grid_constant__ Maps maps) {
  extern __shared__ unsigned char shared[];
  __shared__ alignas(8) uint64_t barriers[2 * kStages<ROWS>];
  const int rank = cluster_rank(), splits = cluster_blocks(), groups = p.k / kGroup;
  Ring ring;
  ring.at = (shared_address(shared) + kSwizzleBytes - 1) / kSwizzleBytes * kSwizzleBytes;
  ring.stages = shared + (ring.at - shared_address(shared));
  ring.full = shared_address(barriers), ring.empty = ring.full + 8 * kStages<ROWS>;
  ring.first_group = groups * rank / splits, ring.last_group = groups * (rank + 1) / splits;
  ring.first_tile = blockIdx.x / splits, ring.tile_step = gridDim.x / splits;

  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages<ROWS>; ++i) {
      barrier_init(ring.full + 8 * i, PLAIN ? kProducers<ROWS, PLAIN> : 1);
      barrier_init(ring.empty + 8 * i, kConsumers / 32);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();

  if (threadIdx.x < kConsumers) {
    if constexpr (ROWS == 128) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    consume<ROWS>(p, ring);
    return;
  }
  if constexpr (ROWS == 128) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
  if (PLAIN || threadIdx.x == kConsumers) produce<ROWS, PLAIN>(p, maps, ring);
  __syncwarp();
  if (splits > 1) {  // as `add_splits` does, which needs all threads of the cluster
    cluster_sync();
    cluster_sync();
  }
}

// Launching ---------------------------------------------------------------------------------------

using Encode = decltype(&cuTensorMapEncodeTiled);

Encode encoder() {
  static const Encode found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault,
                                     &result);
    return reinterpret_cast<Encode>(function);
  }();
  return found;
}

// Boxes of [height, width] of a matrix [rows, cols].
bool make_map(CUtensorMap* map, CUtensorMapDataType type, int item, const void* at, uint64_t rows,
              uint64_t cols, uint32_t height, uint32_t width, bool swizzle) {
  if (encoder() == nullptr) return false;
  const cuuint64_t sizes[] = {cols, rows}, strides[] = {cols * item};
  const cuuint32_t box[] = {width, height}, steps[] = {1, 1};
  return encoder()(map, type, 2, const_cast<void*>(at), sizes, strides, box, steps,
                   CU_TENSOR_MAP_INTERLEAVE_NONE,
                   swizzle ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
                   CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// False if such maps cannot be made: then ordinary loads do.
template <int ROWS> bool make_maps(const Args& p, Maps* maps) {
  const auto fp16 = CU_TENSOR_MAP_DATA_TYPE_FLOAT16, bytes = CU_TENSOR_MAP_DATA_TYPE_UINT8;
  const uintptr_t places = uintptr_t(p.a) | uintptr_t(p.b) | uintptr_t(p.scales);
  return p.n % 32 == 0 && places % 16 == 0 &&  // strides and addresses are multiples of 16 bytes
         make_map(&maps->a, fp16, 2, p.a, p.m, p.k, ROWS, 64, true) &&
         make_map(&maps->b, bytes, 1, p.b, p.k, p.n / 2, kGroup, kRowBytes, true) &&
         make_map(&maps->scales, fp16, 2, p.scales, p.k / kGroup, p.n, 1, kColumns, false);
}

// How many blocks split the k of a tile: the largest power of two with which all run at once, one
// on an SM. Where k is short, starting takes most of a block's time, and two on an SM are faster
// (on an H200, for one row, 14.5 against 15.1 us for 4,096 k, but 59 against 44 us for 16,384).
int splits_of(const Args& p, int blocks_per_sm, int sms) {
  const int slots = p.k <= kShortK ? sms * blocks_per_sm : sms;
  int splits = 1;
  while (2 * splits <= kMostSplits && 2 * splits <= p.k / kGroup && 2 * splits * p.tiles <= slots)
    splits *= 2;
  return splits;
}

template <int ROWS, bool PLAIN> void launch(Args p, const Maps& maps, cudaStream_t stream) {
  const auto kernel = multiply<ROWS, PLAIN>;
  constexpr int kBytes = kDynamicBytes<ROWS>;
  static const cudaError_t allowed =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (allowed != cudaSuccess) return;
  int device = 0, sms = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
  p.column_tiles = (p.n + kColumns - 1) / kColumns;
  p.tiles = p.column_tiles * ((p.m + ROWS - 1) / ROWS);
  const int splits = splits_of(p, kBlocksPerSm<ROWS>, sms), slots = sms * kBlocksPerSm<ROWS>;

  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {unsigned(splits), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(unsigned(splits == 1 && p.tiles > slots ? slots : p.tiles * splits));
  config.blockDim = dim3(kConsumers + kProducers<ROWS, PLAIN>);
  config.dynamicSmemBytes = kBytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  cudaLaunchKernelEx(&config, kernel, p, maps);
}

template <int ROWS> void start(const Args& p, cudaStream_t stream) {
  Maps maps = {};
  if (make_maps<ROWS>(p, &maps))
    launch<ROWS, false>(p, maps, stream);
  else
    launch<kPlainRows, true>(p, maps, stream);
}

}  // namespace

extern "C" void int4_matmul(const __half* a, const uint8_t* b_packed, const __half* scales,
                            __half* out, int64_t m, int64_t k, int64_t n, cudaStream_t stream) {
  const bool wide_stores = n % 4 == 0 && uintptr_t(out) % 8 == 0;
  const Args p = {a, b_packed, scales, out, int(m), int(k), int(n), 0, 0, wide_stores};
  if (m <= 8) return start<8>(p, stream);
  if (m <= 16) return start<16>(p, stream);
  if (m <= 32) return start<32>(p, stream);
  if (m <= 64) return start<64>(p, stream);
  start<128>(p, stream);
}
