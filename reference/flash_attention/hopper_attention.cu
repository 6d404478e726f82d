// Flash attention for Hopper, on wgmma and TMA. A tile is 128 queries of head_dim 128 or 192 of
// head_dim 64: two or three warpgroups of 64 queries each, which loop over tiles of 128 keys with
// an online softmax. One more warp, the producer, brings queries, keys and values by TMA.
//
// Warpgroups take turns to start their products, so that the exponentials of one run beside the
// products of another. Within a warpgroup, the product of a tile's weights with its values is
// started behind the next tile's scores, and runs beside the exponentials of those.
//
// A block per SM takes tiles from a counter. Heads go in sections whose keys and values fit into
// the L2 cache; within a section, tiles with the most keys go first, so that blocks end together.
//
// Sums are rescaled only if a maximum has risen by a factor of 256 in weight. `scale` must be
// positive, and each row of q, k and v contiguous and aligned to 16 bytes.

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>
#include <type_traits>

namespace {

constexpr int kQueries = 64;  // of a warpgroup: the rows of a wgmma
constexpr int kKeys = 128;    // of a tile
constexpr int kStages = 2;    // tiles of keys in shared memory, and as many of values
constexpr int kDepth = 16;    // terms that one wgmma sums up
constexpr int kGroupThreads = 128;

// Shared tiles are panels of 64 columns, whose rows have the 128 bytes of the widest swizzle. It
// permutes the 16-byte pieces within 8 rows, and so wants them aligned.
constexpr int kPanelColumns = 64;
constexpr int kRowBytes = 128;
constexpr int kSwizzleBytes = 8 * kRowBytes;

constexpr float kMostRise = 8.0f;  // of a maximum without rescaling, as an exponent of 2
constexpr double kLog2e = 1.4426950408889634;
constexpr int64_t kSectionBytes = 24 << 20;  // keys and values of a section: half of the L2 cache
constexpr int kSectionHeads = 16;            // the fewest, so that all SMs have work
constexpr int kMostSleepNs = 10'000'000;     // in a wait, before it looks again
constexpr unsigned kDriverVersion = 12000;   // CUDA 12.0, the first with tensor maps

constexpr int kTurnBarrier = 1;  // hardware barriers, one for each warpgroup; 0 is __syncthreads
constexpr int kOutBarrier = 4;

struct Problem {
  int q_tiles, section, all_heads, heads, group, q_len, k_len, tiles;
  bool causal;
  float scale;  // for scores as exponents of 2, not of e
};

// Returns to 0 when a launch ends. The judge makes one call at a time; launches that overlap, on two
// streams, would skip tiles.
__device__ unsigned tiles_taken;

template <int D> struct Layout {
  static constexpr int kGroups = D == 64 ? 3 : 2;
  static constexpr int kThreads = kGroupThreads * (1 + kGroups);
  // Of each thread, by the instruction that moves registers from the producer to the others.
  static constexpr int kProducerRegisters = kGroups == 2 ? 24 : 32;
  static constexpr int kGroupRegisters = kGroups == 2 ? 240 : 160;
  static constexpr int kPanels = D / kPanelColumns;
  static constexpr int kQueryPanel = kQueries * kRowBytes;  // bytes, like all below
  static constexpr int kKeyPanel = kKeys * kRowBytes;
  static constexpr int kQueryBytes = kPanels * kQueryPanel;  // of a warpgroup
  static constexpr int kTileBytes = kPanels * kKeyPanel;
  static constexpr int kOutAt = kGroups * kQueryBytes;
  static constexpr int kKeysAt = 2 * kOutAt;
  static constexpr int kValuesAt = kKeysAt + kStages * kTileBytes;
  static constexpr int kBytes = kValuesAt + kStages * kTileBytes + kSwizzleBytes;  // to align
};

template <int D> struct Control {
  uint64_t q_full[Layout<D>::kGroups], q_empty[Layout<D>::kGroups];
  uint64_t k_full[kStages], k_empty[kStages], v_full[kStages], v_empty[kStages];
  int tile;
  float never;  // see `use_before_wait`
};

// A place in a ring of stages. The phase tells one round through the ring from the next.
struct Place {
  int stage, phase;
  __device__ __forceinline__ void next() {
    if (++stage == kStages) stage = 0, phase ^= 1;
  }
};

// ---- barriers and copies -----------------------------------------------------------------------

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return uint32_t(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ void init_barrier(uint64_t& barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)),
               "r"(count)
               : "memory");
}
__device__ __forceinline__ void arrive(uint64_t& barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier))
               : "memory");
}
__device__ __forceinline__ void arrive_expecting(uint64_t& barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                   shared_address(&barrier)),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void wait(uint64_t& barrier, int phase) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "AGAIN:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1, %2;\n"
      "@!done bra AGAIN;\n}\n" ::"r"(shared_address(&barrier)),
      "r"(phase), "n"(kMostSleepNs)
      : "memory");
}
__device__ __forceinline__ void load_box(uint32_t to, const CUtensorMap* from, uint64_t& barrier,
                                         int column, int row, int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
      "l"(from), "r"(shared_address(&barrier)), "r"(column), "r"(row), "r"(head), "r"(batch)
      : "memory");
}
__device__ __forceinline__ void store_box(const CUtensorMap* to, uint32_t from, int column,
                                          int row, int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], "
      "[%1];" ::"l"(to),
      "r"(from), "r"(column), "r"(row), "r"(head), "r"(batch)
      : "memory");
}
__device__ __forceinline__ void show_writes_to_tma() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void sync_threads(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void arrive_threads(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// ---- matrix products ---------------------------------------------------------------------------

#define OUT_8(i)                                                                       \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]),          \
      "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define OUT_32(i) OUT_8(i), OUT_8(i + 8), OUT_8(i + 16), OUT_8(i + 24)
#define NAMES_32                                                                       \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "             \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_64                                                                       \
  NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, "  \
           "%46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "    \
           "%60, %61, %62, %63"

// D = A B + (`keep` ? D : 0), asynchronously. `names` are D's operands; `inputs` are A, B, the
// predicate made of `keep`, and constants: signs, then which of the shared operands are transposed.
#define WGMMA_TEXT(type, columns, keep, names, inputs)                                 \
  "{\n.reg .pred p;\nsetp.ne.b32 p, " keep ", 0;\n"                                    \
  "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type                 \
  " {" names "}, " inputs ";\n}\n"
#define WGMMA(columns, keep, names, inputs, ...)                                       \
  if constexpr (std::is_same_v<T, __half>)                                             \
    asm volatile(WGMMA_TEXT("f16", columns, keep, names, inputs) : __VA_ARGS__);       \
  else                                                                                 \
    asm volatile(WGMMA_TEXT("bf16", columns, keep, names, inputs) : __VA_ARGS__)

// Adds 64 queries by 128 keys, over 16 columns of both, which lie in shared memory.
template <typename T>
__device__ __forceinline__ void add_scores(float (&d)[64], uint64_t q, uint64_t k, int keep) {
  WGMMA("128", "%66", NAMES_64, "%64, %65, p, 1, 1, 0, 0",
        OUT_32(0), OUT_32(32) : "l"(q), "l"(k), "r"(keep));
}
// Adds 64 queries by head_dim, over 16 keys: weights in registers by values in shared memory.
template <typename T>
__device__ __forceinline__ void add_values(float (&d)[64], const uint32_t* w, uint64_t v) {
  WGMMA("128", "1", NAMES_64, "{%64, %65, %66, %67}, %68, p, 1, 1, 1",
        OUT_32(0), OUT_32(32) : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "l"(v));
}
template <typename T>
__device__ __forceinline__ void add_values(float (&d)[32], const uint32_t* w, uint64_t v) {
  WGMMA("64", "1", NAMES_32, "{%32, %33, %34, %35}, %36, p, 1, 1, 1",
        OUT_32(0) : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "l"(v));
}

__device__ __forceinline__ void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int LEFT> __device__ __forceinline__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
// Keeps the compiler from moving uses of the registers of a product across this place.
template <int N> __device__ __forceinline__ void pin(float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(x[i])::"memory");
}
template <int N> __device__ __forceinline__ void pin(uint32_t (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+r"(x[i])::"memory");
}

// The wgmma descriptor of a swizzled tile, in units of 16 bytes: the address, then the steps from
// one panel to the next (only read if a product's columns span panels) and from 8 rows to the next.
// Addresses have 18 bits.
__device__ __forceinline__ uint64_t descriptor(uint32_t address, int panel_bytes = 16) {
  constexpr uint64_t kSwizzle128 = uint64_t(1) << 62;
  return uint64_t((address & 0x3FFFF) / 16) | uint64_t(panel_bytes / 16) << 16 |
         uint64_t(kSwizzleBytes / 16) << 32 | kSwizzle128;
}

// ---- numbers -----------------------------------------------------------------------------------

__device__ __forceinline__ float minus_infinity() { return __int_as_float(0xff800000); }

template <typename T> __device__ __forceinline__ uint32_t pack(float low, float high) {
  uint32_t pair;
  if constexpr (std::is_same_v<T, __half>)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ __forceinline__ float exp_2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
// Of the four threads that share a row.
__device__ __forceinline__ float quad_max(float v) {
  v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 1));
  return fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 2));
}
__device__ __forceinline__ float quad_sum(float v) {
  v += __shfl_xor_sync(0xffffffffu, v, 1);
  return v + __shfl_xor_sync(0xffffffffu, v, 2);
}

