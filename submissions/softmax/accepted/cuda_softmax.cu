// Softmax in CUDA C++. A row of up to 32768 elements is read once into the registers of one warp or
// block. Wider rows are split into chunks, and processed in bands of rows that stay in the L2 cache
// between the pass that sums and the pass that writes.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

namespace {

constexpr int kChunkThreads = 256;
constexpr int kChunkElements = 32;
constexpr int64_t kChunk = kChunkThreads * kChunkElements;
constexpr int64_t kBandBytes = 20 << 20;
constexpr int64_t kPartials = 1 << 17;

// Maximum and sum of each chunk of the current band. Launches on one stream use it one by one.
__device__ float2 partials[kPartials];

__device__ float to_float(float v) { return v; }
__device__ float to_float(__half v) { return __half2float(v); }
__device__ float to_float(__nv_bfloat16 v) { return __bfloat162float(v); }
template <typename T> __device__ T from_float(float v);
template <> __device__ float from_float<float>(float v) { return v; }
template <> __device__ __half from_float<__half>(float v) { return __float2half_rn(v); }
template <> __device__ __nv_bfloat16 from_float<__nv_bfloat16>(float v) {
  return __float2bfloat16_rn(v);
}

template <typename T, int V> struct alignas(sizeof(T) * V) Pack {
  T at[V];
};

__device__ float minus_infinity() { return __int_as_float(0xff800000); }

template <bool kMax> __device__ float combine(float a, float b) {
  return kMax ? fmaxf(a, b) : a + b;
}

template <bool kMax> __device__ float warp_reduce(float v) {
  for (int offset = 16; offset > 0; offset /= 2)
    v = combine<kMax>(v, __shfl_xor_sync(0xffffffffu, v, offset));
  return v;
}

// Over the threads of one row: a warp, or the whole block when blockDim.x is more than a warp.
template <bool kMax> __device__ float row_reduce(float v) {
  v = warp_reduce<kMax>(v);
  if (blockDim.x == 32) return v;
  __shared__ float per_warp[32];
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  __syncthreads();  // other threads may still read the previous result
  if (lane == 0) per_warp[threadIdx.x / 32] = v;
  __syncthreads();
  return warp_reduce<kMax>(lane < warps ? per_warp[lane] : (kMax ? minus_infinity() : 0.0f));
}

// Thread t takes packs t, t + threads, t + 2 * threads, ...; beyond `count` it reads -inf.
template <typename T, int V, int E>
__device__ void load_row(const T* row, int64_t count, float (&value)[E]) {
#pragma unroll
  for (int i = 0; i < E / V; ++i) {
    const int64_t at = (int64_t(i) * blockDim.x + threadIdx.x) * V;
    if (at < count) {
      const auto pack = *reinterpret_cast<const Pack<T, V>*>(row + at);
#pragma unroll
      for (int j = 0; j < V; ++j) value[i * V + j] = to_float(pack.at[j]);
    } else {
#pragma unroll
      for (int j = 0; j < V; ++j) value[i * V + j] = minus_infinity();
    }
  }
}

template <typename T, int V, int E>
__device__ void store_row(T* row, int64_t count, const float (&value)[E], float total) {
#pragma unroll
  for (int i = 0; i < E / V; ++i) {
    const int64_t at = (int64_t(i) * blockDim.x + threadIdx.x) * V;
    if (at >= count) continue;
    Pack<T, V> pack;
#pragma unroll
    for (int j = 0; j < V; ++j) pack.at[j] = from_float<T>(value[i * V + j] / total);
    *reinterpret_cast<Pack<T, V>*>(row + at) = pack;
  }
}

template <int E> __device__ float row_max(const float (&value)[E]) {
  float highest = value[0];
#pragma unroll
  for (int i = 1; i < E; ++i) highest = fmaxf(highest, value[i]);
  return row_reduce<true>(highest);
}

template <int E> __device__ float exponentiate(float (&value)[E], float base) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < E; ++i) {
    value[i] = expf(value[i] - base);
    sum += value[i];
  }
  return sum;
}

