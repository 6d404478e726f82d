"""Int4 matmul: a tensor-core kernel in CUDA C++ for few rows, Triton for some, cuBLAS for many.

With few rows, reading the weights takes most of the time. Each weight is read once, straight into
the registers of the thread whose `mma` operand it becomes: the order of k within a tile is free as
long as both operands agree, and columns are put back in order at the end. Every thread prefetches
its own words into its own part of shared memory, so the main loop needs no barrier.

With up to 64 rows Triton's pipelined tiles are faster (on an H100, 75 against 91 microseconds for
16 rows); with more, unpacking once and one large fp16 product beats unpacking in every tile.
"""

import functools

import torch
import triton
import triton.language as tl

GROUP = 128
FEW_ROWS, SOME_ROWS = 8, 64
PROGRAMS = 264  # two for each SM of an H100
BLOCK_COLUMNS = 128
THREADS = 128
STAGES = 4

# No headers: NVRTC then compiles this in a fraction of a second.
SOURCE = r"""
typedef unsigned int u32;
typedef unsigned short u16;
constexpr int kThreads = 128, kGroup = 128, kDepth = 32, kColumns = 128, kStages = STAGES;

struct Problem {
  const u16* a;            // fp16 [m, k]
  const unsigned char* b;  // [k, n / 2]
  const u16* scales;       // fp16 [k / 128, n]
  u16* out;                // fp16 [m, n]
  float* parts;            // [splits, m, n]
  int* arrived;            // [blocks of columns], zero before and after
  int m, n, k;
  int groups_each;         // of one split
};

__device__ __forceinline__ u32 sub2(u32 a, u32 b) {
  u32 d;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}
__device__ __forceinline__ u32 mul2(u32 a, u32 b) {
  u32 d;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}
__device__ __forceinline__ u32 fma2(u32 a, u32 b, u32 c) {
  u32 d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

__device__ __forceinline__ u16 to_half(float value) {
  u16 half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
  return half;
}
template <int N> struct Int {
  static constexpr int value = N;
};

// Copies BYTES of global memory to shared memory, or zeros where there are none.
template <int BYTES>
__device__ __forceinline__ void copy_ahead(u32 to, const void* from, bool any) {
  if constexpr (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(any ? 16 : 0)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(BYTES),
                 "r"(any ? BYTES : 0)
                 : "memory");
}

__device__ __forceinline__ void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Of two words, each eight columns of one row: the weights of column C in both rows, times `scale`.
// `pairs` holds the lower (C < 4) or upper halves of both words side by side.
template <int C> __device__ __forceinline__ u32 weights(u32 pairs, u32 scale) {
  // An fp16 number with these bits is 1024 + nibble, or 1024 + 16 * nibble.
  const u32 bits = C % 4 >= 2 ? pairs >> 8 : pairs;
  const u32 exact = C % 2 == 0
                        ? sub2((bits & 0x000F000Fu) | 0x64006400u, 0x64086408u)          // - 1032
                        : fma2((bits & 0x00F000F0u) | 0x64006400u, 0x2C002C00u, 0xD480D480u);
  return mul2(exact, scale);
}

// A thread is number g = lane / 4 of eight along n (and along m), and number t = lane % 4 of four
// along k. Of every 32 rows of weights it takes rows 8t ... 8t + 7, and WORDS words of each.
// A block has 128 columns; its warps are WARPS_N beside each other, and take groups in turn.
template <int TILES_M, int WORDS, int WARPS_N>
__global__ void __launch_bounds__(kThreads, TILES_M == 1 ? 3 : 2) few_rows(
    const u16* a, const unsigned char* b, const u16* scales, u16* out, float* parts, int* arrived,
    int m, int n, int k, int groups_each) {
  const Problem p = {a, b, scales, out, parts, arrived, m, n, k, groups_each};
  constexpr int kWarpsK = 4 / WARPS_N, kTilesN = 8 * WORDS, kWarpColumns = 8 * kTilesN;
  static_assert(kWarpColumns * WARPS_N == kColumns);
  extern __shared__ __align__(16) unsigned char shared[];
  struct Stage {
    uint4 a[2 * TILES_M][kThreads];
    u32 b[8][kThreads][WORDS];
  };
  Stage* const stages = reinterpret_cast<Stage*>(shared);

  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int g = lane / 4, t = lane % 4;
  const int column = blockIdx.x * kColumns + warp % WARPS_N * kWarpColumns + g * kTilesN;
  const bool inside = column < p.n;  // n is a multiple of 16
  const long long row_bytes = p.n / 2;
  const int first = blockIdx.y * p.groups_each + warp / WARPS_N;
  const int end = min(int(blockIdx.y + 1) * p.groups_each, p.k / kGroup);
  const int groups = first < end ? (end - first + kWarpsK - 1) / kWarpsK : 0;
  constexpr int kSteps = kGroup / kDepth;

  auto fetch = [&](int step) {
    if (step < groups * kSteps) {
      Stage& stage = stages[step % kStages];
      const int k = (first + step / kSteps * kWarpsK) * kGroup + step % kSteps * kDepth + 8 * t;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const u32 to = u32(__cvta_generic_to_shared(stage.b[i][thread]));
        const unsigned char* from = p.b + (k + i) * row_bytes + (inside ? column / 2 : 0);
        copy_ahead<4 * WORDS>(to, from, inside);
      }
#pragma unroll
      for (int i = 0; i < 2 * TILES_M; ++i) {
        const int row = 8 * i + g;
        const u32 to = u32(__cvta_generic_to_shared(&stage.a[i][thread]));
        copy_ahead<16>(to, p.a + (row < p.m ? row : 0) * (long long)p.k + k, row < p.m);
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };

  // The scales of a thread's columns, in pairs as they lie in memory.
  auto load_scales = [&](int index, uint4 (&packed)[WORDS]) {
    const int group = min(first + index * kWarpsK, p.k / kGroup - 1);
    const u16* at = p.scales + (long long)group * p.n + (inside ? column : 0);
#pragma unroll
    for (int i = 0; i < WORDS; ++i) packed[i] = __ldg(reinterpret_cast<const uint4*>(at) + i);
  };

  float sum[TILES_M][kTilesN][4] = {};
  uint4 packed[WORDS];
  load_scales(0, packed);
#pragma unroll
  for (int step = 0; step < kStages - 1; ++step) fetch(step);

  for (int group = 0; group < groups; ++group) {
    u32 scale[kTilesN];
#pragma unroll
    for (int i = 0; i < WORDS; ++i) {
      const u32 words[4] = {packed[i].x, packed[i].y, packed[i].z, packed[i].w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        scale[8 * i + 2 * j] = __byte_perm(words[j], 0, 0x1010);
        scale[8 * i + 2 * j + 1] = __byte_perm(words[j], 0, 0x3232);
      }
    }
    load_scales(group + 1, packed);
#pragma unroll
    for (int quarter = 0; quarter < kSteps; ++quarter) {
      const int step = group * kSteps + quarter;
      asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2) : "memory");
      fetch(step + kStages - 1);
      const Stage& stage = stages[step % kStages];
      u32 word[8][WORDS];
#pragma unroll
      for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int w = 0; w < WORDS; ++w) word[i][w] = stage.b[i][thread][w];
      uint4 rows[2 * TILES_M];
#pragma unroll
      for (int i = 0; i < 2 * TILES_M; ++i) rows[i] = stage.a[i][thread];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        u32 a[TILES_M][4];
#pragma unroll
        for (int i = 0; i < TILES_M; ++i) {
          a[i][0] = half ? rows[2 * i].z : rows[2 * i].x;
          a[i][1] = half ? rows[2 * i + 1].z : rows[2 * i + 1].x;
          a[i][2] = half ? rows[2 * i].w : rows[2 * i].y;
          a[i][3] = half ? rows[2 * i + 1].w : rows[2 * i + 1].y;
        }
#pragma unroll
        for (int w = 0; w < WORDS; ++w) {
          const u32 w0 = word[4 * half][w], w1 = word[4 * half + 1][w];
          const u32 w2 = word[4 * half + 2][w], w3 = word[4 * half + 3][w];
          const u32 low01 = __byte_perm(w0, w1, 0x5410), high01 = __byte_perm(w0, w1, 0x7632);
          const u32 low23 = __byte_perm(w2, w3, 0x5410), high23 = __byte_perm(w2, w3, 0x7632);
          const u32* s = scale + 8 * w;
          auto column_of = [&](auto c, u32 pairs01, u32 pairs23) {
            constexpr int C = decltype(c)::value;
            const u32 b0 = weights<C>(pairs01, s[C]), b1 = weights<C>(pairs23, s[C]);
#pragma unroll
            for (int i = 0; i < TILES_M; ++i) mma(sum[i][8 * w + C], a[i], b0, b1);
          };
          column_of(Int<0>{}, low01, low23);
          column_of(Int<1>{}, low01, low23);
          column_of(Int<2>{}, low01, low23);
          column_of(Int<3>{}, low01, low23);
          column_of(Int<4>{}, high01, high23);
          column_of(Int<5>{}, high01, high23);
          column_of(Int<6>{}, high01, high23);
          column_of(Int<7>{}, high01, high23);
        }
      }
    }
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();

  // The warps that took turns along k add up through shared memory, in a fixed order.
  float(*const turns)[16 * TILES_M][kColumns] =
      reinterpret_cast<float(*)[16 * TILES_M][kColumns]>(shared);
  const int beside = warp % WARPS_N * kWarpColumns;
#pragma unroll
  for (int i = 0; i < TILES_M; ++i)
#pragma unroll
    for (int c = 0; c < kTilesN; ++c)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = 16 * i + g + e / 2 * 8, at = beside + (2 * t + e % 2) * kTilesN + c;
        if (row < p.m) turns[warp / WARPS_N][row][at] = sum[i][c][e];
      }
  __syncthreads();

  const int block_column = blockIdx.x * kColumns;
  const long long elements = (long long)p.m * p.n;
  for (int i = thread; i < p.m * kColumns; i += kThreads) {
    const int row = i / kColumns, col = i % kColumns;
    if (block_column + col >= p.n) continue;
    float total = 0.0f;
#pragma unroll
    for (int turn = 0; turn < kWarpsK; ++turn) total += turns[turn][row][col];
    const long long at = (long long)row * p.n + block_column + col;
    if (gridDim.y == 1)
      p.out[at] = to_half(total);
    else
      p.parts[blockIdx.y * elements + at] = total;
  }
  if (gridDim.y == 1) return;

  // The last split to arrive adds up all of them, also in a fixed order.
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (thread == 0) last = atomicAdd(p.arrived + blockIdx.x, 1) == int(gridDim.y) - 1;
  __syncthreads();
  if (!last) return;
  __threadfence();
  for (int i = thread; i < p.m * kColumns; i += kThreads) {
    const int row = i / kColumns, col = i % kColumns;
    if (block_column + col >= p.n) continue;
    const long long at = (long long)row * p.n + block_column + col;
    float total = 0.0f;
    for (int split = 0; split < int(gridDim.y); ++split)
      total += __ldcg(p.parts + split * elements + at);
    p.out[at] = to_half(total);
  }
  if (thread == 0) p.arrived[blockIdx.x] = 0;
}
"""


