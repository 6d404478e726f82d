// Paged attention with one warp for each sequence and query head: an online softmax over the tokens,
// one after the other. Each lane holds every 32nd column of the query and of the result.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

namespace {

constexpr int kColumnsEach = 4;  // head_dim is at most 128
constexpr int kWarps = 4;

struct Sizes {
  int64_t batch, heads, head_dim, page_size, kv_heads, columns;
};

template <typename T>
__global__ void one_head(const T* q, const T* k_pages, const T* v_pages, const int32_t* block_table,
                         const int32_t* lengths, T* out, float scale, Sizes size) {
  const int64_t row = int64_t(blockIdx.x) * kWarps + threadIdx.y;
  if (row >= size.batch * size.heads) return;
  const int64_t sequence = row / size.heads;
  const int64_t kv_head = row % size.heads / (size.heads / size.kv_heads);
  const int32_t* pages = block_table + sequence * size.columns;

  float wanted[kColumnsEach] = {}, result[kColumnsEach] = {};
  for (int i = 0; i < kColumnsEach; ++i) {
    const int64_t column = threadIdx.x + 32 * i;
    if (column < size.head_dim) wanted[i] = float(q[row * size.head_dim + column]) * scale;
  }
  float highest = -INFINITY, sum = 0.0f;
  const int64_t length = lengths[sequence];
  for (int64_t token = 0; token < length; ++token) {
    const int64_t slot = pages[token / size.page_size] * size.page_size + token % size.page_size;
    const int64_t at = (slot * size.kv_heads + kv_head) * size.head_dim;
    float score = 0.0f;
    for (int i = 0; i < kColumnsEach; ++i) {
      const int64_t column = threadIdx.x + 32 * i;
      if (column < size.head_dim) score += wanted[i] * float(k_pages[at + column]);
    }
    for (int lane = 16; lane > 0; lane /= 2) score += __shfl_xor_sync(0xffffffffu, score, lane);
    const float grown = fmaxf(highest, score);
    const float rescale = expf(highest - grown), weight = expf(score - grown);
    highest = grown;
    sum = sum * rescale + weight;
    for (int i = 0; i < kColumnsEach; ++i) {
      const int64_t column = threadIdx.x + 32 * i;
      if (column < size.head_dim)
        result[i] = result[i] * rescale + weight * float(v_pages[at + column]);
    }
  }
  for (int i = 0; i < kColumnsEach; ++i) {
    const int64_t column = threadIdx.x + 32 * i;
    if (column < size.head_dim) out[row * size.head_dim + column] = T(result[i] / sum);
  }
}

template <typename T>
void launch(const T* q, const T* k_pages, const T* v_pages, const int32_t* block_table,
            const int32_t* lengths, T* out, double scale, const Sizes& size, cudaStream_t stream) {
  const int64_t blocks = (size.batch * size.heads + kWarps - 1) / kWarps;
  one_head<<<unsigned(blocks), dim3(32, kWarps), 0, stream>>>(
      q, k_pages, v_pages, block_table, lengths, out, float(scale), size);
}

}  // namespace

extern "C" void paged_attention_decode(const __nv_bfloat16* q, const __nv_bfloat16* k_pages,
                                       const __nv_bfloat16* v_pages, const int32_t* block_table,
                                       const int32_t* lengths, __nv_bfloat16* out, double scale,
                                       int64_t batch, int64_t heads, int64_t head_dim,
                                       int64_t tokens, int64_t page_size, int64_t kv_heads,
                                       int64_t max_len, cudaStream_t stream) {
  const int64_t columns = (max_len + page_size - 1) / page_size;
  launch(q, k_pages, v_pages, block_table, lengths, out, scale,
         Sizes{batch, heads, head_dim, page_size, kv_heads, columns}, stream);
}

extern "C" void paged_attention_decode_fp16(const __half* q, const __half* k_pages,
                                            const __half* v_pages, const int32_t* block_table,
                                            const int32_t* lengths, __half* out, double scale,
                                            int64_t batch, int64_t heads, int64_t head_dim,
                                            int64_t tokens, int64_t page_size, int64_t kv_heads,
                                            int64_t max_len, cudaStream_t stream) {
  const int64_t columns = (max_len + page_size - 1) / page_size;
  launch(q, k_pages, v_pages, block_table, lengths, out, scale,
         Sizes{batch, heads, head_dim, page_size, kv_heads, columns}, stream);
}