// A store that needs `sum` and never happens, as sums of weights are not negative. Without it ptxas
// moves the exponentials behind the next wait, so that they no longer run beside the product.
__device__ __forceinline__ void use_before_wait(float sum, float& never) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.lt.f32 p, %0, 0f00000000;\n"
      "@p st.shared.f32 [%1], %0;\n}\n" ::"f"(sum),
      "r"(shared_address(&never))
      : "memory");
}

// ---- tiles -------------------------------------------------------------------------------------

struct Tile {
  int row, head, kv_head, batch, key_tiles;
};

template <int D> __device__ __forceinline__ Tile tile_at(const Problem& p, int index) {
  constexpr int kTileQueries = Layout<D>::kGroups * kQueries;
  const int section_tiles = p.section * p.q_tiles;
  const int first_head = index / section_tiles * p.section;
  const int heads = min(p.section, p.all_heads - first_head);
  const int rest = index % section_tiles;
  const int head = first_head + rest % heads;
  Tile t;
  t.row = (p.q_tiles - 1 - rest / heads) * kTileQueries;
  t.batch = head / p.heads;
  t.head = head % p.heads;
  t.kv_head = t.head / p.group;
  int keys = p.k_len;
  if (p.causal) keys = min(keys, min(t.row + kTileQueries, p.q_len) + p.k_len - p.q_len);
  t.key_tiles = keys <= 0 ? 0 : (keys + kKeys - 1) / kKeys;
  return t;
}