@triton.jit
def _unpack(
    b_packed, scales, weights, N, BYTES: tl.constexpr, ROWS: tl.constexpr, TIMES: tl.constexpr
):
    # A program takes ROWS * TIMES rows of one group: they share their scales.
    cols = tl.program_id(0) * BYTES + tl.arange(0, BYTES)[None, :]  # in bytes: pairs of columns
    columns = tl.program_id(0) * 2 * BYTES + tl.arange(0, 2 * BYTES)[None, :]
    first = tl.program_id(1).to(tl.int64) * (ROWS * TIMES)
    scale = tl.load(scales + first // 128 * N + columns, mask=columns < N, other=0.0)
    for time in tl.static_range(TIMES):
        row = first + time * ROWS + tl.arange(0, ROWS)[:, None]
        packed = tl.load(b_packed + row * (N // 2) + cols, mask=cols < N // 2, other=0)
        codes = tl.interleave(packed & 0xF, packed >> 4)
        # An fp16 number with these bits is 1024 + code.
        exact = (codes.to(tl.uint16) | 0x6400).to(tl.float16, bitcast=True) - 1032.0
        tl.store(weights + row * N + columns, exact * scale, mask=columns < N)


@functools.cache
def _few_rows(tiles_m, stages=STAGES):
    """The kernel for up to ``16 * tiles_m`` rows, and its bytes of shared memory."""
    from cuda.bindings import driver, nvrtc

    words = 2 if tiles_m == 1 else 1
    name = f"few_rows<{tiles_m}, {words}, {2 // words}>".encode()
    major, minor = torch.cuda.get_device_capability()
    options = [
        f"--gpu-architecture=sm_{major}{minor}",
        "--std=c++17",
        "--device-as-default-execution-space",
        f"-DSTAGES={stages}",
    ]
    program = _done(nvrtc.nvrtcCreateProgram(SOURCE.encode(), b"few_rows.cu", 0, None, None))
    _done(nvrtc.nvrtcAddNameExpression(program, name))
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = bytes(_done(nvrtc.nvrtcGetProgramLogSize(program)))
        _done(nvrtc.nvrtcGetProgramLog(program, log))
        raise RuntimeError(log.decode("utf-8", "replace"))
    code = bytes(_done(nvrtc.nvrtcGetCUBINSize(program)))
    _done(nvrtc.nvrtcGetCUBIN(program, code))
    module = _done(driver.cuModuleLoadData(code))
    kernel = _done(
        driver.cuModuleGetFunction(module, _done(nvrtc.nvrtcGetLoweredName(program, name)))
    )
    stage_bytes = THREADS * (2 * tiles_m * 16 + 8 * words * 4)
    sum_bytes = (2 * words) * 16 * tiles_m * BLOCK_COLUMNS * 4
    shared_bytes = max(stages * stage_bytes, sum_bytes)
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    _done(driver.cuFuncSetAttribute(kernel, attribute, shared_bytes))
    return kernel, shared_bytes


def _done(result):
    """The result of a call of the driver or of NVRTC. Raises RuntimeError if it failed."""
    status, *values = result
    if status != 0:
        raise RuntimeError(f"{status!r}")
    return values[0] if len(values) == 1 else None


@functools.cache
def _arrivals(device):
    """Counters of splits that have arrived. Every call leaves them at zero."""
    return torch.zeros(1 << 16, dtype=torch.int32, device=device)


def _splits(m, n, k, device, blocks_per_sm=None):
    """The number of parts that k is split into, so that all blocks run at once."""
    if blocks_per_sm is None:
        blocks_per_sm = 3 if m <= 16 else 2
    slots = blocks_per_sm * torch.cuda.get_device_properties(device).multi_processor_count
    turns = 4 if m <= 16 else 2  # warps of a block that share k
    most = max(k // GROUP // turns, 1)
    return min(max(slots // triton.cdiv(n, BLOCK_COLUMNS), 1), most)


def launch_few_rows(a, b_packed, scales, out, splits=None, stages=STAGES):
    """One launch of the kernel for few rows. n must be a multiple of 16."""
    import ctypes

    from cuda.bindings import driver

    (m, k), n = a.shape, out.shape[1]
    kernel, shared_bytes = _few_rows(1 if m <= 16 else 2 if m <= 32 else 4, stages)
    groups = k // GROUP
    groups_each = triton.cdiv(groups, splits or _splits(m, n, k, a.device))
    splits = triton.cdiv(groups, groups_each)
    parts = torch.empty(splits * m * n if splits > 1 else 1, dtype=torch.float32, device=a.device)
    pointers = [t.data_ptr() for t in (a, b_packed, scales, out, parts, _arrivals(a.device))]
    kinds = (ctypes.c_void_p,) * 6 + (ctypes.c_int,) * 4
    arguments = (*pointers, m, n, k, groups_each), kinds
    grid, block = (triton.cdiv(n, BLOCK_COLUMNS), splits, 1), (THREADS, 1, 1)
    stream = torch.cuda.current_stream().cuda_stream
    _done(driver.cuLaunchKernel(kernel, *grid, *block, shared_bytes, stream, arguments, 0))


def launch_unpacked(a, b_packed, scales, out, tile=(4, 128), times=8):
    """Unpack all weights to fp16, then one product. `tile` is in rows and bytes."""
    k, n = a.shape[1], out.shape[1]
    weights = torch.empty((k, n), dtype=torch.float16, device=a.device)
    if a.device.type == "cpu":  # the interpreter pays per operation, not per element
        tile, times = (GROUP, triton.next_power_of_2(n)), 1
    rows, block_bytes = tile
    grid = (triton.cdiv(n, 2 * block_bytes), k // (rows * times))
    _unpack[grid](
        b_packed, scales, weights, n, BYTES=block_bytes, ROWS=rows, TIMES=times, num_warps=4
    )
    torch.mm(a, weights, out=out)


@triton.jit
def _nibbles(bits):
    # An fp16 number with these bits is 1024 + nibble, so this is exact and needs no conversion.
    return (bits.to(tl.uint16) | 0x6400).to(tl.float16, bitcast=True) - 1032.0


@triton.jit
def _some_rows(
    a,
    b_packed,
    scales,
    out,
    M,
    N,
    K,
    groups_each,
    GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_BYTES: tl.constexpr,
):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(1) * BLOCK_BYTES + tl.arange(0, BLOCK_BYTES)  # in bytes: pairs of columns
    steps = tl.arange(0, GROUP)
    row_inside = rows[:, None] < M
    col_inside = cols[None, :] < N // 2
    even = tl.zeros((BLOCK_M, BLOCK_BYTES), dtype=tl.float32)
    odd = tl.zeros((BLOCK_M, BLOCK_BYTES), dtype=tl.float32)

    first = tl.program_id(2) * groups_each
    for group in range(first, min(first + groups_each, K // GROUP)):
        k = group * GROUP + steps
        a_at = rows[:, None].to(tl.int64) * K + k[None, :]
        a_tile = tl.load(a + a_at, mask=row_inside, other=0.0)
        bytes_at = k[:, None].to(tl.int64) * (N // 2) + cols[None, :]
        packed = tl.load(b_packed + bytes_at, mask=col_inside, other=0)
        scale_at = scales + group * N + 2 * cols[None, :]
        even_scale = tl.load(scale_at, mask=col_inside, other=0.0).to(tl.float32)
        odd_scale = tl.load(scale_at + 1, mask=col_inside, other=0.0).to(tl.float32)
        even += tl.dot(a_tile, _nibbles(packed & 0xF)) * even_scale
        odd += tl.dot(a_tile, _nibbles(packed >> 4)) * odd_scale

    both = tl.interleave(even, odd)
    columns = tl.program_id(1) * (2 * BLOCK_BYTES) + tl.arange(0, 2 * BLOCK_BYTES)
    at = (tl.program_id(2) * M + rows[:, None]).to(tl.int64) * N + columns[None, :]
    inside = row_inside & (columns[None, :] < N)
    tl.store(out + at, both.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _sum_parts(parts, out, elements, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for split in range(SPLITS):
        total += tl.load(parts + split * elements + at, mask=at < elements, other=0.0)
    tl.store(out + at, total.to(tl.float16), mask=at < elements)


def launch_some_rows(a, b_packed, scales, out):
    """9 to 64 rows: weights are unpacked on their way to the tensor cores, and the groups of k are
    divided among programs."""
    m, k = a.shape
    n = out.shape[1]
    groups = k // GROUP
    block_m = max(16, triton.next_power_of_2(m))
    block_bytes = 128 if block_m == 16 and n > 8192 else 64
    across = triton.cdiv(n, 2 * block_bytes)
    splits = min(max(PROGRAMS // across, 1), groups) if a.is_cuda else 1
    groups_each = triton.cdiv(groups, splits)
    splits = triton.cdiv(groups, groups_each)
    target = out
    if splits > 1:
        target = torch.empty((splits, m, n), dtype=torch.float32, device=a.device)
    _some_rows[(1, across, splits)](
        a,
        b_packed,
        scales,
        target,
        m,
        n,
        k,
        groups_each,
        GROUP=GROUP,
        BLOCK_M=block_m,
        BLOCK_BYTES=block_bytes,
        num_warps=4,
        num_stages=3,
    )
    if splits > 1:
        grid = (triton.cdiv(m * n, 512),)
        _sum_parts[grid](target, out, m * n, SPLITS=splits, BLOCK=512, num_warps=4)


def int4_matmul(a, b_packed, scales, out):
    rows = a.shape[0]
    if a.is_cuda and rows <= FEW_ROWS and out.shape[1] % 16 == 0:
        launch_few_rows(a, b_packed, scales, out)
    elif rows <= SOME_ROWS:
        launch_some_rows(a, b_packed, scales, out)
    else:
        launch_unpacked(a, b_packed, scales, out)
