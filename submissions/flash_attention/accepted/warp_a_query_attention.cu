// Attention with one warp a query: an online softmax over the keys, one after the other. Each lane
// holds every 32nd column of the query and of the result.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

namespace {

constexpr int kColumnsEach = 4;  // head_dim is at most 128

struct Sizes {
  int64_t batch, heads, q_len, head_dim, kv_heads, k_len;
};

template <typename T>
__global__ void one_query(const T* q, const int64_t q0, const int64_t q1, const int64_t q2,
                          const T* k, const int64_t k0, const int64_t k1, const int64_t k2,
                          const T* v, const int64_t v0, const int64_t v1, const int64_t v2, T* out,
                          bool causal, float scale, Sizes size) {
  const int64_t query = int64_t(blockIdx.x) * blockDim.y + threadIdx.y;
  if (query >= size.q_len) return;
  const int64_t head = blockIdx.y % size.heads, batch = blockIdx.y / size.heads;
  const int64_t kv_head = head / (size.heads / size.kv_heads);
  q += batch * q0 + head * q1 + query * q2;
  k += batch * k0 + kv_head * k1;
  v += batch * v0 + kv_head * v1;
  out += (int64_t(blockIdx.y) * size.q_len + query) * size.head_dim;

  float wanted[kColumnsEach] = {}, result[kColumnsEach] = {};
  for (int i = 0; i < kColumnsEach; ++i) {
    const int64_t column = threadIdx.x + 32 * i;
    if (column < size.head_dim) wanted[i] = float(q[column]) * scale;
  }
  const int64_t seen = causal ? query + size.k_len - size.q_len + 1 : size.k_len;
  float highest = -INFINITY, sum = 0.0f;
  for (int64_t key = 0; key < seen; ++key) {
    float score = 0.0f;
    for (int i = 0; i < kColumnsEach; ++i) {
      const int64_t column = threadIdx.x + 32 * i;
      if (column < size.head_dim) score += wanted[i] * float(k[key * k2 + column]);
    }
    for (int lane = 16; lane > 0; lane /= 2) score += __shfl_xor_sync(0xffffffffu, score, lane);
    const float grown = fmaxf(highest, score);
    const float rescale = expf(highest - grown), weight = expf(score - grown);
    highest = grown;
    sum = sum * rescale + weight;
    for (int i = 0; i < kColumnsEach; ++i) {
      const int64_t column = threadIdx.x + 32 * i;
      if (column < size.head_dim)
        result[i] = result[i] * rescale + weight * float(v[key * v2 + column]);
    }
  }
  for (int i = 0; i < kColumnsEach; ++i) {
    const int64_t column = threadIdx.x + 32 * i;
    // A query that sees no key gives zeros.
    if (column < size.head_dim) out[column] = T(seen > 0 ? result[i] / sum : 0.0f);
  }
}

template <typename T>
void launch(const T* q, const int64_t* q_strides, const T* k, const int64_t* k_strides, const T* v,
            const int64_t* v_strides, T* out, bool causal, double scale, const Sizes& size,
            cudaStream_t stream) {
  // The last axis is contiguous in both memory layouts of the problem.
  const dim3 block(32, 4);
  const dim3 grid(unsigned((size.q_len + 3) / 4), unsigned(size.batch * size.heads));
  one_query<<<grid, block, 0, stream>>>(q, q_strides[0], q_strides[1], q_strides[2], k,
                                        k_strides[0], k_strides[1], k_strides[2], v, v_strides[0],
                                        v_strides[1], v_strides[2], out, causal, float(scale),
                                        size);
}

}  // namespace

extern "C" void flash_attention(const __nv_bfloat16* q, const int64_t* q_strides,
                                const __nv_bfloat16* k, const int64_t* k_strides,
                                const __nv_bfloat16* v, const int64_t* v_strides,
                                __nv_bfloat16* out, bool causal, double scale, int64_t batch,
                                int64_t heads, int64_t q_len, int64_t head_dim, int64_t kv_heads,
                                int64_t k_len, cudaStream_t stream) {
  launch(q, q_strides, k, k_strides, v, v_strides, out, causal, scale,
         Sizes{batch, heads, q_len, head_dim, kv_heads, k_len}, stream);
}

extern "C" void flash_attention_fp16(const __half* q, const int64_t* q_strides, const __half* k,
                                     const int64_t* k_strides, const __half* v,
                                     const int64_t* v_strides, __half* out, bool causal,
                                     double scale, int64_t batch, int64_t heads, int64_t q_len,
                                     int64_t head_dim, int64_t kv_heads, int64_t k_len,
                                     cudaStream_t stream) {
  launch(q, q_strides, k, k_strides, v, v_strides, out, causal, scale,
         Sizes{batch, heads, q_len, head_dim, kv_heads, k_len}, stream);
}