// ---- the producer ------------------------------------------------------------------------------

template <int D> struct Producer {
  using L = Layout<D>;
  const CUtensorMap *q_map, *k_map, *v_map;
  Control<D>& control;
  const uint32_t shared;
  const Problem& p;
  // Stages are empty at first: the phase before the first one counts as over.
  Place keys = {0, 1}, values = {0, 1};
  int q_phase = 1;

  __device__ __forceinline__ void load(const CUtensorMap* map, uint32_t to, uint64_t* full,
                                       uint64_t* empty, Place& place, const Tile& t, int key_tile) {
    uint64_t& barrier = full[place.stage];
    wait(empty[place.stage], place.phase);
    arrive_expecting(barrier, L::kTileBytes);
#pragma unroll
    for (int panel = 0; panel < L::kPanels; ++panel)
      load_box(to + place.stage * L::kTileBytes + panel * L::kKeyPanel, map, barrier,
               panel * kPanelColumns, key_tile * kKeys, t.kv_head, t.batch);
    place.next();
  }
  __device__ __forceinline__ void load_keys(const Tile& t, int key_tile) {
    load(k_map, shared + L::kKeysAt, control.k_full, control.k_empty, keys, t, key_tile);
  }
  __device__ __forceinline__ void load_values(const Tile& t, int key_tile) {
    load(v_map, shared + L::kValuesAt, control.v_full, control.v_empty, values, t, key_tile);
  }

  // The tile's index goes with the queries. Without keys, the queries are not needed.
  __device__ __forceinline__ void load_queries(const Tile& t, int index) {
    for (int g = 0; g < L::kGroups; ++g) wait(control.q_empty[g], q_phase);
    q_phase ^= 1;
    control.tile = index;
    for (int g = 0; g < L::kGroups; ++g) {
      if (t.key_tiles == 0) {
        arrive(control.q_full[g]);
        continue;
      }
      arrive_expecting(control.q_full[g], L::kQueryBytes);
      for (int panel = 0; panel < L::kPanels; ++panel)
        load_box(shared + g * L::kQueryBytes + panel * L::kQueryPanel, q_map, control.q_full[g],
                 panel * kPanelColumns, t.row + g * kQueries, t.head, t.batch);
    }
  }

  __device__ __forceinline__ void run() {
    int index = blockIdx.x;
    while (index < p.tiles) {
      const Tile t = tile_at<D>(p, index);
      const int following = gridDim.x + atomicInc(&tiles_taken, p.tiles - 1);
      if (t.key_tiles) load_keys(t, t.key_tiles - 1);
      load_queries(t, index);
#pragma unroll 1
      for (int key_tile = t.key_tiles - 1; key_tile >= 0; --key_tile) {
        if (key_tile) load_keys(t, key_tile - 1);
        load_values(t, key_tile);
      }
      index = following;
    }
    load_queries(Tile(), index);  // an index behind the last tile ends the warpgroups
  }
};

