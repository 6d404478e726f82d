// Int4 matmul in CUDA C++. Up to 4 rows: a matrix-vector kernel, weights unpacked in registers.
// More: tensor cores (WMMA) on tiles unpacked to fp16 in shared memory, while the next tile loads.
// With few rows the groups are split among blocks, whose partial sums are added in a fixed order.

#include <cuda_fp16.h>
#include <mma.h>
#include <stdint.h>

namespace {

constexpr int kGroup = 128;
constexpr int kBlocks = 264;  // two per SM of an H100
constexpr int64_t kPartials = 1 << 22;

// Partial sums, [split][row][column]. Launches on one stream use it one after the other.
__device__ float partials[kPartials];

struct Problem {
  const __half* a;
  const uint8_t* b;
  const __half* scales;
  __half* out;
  int64_t m, n, k;
  int groups_each;  // groups of one split
  bool split;
};

__device__ void store_result(const Problem& p, int64_t row, int64_t col, float value) {
  if (row >= p.m || col >= p.n) return;
  if (p.split)
    partials[(blockIdx.z * p.m + row) * p.n + col] = value;
  else
    p.out[row * p.n + col] = __float2half_rn(value);
}

// Four bytes of one row of weights: eight columns, the first in the lowest bits. Columns beyond the
// row read as zero and are never stored.
__device__ uint32_t load_word(const Problem& p, int64_t k, int64_t byte) {
  const int64_t row_bytes = p.n / 2;
  const uint8_t* at = p.b + k * row_bytes + byte;
  if (row_bytes % 4 == 0) return byte < row_bytes ? *reinterpret_cast<const uint32_t*>(at) : 0;
  uint32_t word = 0;
  for (int i = 0; i < 4; ++i)
    if (byte + i < row_bytes) word |= uint32_t(at[i]) << (8 * i);
  return word;
}

__device__ float load_scale(const Problem& p, int64_t group, int64_t col) {
  return col < p.n ? __half2float(p.scales[group * p.n + col]) : 0.0f;
}

// ---- up to four rows ---------------------------------------------------------------------------

constexpr int kVectorWarps = 4;

// A warp takes 256 columns, eight per lane; the warps of a block take the split's groups in turn.
template <int ROWS>
__global__ void __launch_bounds__(32 * kVectorWarps) few_rows(const Problem p) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t byte = (int64_t(blockIdx.x) * 32 + lane) * 4;
  const int first = blockIdx.z * p.groups_each;
  const int last = min(first + p.groups_each, int(p.k / kGroup));
  float total[ROWS][8] = {};
  for (int group = first + warp; group < last; group += kVectorWarps) {
    float sum[ROWS][8] = {};
#pragma unroll 2
    for (int k = group * kGroup; k < (group + 1) * kGroup; k += 8) {
      uint32_t word[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) word[i] = load_word(p, k + i, byte);
      uint4 activations[ROWS];
#pragma unroll
      for (int r = 0; r < ROWS; ++r)
        activations[r] = *reinterpret_cast<const uint4*>(p.a + min(int64_t(r), p.m - 1) * p.k + k);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float weight[8];
#pragma unroll
        for (int c = 0; c < 8; ++c)  // a float with these bits is 2^23 + nibble
          weight[c] = __uint_as_float((word[i] >> (4 * c) & 0xF) | 0x4B000000) - 8388616.0f;
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
          const float x = __half2float(reinterpret_cast<const __half*>(&activations[r])[i]);
#pragma unroll
          for (int c = 0; c < 8; ++c) sum[r][c] += x * weight[c];
        }
      }
    }
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      const float scale = load_scale(p, group, byte * 2 + c);
#pragma unroll
      for (int r = 0; r < ROWS; ++r) total[r][c] += sum[r][c] * scale;
    }
  }

  __shared__ float parts[kVectorWarps][ROWS][256];
#pragma unroll
  for (int r = 0; r < ROWS; ++r)
#pragma unroll
    for (int c = 0; c < 8; ++c) parts[warp][r][lane * 8 + c] = total[r][c];
  __syncthreads();
  for (int i = threadIdx.x; i < ROWS * 256; i += blockDim.x) {
    const int row = i / 256, col = i % 256;
    float value = 0.0f;
    for (int w = 0; w < kVectorWarps; ++w) value += parts[w][row][col];
    store_result(p, row, int64_t(blockIdx.x) * 256 + col, value);
  }
}

