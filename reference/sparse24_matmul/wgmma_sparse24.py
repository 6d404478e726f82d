"""2:4 sparse matmul in CUDA C++ for Hopper: out^T = w x^T on the sparse tensor cores.

`wgmma.mma_async.sp` takes the two weights that each group of four keeps, two bits for the place of
each, and `x` in full. The weights are the left operand, so the product is turned around: 64 columns
of `out` are the rows of an instruction, and up to 256 rows of `x` its columns.

The setup stores the weights as units of 64 columns and 64 k, byte for byte as the tensor cores read
them from shared memory, and behind them one word of places for each of the 128 threads that
multiply them. A unit is one contiguous copy. Tiles of `x` come through a tensor map. One warp keeps
a ring of stages full; a warpgroup for each 64 columns multiplies. For many rows, pairs of blocks
load each tile of `x` once for both. For few rows, the blocks of a cluster share k instead, and add
up through distributed shared memory in a fixed order.

A setup is Python's, so the source in CUDA is a string here, which nvcc compiles at import.
"""

import ctypes
import os
import subprocess
import tempfile
from functools import cache

import torch

UNIT = 64
"""Columns of `out`, and k, of a unit of packed weights."""
STEP = 2 * UNIT
"""Packed k is a multiple of two units: where rows are few, a stage takes two at once."""


def _places(groups):
    """The places of the two weights that groups of four keep, in ascending order: [..., 2].

    A group of fewer keeps zeros as well: the hardware needs two places that differ.
    """
    is_kept = groups != 0
    at = [is_kept[..., place] for place in range(4)]
    first = torch.where(at[0], 0, torch.where(at[1], 1, 2))
    second = torch.where(at[3], 3, torch.where(at[2], 2, 1))
    return torch.stack((first, torch.where(second > first, second, 3)), dim=-1)


def pack(w):
    """Units of weights: bytes [n / 64, k / 64, 4096 + 512], padded with zeros.

    The first 4096 are 64 rows of 32 weights, of which each 16 bytes are swizzled: in the row r of
    eight, chunk c is at c ^ (r / 2). Then, for thread 4g + t of warp v, a word: nibbles with the
    places of the groups 4t to 4t + 3 of row 16v + g, and above those of row 16v + g + 8.
    """
    n, k = w.shape
    groups = torch.nn.functional.pad(w, (0, -k % STEP, 0, -n % UNIT)).unflatten(1, (-1, 4))
    places = _places(groups)
    rows, units = len(groups) // UNIT, groups.shape[1] * 4 // UNIT

    # [row / 64, eight of rows, pair of rows, row, unit, chunk, weight]
    values = groups.gather(2, places).reshape(rows, 8, 4, 2, units, 4, 8)
    values = values.permute(0, 4, 1, 2, 3, 5, 6)
    pair, chunk = torch.arange(4)[:, None], torch.arange(4)[None, :]
    swizzled = (pair ^ chunk)[:, None, :, None].expand(rows, units, 8, 4, 2, 4, 8)
    values = values.gather(5, swizzled.to(w.device)).flatten(2)

    # [row / 64, warp, row / 8, row, unit, thread, group]
    nibbles = (places[..., 0] | places[..., 1] << 2).reshape(rows, 4, 2, 8, units, 4, 4)
    bits = 16 * torch.arange(2)[:, None, None, None, None] + 4 * torch.arange(4)
    words = (nibbles << bits.to(w.device)).sum(dim=(2, 6))
    words = words.permute(0, 3, 1, 2, 4).flatten(2).to(torch.int32)  # wraps, as bits should
    return torch.cat((values.contiguous().view(torch.uint8), words.view(torch.uint8)), dim=2)