// ---- a warpgroup -------------------------------------------------------------------------------

// A thread has two rows of each result, `half` 0 and 1, 8 rows apart. Of its columns 8 n to 8 n + 7
// it has two neighbours, x[4 * n + 2 * half] and x[4 * n + 2 * half + 1].
template <typename T, int D> struct Warpgroup {
  using L = Layout<D>;
  const CUtensorMap* out_map;
  Control<D>& control;
  const uint32_t shared;
  const Problem& p;
  const int mine, thread;

  Place keys = {0, 0}, values = {0, 0};
  int q_phase = 0;
  float scores[kKeys / 2];
  uint32_t weights[kKeys / 4];  // as T, in pairs
  float total[D / 2];           // weights times values
  float highest[2], sum[2];     // of each row: the score that weights are relative to; of weights
  float fade[2];                // of sums so far, when `highest` rises
  int last_key[2];              // that the row sees

  __device__ __forceinline__ int lane() const { return thread % 32; }
  __device__ __forceinline__ int own_row() const { return thread / 32 * 16 + lane() / 4; }
  __device__ __forceinline__ void arrive_of_warp(uint64_t& barrier) const {
    if (lane() == 0) arrive(barrier);
  }
  __device__ __forceinline__ void wait_for_turn() const {
    sync_threads(kTurnBarrier + mine, 2 * kGroupThreads);
  }
  __device__ __forceinline__ void pass_turn() const {
    arrive_threads(kTurnBarrier + (mine + 1) % L::kGroups, 2 * kGroupThreads);
  }

  __device__ __forceinline__ void multiply_keys() {
    const uint64_t q = descriptor(shared + mine * L::kQueryBytes);
    const uint64_t k = descriptor(shared + L::kKeysAt + keys.stage * L::kTileBytes);
    pin(scores);
    begin_products();
#pragma unroll
    for (int column = 0; column < D; column += kDepth) {
      const int panel = column / kPanelColumns, byte = column % kPanelColumns * int(sizeof(T));
      add_scores<T>(scores, q + (panel * L::kQueryPanel + byte) / 16,
                    k + (panel * L::kKeyPanel + byte) / 16, column != 0);
    }
    commit_products();
  }
  __device__ __forceinline__ void multiply_values() {
    const uint64_t v =
        descriptor(shared + L::kValuesAt + values.stage * L::kTileBytes, L::kKeyPanel);
    pin(total);
    pin(weights);
    begin_products();
#pragma unroll
    for (int key = 0; key < kKeys; key += kDepth)
      add_values<T>(total, weights + key / 4, v + key * kRowBytes / 16);
    commit_products();
  }
  __device__ __forceinline__ void free_keys() {
    arrive_of_warp(control.k_empty[keys.stage]);
    keys.next();
  }
  __device__ __forceinline__ void free_values() {
    arrive_of_warp(control.v_empty[values.stage]);
    values.next();
  }

  __device__ __forceinline__ void mask(int key_tile) {
    const int first = key_tile * kKeys + lane() % 4 * 2;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          if (n * 8 + e > last_key[half] - first)
            scores[4 * n + 2 * half + e] = minus_infinity();
  }

  // Scores become weights, relative to the highest score.
  template <bool MASKED> __device__ __forceinline__ void soften() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float above = scores[2 * half];
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
        above = fmaxf(above, fmaxf(scores[4 * n + 2 * half], scores[4 * n + 2 * half + 1]));
      above = fmaxf(quad_max(above), highest[half]);
      // Weights may exceed 1 by so much, which saves most of the rescaling.
      if ((above - highest[half]) * p.scale <= kMostRise) above = highest[half];
      float base = __fmul_rn(above, p.scale);
      if (MASKED && above == minus_infinity()) base = 0.0f;  // a row that has seen no key yet
      fade[half] = exp_2(__fmul_rn(highest[half], p.scale) - base);
      highest[half] = above;
      float added = 0.0f;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
        for (int i = 4 * n + 2 * half; i < 4 * n + 2 * half + 2; ++i) {
          scores[i] = exp_2(fmaf(scores[i], p.scale, -base));
          added += scores[i];
        }
      sum[half] = sum[half] * fade[half] + added;
    }
  }
  __device__ __forceinline__ void pack_weights() {
#pragma unroll
    for (int i = 0; i < kKeys / 4; ++i) weights[i] = pack<T>(scores[2 * i], scores[2 * i + 1]);
  }
  __device__ __forceinline__ void rescale() {
    if (!__any_sync(0xffffffffu, fade[0] != 1.0f || fade[1] != 1.0f)) return;
#pragma unroll
    for (int i = 0; i < D / 2; ++i) total[i] *= fade[i / 2 % 2];
  }

  // The scores of a tile of keys, beside the product of the weights before with their values.
  template <bool MASKED> __device__ __forceinline__ void step(int key_tile) {
    wait(control.k_full[keys.stage], keys.phase);
    wait_for_turn();
    multiply_keys();
    wait(control.v_full[values.stage], values.phase);
    multiply_values();
    pass_turn();
    wait_for_products<1>();
    pin(scores);
    free_keys();
    if (MASKED) mask(key_tile);
    soften<MASKED>();
    pin(scores);
    // Three warpgroups keep the tensor cores busy in either order, and were 6 % faster without.
    if (L::kGroups == 2) use_before_wait(sum[0] + sum[1], control.never);
    wait_for_products<0>();
    pin(total);
    free_values();
    rescale();
    pack_weights();
  }

  // From the last tile of keys, which may need a mask, to the first.
  __device__ __forceinline__ void attend(const Tile& t) {
    wait(control.k_full[keys.stage], keys.phase);
    wait_for_turn();
    multiply_keys();
    pass_turn();
    wait_for_products<0>();
    pin(scores);
    free_keys();
    mask(t.key_tiles - 1);
    soften<true>();
    pack_weights();

    const int first_row = t.row + mine * kQueries;
    const int seen_by_all =
        p.causal ? min(first_row + p.k_len - p.q_len + 1, p.k_len) : p.k_len;
    const int plain_tiles = max(seen_by_all, 0) / kKeys;
    int key_tile = t.key_tiles - 2;
#pragma unroll 1
    for (; key_tile >= plain_tiles; --key_tile) step<true>(key_tile);
#pragma unroll 1
    for (; key_tile >= 0; --key_tile) step<false>(key_tile);

    arrive_of_warp(control.q_empty[mine]);
    wait(control.v_full[values.stage], values.phase);
    multiply_values();
    wait_for_products<0>();
    pin(total);
    free_values();
  }

  // Through shared memory, where the rows are swizzled as TMA expects.
  __device__ __forceinline__ void write(const Tile& t) {
    const uint32_t out = shared + L::kOutAt + mine * L::kQueryBytes;
    if (thread == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    sync_threads(kOutBarrier + mine, kGroupThreads);  // the last tile has left shared memory
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float whole = quad_sum(sum[half]);
      const float share = whole == 0.0f ? 0.0f : 1.0f / whole;  // a row without keys gives zeros
      const int row = own_row() + 8 * half;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        const int panel = n / 8, piece = (n ^ row) % 8;
        const uint32_t to =
            out + panel * L::kQueryPanel + row * kRowBytes + piece * 16 + lane() % 4 * 4;
        const uint32_t pair = pack<T>(total[4 * n + 2 * half] * share,
                                      total[4 * n + 2 * half + 1] * share);
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(pair) : "memory");
      }
    }
    show_writes_to_tma();
    sync_threads(kOutBarrier + mine, kGroupThreads);
    if (thread != 0) return;
    const int first_row = t.row + mine * kQueries;
    if (first_row < p.q_len)
      for (int panel = 0; panel < L::kPanels; ++panel)
        store_box(out_map, out + panel * L::kQueryPanel, panel * kPanelColumns, first_row, t.head,
                  t.batch);
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  }

  __device__ __forceinline__ void run() {
    if (mine == L::kGroups - 1) pass_turn();  // the first warpgroup has the first turn
    while (true) {
      wait(control.q_full[mine], q_phase);
      q_phase ^= 1;
      const int index = control.tile;
      if (index >= p.tiles) break;
      const Tile t = tile_at<D>(p, index);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = t.row + mine * kQueries + own_row() + 8 * half;
        last_key[half] = p.causal ? min(row + p.k_len - p.q_len, p.k_len - 1) : p.k_len - 1;
        highest[half] = minus_infinity();
        sum[half] = 0.0f;
      }
#pragma unroll
      for (int i = 0; i < D / 2; ++i) total[i] = 0.0f;
      if (t.key_tiles) {
        attend(t);
      } else {
        __syncwarp();  // all lanes have read the tile's index
        arrive_of_warp(control.q_empty[mine]);
      }
      write(t);
    }
    if (thread == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
};