// ---- more rows: tensor cores -------------------------------------------------------------------

constexpr int kDepth = 64;  // of a tile; half a group
constexpr int kPad = 8;     // halves after each row in shared memory, against bank conflicts

template <int BM, int BN, int WARPS_M, int WARPS_N> struct Tile {
  static constexpr int kThreads = 32 * WARPS_M * WARPS_N;
  static constexpr int kRows = BM / WARPS_M, kCols = BN / WARPS_N;  // of a warp
  static constexpr int kVectors = BM * kDepth / 8 / kThreads;      // of 8 activations, per thread
  static constexpr int kWords = kDepth * BN / 8 / kThreads;        // of 8 weights, per thread
  static_assert(kVectors * kThreads * 8 == BM * kDepth && kWords * kThreads * 8 == kDepth * BN);

  __half a[BM][kDepth + kPad];
  __half b[kDepth][BN + kPad];
};

// Eight weights times their scales, rounded to fp16 as PyTorch's dequantization does.
__device__ uint4 unpack(uint32_t word, const __half (&scale)[8]) {
  uint4 result;
  __half2* pair = reinterpret_cast<__half2*>(&result);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t byte = word >> (8 * i);
    // An fp16 number with these bits is 1024 + nibble.
    const uint32_t bits = (byte & 0xF) | (byte & 0xF0) << 12 | 0x64006400;
    const __half2 nibbles = *reinterpret_cast<const __half2*>(&bits);
    const __half2 weights = __hsub2(nibbles, __float2half2_rn(1032.0f));
    pair[i] = __hmul2(weights, __halves2half2(scale[2 * i], scale[2 * i + 1]));
  }
  return result;
}

template <int BM, int BN, int WARPS_M, int WARPS_N>
__global__ void __launch_bounds__(32 * WARPS_M * WARPS_N) many_rows(const Problem p) {
  using namespace nvcuda;
  using T = Tile<BM, BN, WARPS_M, WARPS_N>;
  __shared__ __align__(32) T tile;
  __shared__ __align__(32) float corner[WARPS_M * WARPS_N][16][16];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_row = warp / WARPS_N * T::kRows, warp_col = warp % WARPS_N * T::kCols;
  const int64_t row0 = int64_t(blockIdx.y) * BM, col0 = int64_t(blockIdx.x) * BN;

  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum[T::kRows / 16][T::kCols / 16];
#pragma unroll
  for (int i = 0; i < T::kRows / 16; ++i)
#pragma unroll
    for (int j = 0; j < T::kCols / 16; ++j) wmma::fill_fragment(sum[i][j], 0.0f);

  uint4 vector[T::kVectors];
  uint32_t word[T::kWords];
  auto load = [&](int k) {
#pragma unroll
    for (int i = 0; i < T::kVectors; ++i) {
      const int at = i * T::kThreads + threadIdx.x;
      const int64_t row = row0 + at / (kDepth / 8);
      vector[i] = make_uint4(0, 0, 0, 0);
      if (row < p.m)
        vector[i] = *reinterpret_cast<const uint4*>(p.a + row * p.k + k + at % (kDepth / 8) * 8);
    }
#pragma unroll
    for (int i = 0; i < T::kWords; ++i) {
      const int at = i * T::kThreads + threadIdx.x;
      word[i] = load_word(p, k + at / (BN / 8), col0 / 2 + at % (BN / 8) * 4);
    }
  };

  const int first = blockIdx.z * p.groups_each * kGroup;
  const int last = min(first + p.groups_each * kGroup, int(p.k));
  if (first < last) load(first);
  __half scale[8];
  for (int k = first; k < last; k += kDepth) {
    // A thread's words all lie in the same eight columns: kThreads is a multiple of BN / 8.
    static_assert(T::kThreads % (BN / 8) == 0);
    if (k % kGroup == 0) {
#pragma unroll
      for (int c = 0; c < 8; ++c)
        scale[c] = __float2half_rn(
            load_scale(p, k / kGroup, col0 + threadIdx.x % (BN / 8) * 8 + c));
    }
#pragma unroll
    for (int i = 0; i < T::kVectors; ++i) {
      const int at = i * T::kThreads + threadIdx.x;
      *reinterpret_cast<uint4*>(&tile.a[at / (kDepth / 8)][at % (kDepth / 8) * 8]) = vector[i];
    }
#pragma unroll
    for (int i = 0; i < T::kWords; ++i) {
      const int at = i * T::kThreads + threadIdx.x;
      *reinterpret_cast<uint4*>(&tile.b[at / (BN / 8)][at % (BN / 8) * 8]) = unpack(word[i], scale);
    }
    __syncthreads();
    if (k + kDepth < last) load(k + kDepth);

#pragma unroll
    for (int step = 0; step < kDepth; step += 16) {
      wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> b[T::kCols / 16];
#pragma unroll
      for (int j = 0; j < T::kCols / 16; ++j)
        wmma::load_matrix_sync(b[j], &tile.b[step][warp_col + j * 16], BN + kPad);
#pragma unroll
      for (int i = 0; i < T::kRows / 16; ++i) {
        wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> a;
        wmma::load_matrix_sync(a, &tile.a[warp_row + i * 16][step], kDepth + kPad);
#pragma unroll
        for (int j = 0; j < T::kCols / 16; ++j) wmma::mma_sync(sum[i][j], a, b[j], sum[i][j]);
      }
    }
    __syncthreads();
  }

#pragma unroll
  for (int i = 0; i < T::kRows / 16; ++i)
#pragma unroll
    for (int j = 0; j < T::kCols / 16; ++j) {
      wmma::store_matrix_sync(&corner[warp][0][0], sum[i][j], 16, wmma::mem_row_major);
      __syncwarp();
      const int row = lane / 2, col = lane % 2 * 8;
#pragma unroll
      for (int c = 0; c < 8; ++c)
        store_result(p, row0 + warp_row + i * 16 + row, col0 + warp_col + j * 16 + col + c,
                     corner[warp][row][col + c]);
      __syncwarp();
    }
}