def _instruction(rows):
    """d += w x^T, of 64 columns of weights and some rows of `x`, over 32 k.

    The selector says which threads of four hold the places: the first two, or the last two.
    """
    sums = range(rows // 2)
    operands = ", ".join(f"%{rows // 2 + i}" for i in range(4))
    return f"""
template <int SELECTOR>
__device__ void wgmma(float (&d)[{rows // 2}], uint64_t w, uint64_t x, uint32_t places) {{
  asm volatile(
      "wgmma.mma_async.sp.sync.aligned.m64n{rows}k32.f32.f16.f16 "
      "{{{", ".join(f"%{i}" for i in sums)}}}, {operands}, 1, 1, 1, 0, 0;"
      : {", ".join(f'"+f"(d[{i}])' for i in sums)}
      : "l"(w), "l"(x), "r"(places), "n"(SELECTOR));
}}"""


SOURCE = r"""
#include <cuda.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

namespace {

constexpr int kUnit = 64;                        // columns and k of a unit of weights
constexpr int kWeightBytes = kUnit * kUnit;      // of a unit: half of its weights, 2 bytes each
constexpr int kUnitBytes = kWeightBytes + 512;   // and the places
constexpr int kRowBytes = 128;                   // of 64 k of x
constexpr int kSharedBytes = 227 * 1024;         // of an SM
constexpr int kSwizzleBytes = 1024;              // alignment that the swizzle of 128 bytes needs
constexpr int kMostSplits = 8;                   // of k: the largest portable cluster
constexpr int kGroupRows = 8;                    // row tiles that are taken together, for L2

// A way to cut the work. A block takes 64 WARPGROUPS columns and ROWS rows, UNITS * 64 k at a time.
// SHARE blocks of a cluster load each tile of x together.
template <int WARPGROUPS_, int ROWS_, int UNITS_, int SHARE_> struct Cut {
  static constexpr int WARPGROUPS = WARPGROUPS_, ROWS = ROWS_, UNITS = UNITS_, SHARE = SHARE_;
  static constexpr int kColumns = WARPGROUPS * kUnit;
  static constexpr int kConsumers = WARPGROUPS * 128;  // threads that multiply
  // A warp fills stages. Where sums take most registers, it is a warpgroup, which gives its own to
  // the others.
  static constexpr bool kMoveRegisters = ROWS == 256;
  static constexpr int kThreads = kConsumers + (kMoveRegisters ? 128 : 32);

  // A stage: x [UNITS][ROWS][64 k], weights [WARPGROUPS][UNITS][unit].
  static constexpr int kWeightsAt = UNITS * ROWS * kRowBytes;
  static constexpr int kFilledBytes = kWeightsAt + WARPGROUPS * UNITS * kUnitBytes;
  static constexpr int kStageBytes =
      (kFilledBytes + kSwizzleBytes - 1) / kSwizzleBytes * kSwizzleBytes;

  // Results leave through shared memory: [WARPGROUPS][kBuffers][kOutRows][64 columns].
  static constexpr int kOutRows = ROWS < 32 ? ROWS : 32, kBufferBytes = kOutRows * kRowBytes;
  static constexpr int kBuffers = ROWS > 32 ? 2 : 1;
  static constexpr int kOutBytes = WARPGROUPS * kBuffers * kBufferBytes;

  // As many stages as fit. Of each block's memory, 1 KiB is reserved, 1 KiB is lost to alignment,
  // and 1 KiB is for the barriers.
  static constexpr int kStages = (kSharedBytes - 3 * 1024 - kOutBytes) / kStageBytes;
  static constexpr int kDynamicBytes = kStages * kStageBytes + kOutBytes + kSwizzleBytes;
  static_assert(kStages >= 2 && (SHARE == 1 || ROWS / SHARE % 8 == 0));
  static_assert(kConsumers * ROWS * 2 <= kStages * kStageBytes || SHARE > 1 || ROWS == 256);
};

struct Args {
  const unsigned char* weights;
  __half* out;
  int m, n;
  int blocks, units;  // of 64 columns, and of 64 k
  int column_steps, row_tiles;
  bool by_map;  // results leave by bulk copies
};
struct Maps {
  CUtensorMap x, out;
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
__device__ void barrier_arrive(uint32_t barrier, int rank) {  // that of a block of the cluster
  asm volatile(
      "{\n.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier),
      "r"(rank)
      : "memory");
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
// To the same place in each block of a mask, whose own barriers count the bytes.
__device__ void load_box_for(uint16_t blocks, uint32_t to, const CUtensorMap* map, int x, int y,
                             uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(barrier), "h"(blocks)
      : "memory");
}
__device__ void load_bytes(uint32_t to, const void* from, int bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier)
      : "memory");
}
__device__ void store_box(const CUtensorMap* map, int x, int y, uint32_t from) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
      "r"(x), "r"(y), "r"(from)
      : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Until all but N of this thread's stores have read shared memory.
template <int N> __device__ void wait_for_stores() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}
__device__ void named_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
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
__device__ uint32_t load_word(uint32_t at) {
  uint32_t word;
  asm volatile("ld.shared::cta.b32 %0, [%1];" : "=r"(word) : "r"(at) : "memory");
  return word;
}

// Tensor cores ------------------------------------------------------------------------------------

__device__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> __device__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
INSTRUCTIONS

// Matrices with k along their rows, in eights of rows: of 128 bytes, swizzled by 128, or of 64.
__device__ uint64_t descriptor_of_x(uint32_t at) {
  return uint64_t(at >> 4 & 0x3FFF) | uint64_t(1) << 16 | uint64_t(64) << 32 | uint64_t(1) << 62;
}
__device__ uint64_t descriptor_of_weights(uint32_t at) {
  return uint64_t(at >> 4 & 0x3FFF) | uint64_t(1) << 16 | uint64_t(32) << 32 | uint64_t(2) << 62;
}

// The parts of the kernel -------------------------------------------------------------------------

// A block's ring of stages in shared memory, and its place in the work.
struct Ring {
  unsigned char* stages;
  uint32_t at, full, empty;     // addresses of the stages and of their barriers
  int first_stage, last_stage;  // of k: this block's
  int first_tile, tile_step, tiles;
  int rank, splits;
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
// Blocks at work at the same time should read few rows and few columns: tiles go down the rows of a
// group, then to the next columns.
template <class C> __device__ Tile tile_at(const Args& p, const Ring& ring, int index) {
  const int in_group = kGroupRows * p.column_steps, first = index / in_group * kGroupRows;
  const int rows = min(kGroupRows, p.row_tiles - first), at = index % in_group;
  const int column = at / rows * C::SHARE + (C::SHARE > 1 ? ring.rank : 0);
  return {column * C::kColumns, (first + at % rows) * C::ROWS};
}

template <class C>
__device__ void fill(const Args& p, const Maps& maps, const Ring& ring, Tile tile, int stage,
                     uint32_t to, uint32_t barrier) {
  constexpr int kRows = C::ROWS / C::SHARE;
  barrier_expect(barrier, C::kFilledBytes);
  const int unit = stage * C::UNITS, first = C::SHARE > 1 ? ring.rank * kRows : 0;
#pragma unroll
  for (int i = 0; i < C::UNITS; ++i) {
    const uint32_t x = to + (i * C::ROWS + first) * kRowBytes;
    if constexpr (C::SHARE > 1)
      load_box_for((1 << C::SHARE) - 1, x, &maps.x, (unit + i) * kUnit, tile.row + first, barrier);
    else
      load_box(x, &maps.x, (unit + i) * kUnit, tile.row, barrier);
  }
#pragma unroll
  for (int i = 0; i < C::WARPGROUPS; ++i) {
    const int block = min(tile.column / kUnit + i, p.blocks - 1);  // beyond n: not stored
    load_bytes(to + C::kWeightsAt + i * C::UNITS * kUnitBytes,
               p.weights + (int64_t(block) * p.units + unit) * kUnitBytes, C::UNITS * kUnitBytes,
               barrier);
  }
}

// Fills the stages of all of the block's tiles, each once the threads that multiply have left it.
template <class C> __device__ void produce(const Args& p, const Maps& maps, const Ring& ring) {
  Position<C::kStages> to;
  for (int index = ring.first_tile; index < ring.tiles; index += ring.tile_step) {
    const Tile tile = tile_at<C>(p, ring, index);
#pragma unroll 1
    for (int stage = ring.first_stage; stage < ring.last_stage; ++stage) {
      barrier_wait(ring.empty + 8 * to.stage, to.parity ^ 1);
      fill<C>(p, maps, ring, tile, stage, ring.at + to.stage * C::kStageBytes,
              ring.full + 8 * to.stage);
      to.advance();
    }
  }
}

// Says that a warp has left a stage, to each block that fills it.
template <class C> __device__ void leave(uint32_t barrier) {
  const int lane = threadIdx.x % 32;
  if constexpr (C::SHARE > 1) {
    if (lane < C::SHARE) barrier_arrive(barrier, lane);
  } else {
    if (lane == 0) barrier_arrive(barrier);
  }
}

// Adds the product of one stage. `left` is the barrier of the stage before, which the tensor cores
// have left once they are at this one; 0 for none.
template <class C>
__device__ void multiply_stage(uint32_t stage, uint32_t left, uint32_t (&places)[C::UNITS],
                               float (&sum)[C::ROWS / 2]) {
  const uint32_t weights = stage + C::kWeightsAt + threadIdx.x / 128 * C::UNITS * kUnitBytes;
#pragma unroll
  for (int i = 0; i < C::UNITS; ++i)
    places[i] = load_word(weights + i * kUnitBytes + kWeightBytes + threadIdx.x % 128 * 4);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < C::UNITS; ++i) {
    const uint32_t w = weights + i * kUnitBytes, x = stage + i * C::ROWS * kRowBytes;
    wgmma<0>(sum, descriptor_of_weights(w), descriptor_of_x(x), places[i]);
    wgmma<1>(sum, descriptor_of_weights(w + 32), descriptor_of_x(x + 64), places[i]);
  }
  wgmma_commit();
  wgmma_wait<1>();
  if (left != 0) leave<C>(left);
}

// The sums 4j ... 4j + 3 of lane 4g + t are of rows 8j + 2t and 8j + 2t + 1, first for column g of
// the warp's 16, then for column g + 8.
template <class C> __device__ void store_sums(const Args& p, Tile tile, int j, float4 v) {
  const int lane = threadIdx.x % 32, row = tile.row + j * 8 + lane % 4 * 2;
  const int column = tile.column + threadIdx.x / 32 * 16 + lane / 4;
  __half* const at = p.out + int64_t(row) * p.n + column;
  const bool left = column < p.n, right = column + 8 < p.n;
  if (row < p.m) {
    if (left) at[0] = __float2half_rn(v.x);
    if (right) at[8] = __float2half_rn(v.z);
  }
  if (row + 1 < p.m) {
    if (left) at[p.n] = __float2half_rn(v.y);
    if (right) at[p.n + 8] = __float2half_rn(v.w);
  }
}

// Adds up the sums of all blocks of the cluster, in their order. Each block adds and stores a part
// of the tile, from what all have put where their stages were.
template <class C>
__device__ void add_splits(const Args& p, Tile tile, const Ring& ring,
                           const float (&sum)[C::ROWS / 2]) {
  // Every warp has waited for every stage, so no copy into this block's memory is under way.
  named_sync(1, C::kConsumers);
  float4* const parts = reinterpret_cast<float4*>(ring.stages);
#pragma unroll
  for (int j = 0; j < C::ROWS / 8; ++j)
    parts[j * C::kConsumers + threadIdx.x] =
        make_float4(sum[4 * j], sum[4 * j + 1], sum[4 * j + 2], sum[4 * j + 3]);
  cluster_sync();
  const int first = C::ROWS / 8 * ring.rank / ring.splits;
  const int last = C::ROWS / 8 * (ring.rank + 1) / ring.splits;
  for (int j = first; j < last; ++j) {
    const uint32_t at = ring.at + (j * C::kConsumers + threadIdx.x) * sizeof(float4);
    float4 total = make_float4(0, 0, 0, 0);
    for (int split = 0; split < ring.splits; ++split) {
      const float4 part = load_remote(at, split);
      total.x += part.x, total.y += part.y, total.z += part.z, total.w += part.w;
    }
    store_sums<C>(p, tile, j, total);
  }
  cluster_sync();  // no block may end while others read its memory
}

__device__ uint32_t half_pair(float a, float b) {
  const __half2 pair = __floats2half2_rn(a, b);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Four 8 x 8 matrices of 16 bits, transposed: lane 8i + r gives the address of row r of matrix i.
__device__ void store_matrices(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared::cta.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
      "r"(a), "r"(b), "r"(c), "r"(d)
      : "memory");
}
__device__ void store_matrices(uint32_t to, uint32_t a, uint32_t b) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared::cta.b16 [%0], {%1, %2};" ::"r"(to),
               "r"(a), "r"(b)
               : "memory");
}

// Turns the sums around in shared memory, some rows of 64 columns at a time, and copies from there.
template <class C>
__device__ void store_by_map(const Maps& maps, Tile tile, const Ring& ring,
                             const float (&sum)[C::ROWS / 2]) {
  const int warpgroup = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const bool copies = threadIdx.x % 128 == 0;
  const uint32_t buffers = ring.at + C::kStages * C::kStageBytes +
                           warpgroup * C::kBuffers * C::kBufferBytes;
  // Matrices 0 and 1 are of 8 rows of x, 2 and 3 of the next 8; each 16 bytes are swizzled.
  const uint32_t to = (lane / 16 * 8 + lane % 8) * kRowBytes +
                      ((warp * 32 + lane / 8 % 2 * 16) ^ lane % 8 << 4);
#pragma unroll
  for (int i = 0; i < C::ROWS / C::kOutRows; ++i) {
    const uint32_t buffer = buffers + i % C::kBuffers * C::kBufferBytes;
    if (copies && i == 0) wait_for_stores<0>();
    if (copies && i >= C::kBuffers) wait_for_stores<C::kBuffers - 1>();
    named_sync(2 + warpgroup, 128);
    if constexpr (C::kOutRows == 8) {
      store_matrices(buffer + to % 1024, half_pair(sum[0], sum[1]), half_pair(sum[2], sum[3]));
    } else {
#pragma unroll
      for (int j = 0; j < C::kOutRows; j += 16) {
        const float* const v = sum + (i * C::kOutRows + j) / 2;
        store_matrices(buffer + j * kRowBytes + to, half_pair(v[0], v[1]), half_pair(v[2], v[3]),
                       half_pair(v[4], v[5]), half_pair(v[6], v[7]));
      }
    }
    // Copies read shared memory by another way than the threads that wrote it.
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    named_sync(2 + warpgroup, 128);
    if (copies)
      store_box(&maps.out, tile.column + warpgroup * kUnit, tile.row + i * C::kOutRows, buffer);
  }
}

// Multiplies and stores all of the block's tiles.
template <class C> __device__ void consume(const Args& p, const Maps& maps, const Ring& ring) {
  Position<C::kStages> from;
  for (int index = ring.first_tile; index < ring.tiles; index += ring.tile_step) {
    float sum[C::ROWS / 2];
#pragma unroll
    for (int i = 0; i < C::ROWS / 2; ++i) sum[i] = 0.0f;
    // The tensor cores may still read the places of one stage when those of the next are loaded.
    uint32_t places[2][C::UNITS];
    uint32_t left = 0;
    for (int stage = ring.first_stage; stage < ring.last_stage; stage += 2)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (stage + i == ring.last_stage) break;
        barrier_wait(ring.full + 8 * from.stage, from.parity);
        multiply_stage<C>(ring.at + from.stage * C::kStageBytes, left, places[i], sum);
        left = ring.empty + 8 * from.stage;
        from.advance();
      }
    wgmma_wait<0>();
    if (left != 0) leave<C>(left);

    const Tile tile = tile_at<C>(p, ring, index);
    if (C::SHARE == 1 && ring.splits > 1) {
      add_splits<C>(p, tile, ring, sum);
    } else if (p.by_map) {
      store_by_map<C>(maps, tile, ring, sum);
    } else {
#pragma unroll
      for (int j = 0; j < C::ROWS / 8; ++j)
        store_sums<C>(p, tile, j,
                      make_float4(sum[4 * j], sum[4 * j + 1], sum[4 * j + 2], sum[4 * j + 3]));
    }
  }
  if (threadIdx.x % 128 == 0) wait_for_stores<0>();  // they read this block's memory
  __syncwarp();
}

// The kernel --------------------------------------------------------------------------------------

// The blocks of a cluster share tiles of x, or split the k of one tile. Without a split, a block
// may take several tiles.
template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    multiply(const __grid_constant__ Args p, const __grid_constant__ Maps maps) {
  extern __shared__ unsigned char shared[];
  __shared__ alignas(8) uint64_t barriers[2 * C::kStages];
  const int blocks = cluster_blocks(), stages = p.units / C::UNITS;
  Ring ring;
  ring.at = (shared_address(shared) + kSwizzleBytes - 1) / kSwizzleBytes * kSwizzleBytes;
  ring.stages = shared + (ring.at - shared_address(shared));
  ring.full = shared_address(barriers), ring.empty = ring.full + 8 * C::kStages;
  ring.rank = cluster_rank(), ring.splits = C::SHARE > 1 ? 1 : blocks;
  const int split = C::SHARE > 1 ? 0 : ring.rank;
  ring.first_stage = stages * split / ring.splits;
  ring.last_stage = stages * (split + 1) / ring.splits;
  ring.first_tile = blockIdx.x / blocks, ring.tile_step = gridDim.x / blocks;
  ring.tiles = p.column_steps * p.row_tiles;

  if (threadIdx.x == 0) {
    for (int i = 0; i < C::kStages; ++i) {
      barrier_init(ring.full + 8 * i, 1);
      barrier_init(ring.empty + 8 * i, C::kConsumers / 32 * C::SHARE);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (C::SHARE > 1) cluster_sync();  // others' copies and arrivals need these barriers

  if (threadIdx.x < C::kConsumers) {
    if constexpr (C::kMoveRegisters) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    consume<C>(p, maps, ring);
  } else {
    if constexpr (C::kMoveRegisters) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == C::kConsumers) produce<C>(p, maps, ring);
    __syncwarp();
    if (C::SHARE == 1 && ring.splits > 1) {  // as `add_splits`, which needs all of the cluster
      cluster_sync();
      cluster_sync();
    }
  }
  if (C::SHARE > 1) cluster_sync();  // no block may end while others arrive at its barriers
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

// Boxes of [height, 64] of a matrix [rows, cols], swizzled.
bool make_map(CUtensorMap* map, const void* at, uint64_t rows, uint64_t cols, uint32_t height) {
  if (encoder() == nullptr) return false;
  const cuuint64_t sizes[] = {cols, rows}, strides[] = {cols * 2};
  const cuuint32_t box[] = {kUnit, height}, steps[] = {1, 1};
  return encoder()(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, const_cast<void*>(at), sizes, strides,
                   box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                   CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

int multiprocessors() {
  int device = 0, count = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  return count;
}

// `x` has rows of `width` elements, a multiple of 8.
template <class C> int start(Args p, const __half* x, int width, cudaStream_t stream) {
  Maps maps = {};
  if (!make_map(&maps.x, x, p.m, width, C::ROWS / C::SHARE)) return cudaErrorInvalidValue;
  p.by_map = p.n % 8 == 0 && uintptr_t(p.out) % 16 == 0 &&
             make_map(&maps.out, p.out, p.m, p.n, C::kOutRows);
  const auto kernel = multiply<C>;
  static const cudaError_t allowed = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, C::kDynamicBytes);
  if (allowed != cudaSuccess) return allowed;

  const int column_tiles = (p.n + C::kColumns - 1) / C::kColumns;
  p.column_steps = (column_tiles + C::SHARE - 1) / C::SHARE;
  p.row_tiles = (p.m + C::ROWS - 1) / C::ROWS;
  // As many splits of k as still run at once, a power of two.
  const int tiles = p.column_steps * p.row_tiles, slots = multiprocessors();
  int blocks = C::SHARE;
  if (C::SHARE == 1 && C::ROWS < 256)
    while (2 * blocks <= kMostSplits && 2 * blocks <= p.units / C::UNITS &&
           2 * blocks * tiles <= slots)
      blocks *= 2;

  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {unsigned(blocks), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(unsigned((tiles * blocks > slots ? slots / blocks : tiles) * blocks));
  config.blockDim = dim3(C::kThreads);
  config.dynamicSmemBytes = C::kDynamicBytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, p, maps);
}

}  // namespace

extern "C" int sparse24_matmul(const __half* x, const unsigned char* weights, __half* out, int m,
                               int width, int n, int blocks, int units, cudaStream_t stream) {
  const Args p = {weights, out, m, n, blocks, units, 0, 0, false};
  if (m <= 8) return start<Cut<1, 8, 2, 1>>(p, x, width, stream);
  if (m <= 16) return start<Cut<1, 16, 2, 1>>(p, x, width, stream);
  if (m <= 32) return start<Cut<2, 32, 2, 1>>(p, x, width, stream);
  if (m <= 64) return start<Cut<2, 64, 2, 1>>(p, x, width, stream);
  if (m <= 128) return start<Cut<2, 128, 2, 1>>(p, x, width, stream);
  if (m <= 256) return start<Cut<2, 256, 1, 1>>(p, x, width, stream);
  return start<Cut<2, 256, 1, 2>>(p, x, width, stream);
}
""".replace("INSTRUCTIONS", "".join(map(_instruction, (8, 16, 32, 64, 128, 256))))


def build(source, *flags):
    """Compile to a library, in a folder where the profiler looks for compiled kernels."""
    from torch.utils.cpp_extension import CUDA_HOME

    extensions = os.environ.get("TORCH_EXTENSIONS_DIR")
    if extensions:
        os.makedirs(extensions, exist_ok=True)
    folder = tempfile.mkdtemp(prefix="sparse24_", dir=extensions)
    name = os.path.join(folder, "sparse24")
    with open(name + ".cu", "w") as file:
        file.write(source)
    nvcc = os.path.join(CUDA_HOME, "bin/nvcc") if CUDA_HOME else "nvcc"
    target = "-gencode=arch=compute_90a,code=sm_90a"
    command = [nvcc, target, "-O3", "-std=c++17", "-shared", "-Xcompiler=-fPIC", *flags]
    result = subprocess.run(
        [*command, "-o", name + ".so", name + ".cu"], capture_output=True, text=True
    )
    if result.returncode:
        raise RuntimeError(result.stdout + result.stderr)
    return ctypes.CDLL(name + ".so"), result.stdout + result.stderr


def bind(function):
    pointer, number = ctypes.c_void_p, ctypes.c_int
    function.argtypes = [pointer] * 3 + [number] * 5 + [pointer]
    return function


@cache
def _kernel():
    library, _ = build(SOURCE)
    return bind(library.sparse24_matmul)


def has_sparse_wgmma(tensor):
    return tensor.is_cuda and torch.cuda.get_device_capability(tensor.device)[0] == 9


def sparse24_matmul_setup(w):
    if not has_sparse_wgmma(w):
        return w
    return pack(w), *w.shape


def run(kernel, x, prepared, out):
    weights, n, k = prepared
    if k % 8 or x.data_ptr() % 16:  # a tensor map needs rows and addresses of whole 16 bytes
        aligned = x.new_zeros(len(x), k + -k % 8)
        aligned[:, :k] = x
        x = aligned
    (m, width), (blocks, units, _) = x.shape, weights.shape
    stream = torch.cuda.current_stream().cuda_stream
    pointers = x.data_ptr(), weights.data_ptr(), out.data_ptr()
    if error := kernel(*pointers, m, width, n, blocks, units, stream):
        raise RuntimeError(f"the launch failed with CUDA error {error}")


def sparse24_matmul(x, prepared, out):
    if isinstance(prepared, torch.Tensor):  # without the hardware, only the result can be shown
        out.copy_(x.float() @ prepared.float().T)
        return
    run(_kernel(), x, prepared, out)


if torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9:
    _kernel()  # compiled while this file is imported