template <typename T, int D>
__global__ void __launch_bounds__(Layout<D>::kThreads, 1)
    attention(const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap k_map,
              const __grid_constant__ CUtensorMap v_map,
              const __grid_constant__ CUtensorMap out_map, const Problem p) {
  using L = Layout<D>;
  extern __shared__ char memory[];
  __shared__ Control<D> control;
  const uint32_t shared =
      (shared_address(memory) + kSwizzleBytes - 1) / kSwizzleBytes * kSwizzleBytes;
  // Alike in all threads of a warp, which the compiler does not know.
  const int group = __shfl_sync(0xffffffffu, threadIdx.x / kGroupThreads, 0);

  // The producer's thread fills, and one lane of each warp frees.
  if (threadIdx.x == 0) {
    for (int g = 0; g < L::kGroups; ++g) {
      init_barrier(control.q_full[g], 1);
      init_barrier(control.q_empty[g], kGroupThreads / 32);
    }
    for (int s = 0; s < kStages; ++s) {
      init_barrier(control.k_full[s], 1);
      init_barrier(control.v_full[s], 1);
      init_barrier(control.k_empty[s], L::kGroups * kGroupThreads / 32);
      init_barrier(control.v_empty[s], L::kGroups * kGroupThreads / 32);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    show_writes_to_tma();
  }
  __syncthreads();

  if (group == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(L::kProducerRegisters));
    if (threadIdx.x == 0)
      Producer<D>{&q_map, &k_map, &v_map, control, shared, p}.run();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(L::kGroupRegisters));
    Warpgroup<T, D>{&out_map, control, shared, p, group - 1, int(threadIdx.x) % kGroupThreads}
        .run();
  }
}