// ---- partial sums, and launches ----------------------------------------------------------------

__global__ void sum_parts(__half* out, int64_t elements, int splits) {
  const int64_t at = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= elements) return;
  float total = 0.0f;
  for (int split = 0; split < splits; ++split) total += partials[split * elements + at];
  out[at] = __float2half_rn(total);
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Chooses the number of splits, launches `kernel` over them, and adds the partial sums.
void launch(void (*kernel)(Problem), Problem p, int rows, int cols, int threads, bool may_split,
            cudaStream_t stream) {
  dim3 grid(unsigned(ceil_div(p.n, cols)), unsigned(ceil_div(p.m, rows)), 1);
  const int64_t groups = p.k / kGroup, elements = p.m * p.n;
  int64_t splits = may_split ? kBlocks / (int64_t(grid.x) * grid.y) : 1;
  splits = max(int64_t(1), min(min(splits, groups), kPartials / elements));
  p.groups_each = int(ceil_div(groups, splits));
  splits = ceil_div(groups, p.groups_each);
  p.split = splits > 1;
  grid.z = unsigned(splits);
  kernel<<<grid, threads, 0, stream>>>(p);
  if (p.split)
    sum_parts<<<unsigned(ceil_div(elements, 256)), 256, 0, stream>>>(p.out, elements, int(splits));
}

}  // namespace

extern "C" void int4_matmul(const __half* a, const uint8_t* b_packed, const __half* scales,
                            __half* out, int64_t m, int64_t k, int64_t n, cudaStream_t stream) {
  const Problem p = {a, b_packed, scales, out, m, n, k, 0, false};
  const int vector_threads = 32 * kVectorWarps;
  if (m == 1) return launch(few_rows<1>, p, 1, 256, vector_threads, true, stream);
  if (m == 2) return launch(few_rows<2>, p, 2, 256, vector_threads, true, stream);
  if (m <= 4) return launch(few_rows<4>, p, 4, 256, vector_threads, true, stream);
  if (m <= 16) return launch(many_rows<16, 128, 1, 4>, p, 16, 128, 128, true, stream);
  if (m <= 64) return launch(many_rows<64, 128, 2, 4>, p, 64, 128, 256, true, stream);
  launch(many_rows<128, 128, 2, 4>, p, 128, 128, 256, false, stream);
}
