// The backward pass with one warp for each query (dq), and then one for each key (dk and dv), which
// goes over all queries of its group. Each lane holds every 32nd column. The sums of `out` and `dout`
// are computed for each pair, so that no memory is needed for them.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

namespace {

constexpr int kColumnsEach = 4;  // head_dim is at most 128
constexpr int kWarps = 4;

struct Sizes {
  int64_t batch, heads, length, head_dim, kv_heads;
  bool causal;
  float scale;
};

struct Row {
  float at[kColumnsEach];
};

template <typename T>
__device__ Row load(const T* row, int64_t head_dim) {
  Row loaded;
  for (int i = 0; i < kColumnsEach; ++i) {
    const int64_t column = threadIdx.x + 32 * i;
    loaded.at[i] = column < head_dim ? float(row[column]) : 0.0f;
  }
  return loaded;
}

template <typename T>
__device__ void store(T* row, const Row& values, float factor, int64_t head_dim) {
  for (int i = 0; i < kColumnsEach; ++i) {
    const int64_t column = threadIdx.x + 32 * i;
    if (column < head_dim) row[column] = T(values.at[i] * factor);
  }
}

__device__ float dot(const Row& a, const Row& b) {
  float sum = 0.0f;
  for (int i = 0; i < kColumnsEach; ++i) sum += a.at[i] * b.at[i];
  for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lane);
  return sum;
}

__device__ void add(Row& total, float factor, const Row& row) {
  for (int i = 0; i < kColumnsEach; ++i) total.at[i] += factor * row.at[i];
}

template <typename T>
__global__ void of_queries(const T* q, const T* k, const T* v, const T* out, const T* dout,
                           const float* lse, T* dq, Sizes size) {
  const int64_t row = int64_t(blockIdx.x) * kWarps + threadIdx.y;
  if (row >= size.batch * size.heads * size.length) return;
  const int64_t dim = size.head_dim, head = row / size.length, query = row % size.length;
  const int64_t first_key = head / (size.heads / size.kv_heads) * size.length;
  const Row wanted = load(q + row * dim, dim), gradient = load(dout + row * dim, dim);
  const float taken = dot(gradient, load(out + row * dim, dim));
  Row total = {};
  const int64_t end = size.causal ? query + 1 : size.length;
  for (int64_t key = 0; key < end; ++key) {
    const int64_t at = (first_key + key) * dim;
    const Row keys = load(k + at, dim);
    const float weight = expf(size.scale * dot(wanted, keys) - lse[row]);
    add(total, weight * (dot(gradient, load(v + at, dim)) - taken), keys);
  }
  store(dq + row * dim, total, size.scale, dim);
}

template <typename T>
__global__ void of_keys(const T* q, const T* k, const T* v, const T* out, const T* dout,
                        const float* lse, T* dk, T* dv, Sizes size) {
  const int64_t row = int64_t(blockIdx.x) * kWarps + threadIdx.y;
  if (row >= size.batch * size.kv_heads * size.length) return;
  const int64_t dim = size.head_dim, group = size.heads / size.kv_heads;
  const int64_t kv_head = row / size.length, key = row % size.length;
  const Row keys = load(k + row * dim, dim), values = load(v + row * dim, dim);
  Row dk_total = {}, dv_total = {};
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    for (int64_t query = size.causal ? key : 0; query < size.length; ++query) {
      const int64_t at = head * size.length + query;
      const Row wanted = load(q + at * dim, dim), gradient = load(dout + at * dim, dim);
      const float weight = expf(size.scale * dot(wanted, keys) - lse[at]);
      add(dv_total, weight, gradient);
      const float taken = dot(gradient, load(out + at * dim, dim));
      add(dk_total, weight * (dot(gradient, values) - taken), wanted);
    }
  }
  store(dk + row * dim, dk_total, size.scale, dim);
  store(dv + row * dim, dv_total, 1.0f, dim);
}

template <typename T>
void launch(const T* q, const T* k, const T* v, const T* out, const T* dout, const float* lse,
            T* dq, T* dk, T* dv, const Sizes& size, cudaStream_t stream) {
  const int64_t queries = size.batch * size.heads * size.length;
  const int64_t keys = size.batch * size.kv_heads * size.length;
  const dim3 block(32, kWarps);
  of_queries<<<unsigned((queries + kWarps - 1) / kWarps), block, 0, stream>>>(
      q, k, v, out, dout, lse, dq, size);
  of_keys<<<unsigned((keys + kWarps - 1) / kWarps), block, 0, stream>>>(q, k, v, out, dout, lse,
                                                                        dk, dv, size);
}

}  // namespace

extern "C" void flash_attention_backward(const __nv_bfloat16* q, const __nv_bfloat16* k,
                                         const __nv_bfloat16* v, const __nv_bfloat16* out,
                                         const __nv_bfloat16* dout, const float* lse,
                                         __nv_bfloat16* dq, __nv_bfloat16* dk, __nv_bfloat16* dv,
                                         bool causal, double scale, int64_t batch, int64_t heads,
                                         int64_t length, int64_t head_dim, int64_t kv_heads,
                                         cudaStream_t stream) {
  launch(q, k, v, out, dout, lse, dq, dk, dv,
         Sizes{batch, heads, length, head_dim, kv_heads, causal, float(scale)}, stream);
}

extern "C" void flash_attention_backward_fp16(const __half* q, const __half* k, const __half* v,
                                              const __half* out, const __half* dout,
                                              const float* lse, __half* dq, __half* dk, __half* dv,
                                              bool causal, double scale, int64_t batch,
                                              int64_t heads, int64_t length, int64_t head_dim,
                                              int64_t kv_heads, cudaStream_t stream) {
  launch(q, k, v, out, dout, lse, dq, dk, dv,
         Sizes{batch, heads, length, head_dim, kv_heads, causal, float(scale)}, stream);
}