// ---- launch ------------------------------------------------------------------------------------

struct Tensor {
  const void* base;
  int64_t batch, heads, length;
  const int64_t* strides;  // of [batch, heads, length, head_dim], in elements
};

// For boxes of `rows` rows of a panel. Rows beyond the end are read as zeros, and not written.
template <typename T, int D> CUtensorMap tensor_map(const Tensor& x, int rows) {
  static const auto encode = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult status;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, kDriverVersion,
                                     cudaEnableDefault, &status);
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  }();
  constexpr auto kType = std::is_same_v<T, __half> ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                   : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  // A dimension of one element may have any stride, and TMA wants multiples of 16 bytes.
  auto bytes = [&](int64_t size, int64_t stride) {
    return cuuint64_t((size > 1 ? stride : D) * sizeof(T));
  };
  const cuuint64_t sizes[4] = {D, cuuint64_t(x.length), cuuint64_t(x.heads), cuuint64_t(x.batch)};
  const cuuint64_t strides[3] = {bytes(x.length, x.strides[2]), bytes(x.heads, x.strides[1]),
                                 bytes(x.batch, x.strides[0])};
  const cuuint32_t box[4] = {kPanelColumns, cuuint32_t(rows), 1, 1}, ones[4] = {1, 1, 1, 1};
  CUtensorMap map;
  encode(&map, kType, 4, const_cast<void*>(x.base), sizes, strides, box, ones,
         CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
         CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return map;
}