template <typename T, int V, int E>
__global__ void __launch_bounds__(1024) whole_rows(const T* x, T* out, int64_t rows, int64_t cols) {
  const int64_t row = int64_t(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= rows) return;  // a whole warp at a time: rows share a block only when a row is a warp
  float value[E];
  load_row<T, V>(x + row * cols, cols, value);
  const float total = row_reduce<false>(exponentiate(value, row_max(value)));
  store_row<T, V>(out + row * cols, cols, value, total);
}

template <typename T, int V>
__global__ void __launch_bounds__(kChunkThreads) chunk_sums(const T* x, int64_t cols) {
  const int64_t first = blockIdx.x * kChunk;
  const int64_t count = min(kChunk, cols - first);
  float value[kChunkElements];
  load_row<T, V>(x + int64_t(blockIdx.y) * cols + first, count, value);
  const float highest = row_max(value);
  // A chunk of only -inf has sum 0, not NaN; the row may have finite values elsewhere.
  const float base = highest == minus_infinity() ? 0.0f : highest;
  const float sum = row_reduce<false>(exponentiate(value, base));
  if (threadIdx.x == 0)
    partials[blockIdx.y * gridDim.x + blockIdx.x] = make_float2(highest, sum);
}

template <typename T, int V>
__global__ void __launch_bounds__(kChunkThreads) chunk_finish(const T* x, T* out, int64_t cols) {
  // From the last chunk to the first: the last one read is the likeliest to be cached.
  const int64_t row = gridDim.y - 1 - blockIdx.y, chunk = gridDim.x - 1 - blockIdx.x;
  const float2* mine = partials + row * gridDim.x;
  float highest = minus_infinity();
  for (int i = threadIdx.x; i < gridDim.x; i += blockDim.x) highest = fmaxf(highest, mine[i].x);
  highest = row_reduce<true>(highest);
  const float base = highest == minus_infinity() ? 0.0f : highest;
  float total = 0.0f;
  for (int i = threadIdx.x; i < gridDim.x; i += blockDim.x)
    total += mine[i].y * expf(mine[i].x - base);
  total = row_reduce<false>(total);

  const int64_t at = row * cols + chunk * kChunk, count = min(kChunk, cols - chunk * kChunk);
  float value[kChunkElements];
  load_row<T, V>(x + at, count, value);
  exponentiate(value, highest);
  store_row<T, V>(out + at, count, value, total);
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <typename T, int V, int E>
void launch_rows(const T* x, T* out, int64_t rows, int64_t cols, cudaStream_t stream) {
  const unsigned threads = unsigned(ceil_div(ceil_div(cols, E), 32) * 32);
  const dim3 block(threads, threads == 32 ? 8 : 1);
  const unsigned blocks = unsigned(ceil_div(rows, block.y));
  whole_rows<T, V, E><<<blocks, block, 0, stream>>>(x, out, rows, cols);
}

template <typename T, int V>
void launch(const T* x, T* out, int64_t rows, int64_t cols, cudaStream_t stream) {
  if (cols <= 256) return launch_rows<T, V, 8>(x, out, rows, cols, stream);
  if (cols <= 16384) return launch_rows<T, V, 16>(x, out, rows, cols, stream);
  if (cols <= 32768) return launch_rows<T, V, 32>(x, out, rows, cols, stream);
  const int64_t chunks = ceil_div(cols, kChunk);
  int64_t band = kBandBytes / (cols * int64_t(sizeof(T)));
  band = max(int64_t(1), min(band, min(kPartials / chunks, int64_t(65535))));
  for (int64_t first = 0; first < rows; first += band) {
    const dim3 grid(unsigned(chunks), unsigned(min(band, rows - first)));
    const T* some_x = x + first * cols;
    chunk_sums<T, V><<<grid, kChunkThreads, 0, stream>>>(some_x, cols);
    chunk_finish<T, V><<<grid, kChunkThreads, 0, stream>>>(some_x, out + first * cols, cols);
  }
}

template <typename T>
void dispatch(const T* x, T* out, int64_t rows, int64_t cols, cudaStream_t stream) {
  constexpr int kPack = 16 / sizeof(T);
  const bool aligned = cols % kPack == 0 && reinterpret_cast<uintptr_t>(x) % 16 == 0 &&
                       reinterpret_cast<uintptr_t>(out) % 16 == 0;
  if (aligned)
    launch<T, kPack>(x, out, rows, cols, stream);
  else
    launch<T, 1>(x, out, rows, cols, stream);
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