template <typename T, int D> int prepare() {
  int device = 0, processors = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  cudaFuncSetAttribute(attention<T, D>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       Layout<D>::kBytes);
  return processors;
}

template <typename T, int D>
void launch(const Tensor& q, const Tensor& k, const Tensor& v, T* out, bool causal, double scale,
            cudaStream_t stream) {
  using L = Layout<D>;
  constexpr int kTileQueries = L::kGroups * kQueries;
  static const int processors = prepare<T, D>();
  const int64_t kv_bytes = 2 * k.length * D * int64_t(sizeof(T));
  Problem p;
  p.heads = int(q.heads);
  p.all_heads = int(q.batch * q.heads);
  p.group = int(q.heads / k.heads);
  p.q_len = int(q.length);
  p.k_len = int(k.length);
  p.causal = causal;
  p.scale = float(scale * kLog2e);
  p.q_tiles = (p.q_len + kTileQueries - 1) / kTileQueries;
  p.tiles = p.q_tiles * p.all_heads;
  p.section = int(kSectionBytes / kv_bytes) * p.group;
  if (p.section < kSectionHeads) p.section = kSectionHeads;
  if (p.section > p.all_heads) p.section = p.all_heads;

  const int64_t head = q.length * D;
  const int64_t out_strides[4] = {q.heads * head, head, D, 1};
  const Tensor result = {out, q.batch, q.heads, q.length, out_strides};
  attention<T, D><<<p.tiles < processors ? p.tiles : processors, L::kThreads, L::kBytes, stream>>>(
      tensor_map<T, D>(q, kQueries), tensor_map<T, D>(k, kKeys), tensor_map<T, D>(v, kKeys),
      tensor_map<T, D>(result, kQueries), p);
}

template <typename T>
void dispatch(int64_t head_dim, const Tensor& q, const Tensor& k, const Tensor& v, T* out,
              bool causal, double scale, cudaStream_t stream) {
  if (head_dim == 64)
    launch<T, 64>(q, k, v, out, causal, scale, stream);
  else
    launch<T, 128>(q, k, v, out, causal, scale, stream);
}

}  // namespace

extern "C" void flash_attention(const __nv_bfloat16* q, const int64_t* q_strides,
                                const __nv_bfloat16* k, const int64_t* k_strides,
                                const __nv_bfloat16* v, const int64_t* v_strides,
                                __nv_bfloat16* out, bool causal, double scale, int64_t batch,
                                int64_t heads, int64_t q_len, int64_t head_dim, int64_t kv_heads,
                                int64_t k_len, cudaStream_t stream) {
  dispatch(head_dim, {q, batch, heads, q_len, q_strides}, {k, batch, kv_heads, k_len, k_strides},
           {v, batch, kv_heads, k_len, v_strides}, out, causal, scale, stream);
}

extern "C" void flash_attention_fp16(const __half* q, const int64_t* q_strides, const __half* k,
                                     const int64_t* k_strides, const __half* v,
                                     const int64_t* v_strides, __half* out, bool causal,
                                     double scale, int64_t batch, int64_t heads, int64_t q_len,
                                     int64_t head_dim, int64_t kv_heads, int64_t k_len,
                                     cudaStream_t stream) {
  dispatch(head_dim, {q, batch, heads, q_len, q_strides}, {k, batch, kv_heads, k_len, k_strides},
           {v, batch, kv_heads, k_len, v_strides}, out, causal, scale, stream);
}
