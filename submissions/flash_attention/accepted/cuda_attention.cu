// Flash attention in CUDA C++ for head_dim a multiple of 8 up to 128. A block takes 128 queries, 16
// per warp, and loops over tiles of 64 keys with an online softmax. Products are mma.m16n8k16 with
// fp32 accumulation. A tile's values are loaded while its scores are computed, and the next tile's
// keys while the values are used.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

namespace {

constexpr int kWarps = 8;
constexpr int kQueries = 16 * kWarps;
constexpr int kKeys = 64;
constexpr int kPad = 8;  // elements after each row in shared memory, against bank conflicts

struct Strides {
  int64_t batch, head, row, dim;  // in elements
};

struct Problem {
  const void *q, *k, *v;
  void* out;
  Strides q_strides, k_strides, v_strides;
  int heads, group, q_len, k_len, head_dim;
  bool causal;
  float scale;  // for scores as exponents of 2, not of e
};

// ---- the instructions --------------------------------------------------------------------------

__device__ void load_matrices(uint32_t (&r)[4], const void* shared) {
  const uint32_t at = uint32_t(__cvta_generic_to_shared(shared));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}

__device__ void load_transposed(uint32_t (&r)[4], const void* shared) {
  const uint32_t at = uint32_t(__cvta_generic_to_shared(shared));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}

template <typename T>
__device__ void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

template <>
__device__ void multiply_add<__half>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                     uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ void multiply_add<__nv_bfloat16>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                            uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Copies 16 bytes asynchronously, or writes zeros where there is nothing to copy.
__device__ void copy_async(void* shared, const void* global, bool inside) {
  const uint32_t at = uint32_t(__cvta_generic_to_shared(shared));
  const int bytes = inside ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(at), "l"(global), "r"(bytes)
               : "memory");
}

__device__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// ---- pairs of elements in one register ---------------------------------------------------------

template <typename T> __device__ uint32_t pack(float low, float high);
template <> __device__ uint32_t pack<__half>(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
template <> __device__ uint32_t pack<__nv_bfloat16>(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

__device__ float quad_max(float v) {
  v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 1));
  return fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 2));
}

__device__ float quad_sum(float v) {
  v += __shfl_xor_sync(0xffffffffu, v, 1);
  return v + __shfl_xor_sync(0xffffffffu, v, 2);
}

// ---- tiles -------------------------------------------------------------------------------------

// Rows [first, first + ROWS) of one head into shared memory; rows and columns beyond it are zeros.
template <typename T, int ROWS, int DIM, bool WIDE>
__device__ void load_tile(T (*tile)[DIM + kPad], const T* head, const Strides& strides, int first,
                          int rows, int head_dim) {
  for (int i = threadIdx.x; i < ROWS * DIM / 8; i += 32 * kWarps) {
    const int row = i / (DIM / 8), dim = i % (DIM / 8) * 8;
    const bool inside = first + row < rows && dim < head_dim;
    const T* from = inside ? head + (first + row) * strides.row + dim * strides.dim : head;
    if (WIDE) {
      copy_async(&tile[row][dim], from, inside);
    } else {
      for (int j = 0; j < 8; ++j) tile[row][dim + j] = inside ? from[j * strides.dim] : T(0.0f);
    }
  }
}

// The columns of `scores` held by a thread: key 8 * n + 2 * (lane % 4) + {0, 1}, for rows lane / 4
// (elements 0 and 1) and lane / 4 + 8 (elements 2 and 3).
__device__ void hide(float (&scores)[kKeys / 8][4], const Problem& p, int first_key, int query) {
  const int column = threadIdx.x % 4 * 2;
#pragma unroll
  for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int key = first_key + n * 8 + column + e % 2;
      const int last = p.causal ? query + e / 2 * 8 + p.k_len - p.q_len : p.k_len;
      if (key >= p.k_len || key > last) scores[n][e] = __int_as_float(0xff800000);
    }
}

template <typename T, int DIM, bool WIDE>
__global__ void __launch_bounds__(32 * kWarps) attention(const Problem p) {
  __shared__ __align__(16) T shared[2 * kKeys][DIM + kPad];
  static_assert(kQueries <= 2 * kKeys, "queries pass through the memory of keys and values");
  T(*keys)[DIM + kPad] = shared;
  T(*values)[DIM + kPad] = shared + kKeys;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int batch = blockIdx.y / p.heads, head = blockIdx.y % p.heads;
  const T* q = static_cast<const T*>(p.q) + batch * p.q_strides.batch + head * p.q_strides.head;
  const T* k = static_cast<const T*>(p.k) + batch * p.k_strides.batch +
               head / p.group * p.k_strides.head;
  const T* v = static_cast<const T*>(p.v) + batch * p.v_strides.batch +
               head / p.group * p.v_strides.head;
  // The last queries see the most keys: the longest work starts first.
  const int first_query = (gridDim.x - 1 - blockIdx.x) * kQueries;
  const int query = first_query + warp * 16 + lane / 4;  // and query + 8

  int key_end = p.k_len;
  if (p.causal) key_end = min(key_end, max(0, first_query + kQueries + p.k_len - p.q_len));

  load_tile<T, kQueries, DIM, WIDE>(shared, q, p.q_strides, first_query, p.q_len, p.head_dim);
  wait_for_copies();
  __syncthreads();
  uint32_t q_part[DIM / 16][4];
#pragma unroll
  for (int d = 0; d < DIM / 16; ++d)
    load_matrices(q_part[d], &shared[warp * 16 + lane % 16][d * 16 + lane / 16 * 8]);
  __syncthreads();

  float total[DIM / 8][4] = {};
  float highest[2] = {__int_as_float(0xff800000), __int_as_float(0xff800000)};
  float weight[2] = {0.0f, 0.0f};

  if (key_end > 0)
    load_tile<T, kKeys, DIM, WIDE>(keys, k, p.k_strides, 0, p.k_len, p.head_dim);
  for (int first_key = 0; first_key < key_end; first_key += kKeys) {
    wait_for_copies();
    __syncthreads();  // the keys have arrived, and no thread reads the last values any more
    load_tile<T, kKeys, DIM, WIDE>(values, v, p.v_strides, first_key, p.k_len, p.head_dim);

    float scores[kKeys / 8][4] = {};
#pragma unroll
    for (int d = 0; d < DIM / 16; ++d)
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        uint32_t b[4];
        load_matrices(b, &keys[n * 16 + lane % 8 + lane / 16 * 8][d * 16 + lane / 8 % 2 * 8]);
        multiply_add<T>(scores[2 * n], q_part[d], b[0], b[1]);
        multiply_add<T>(scores[2 * n + 1], q_part[d], b[2], b[3]);
      }
    const int seen_by_all = p.causal ? first_query + p.k_len - p.q_len + 1 : p.k_len;
    if (first_key + kKeys > min(seen_by_all, p.k_len)) hide(scores, p, first_key, query);

    wait_for_copies();
    __syncthreads();  // the values have arrived, and no thread reads these keys any more
    if (first_key + kKeys < key_end)
      load_tile<T, kKeys, DIM, WIDE>(keys, k, p.k_strides, first_key + kKeys, p.k_len, p.head_dim);

#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float above = highest[half];
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
        above = fmaxf(above, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
      above = quad_max(above);
      // A query that has seen no key yet has no maximum to subtract.
      const float base = above == __int_as_float(0xff800000) ? 0.0f : above * p.scale;
      const float fade = exp2f(highest[half] * p.scale - base);
      highest[half] = above;
      float sum = 0.0f;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          scores[n][e] = exp2f(scores[n][e] * p.scale - base);
          sum += scores[n][e];
        }
      weight[half] = weight[half] * fade + sum;  // of this thread's columns
#pragma unroll
      for (int d = 0; d < DIM / 8; ++d) {
        total[d][2 * half] *= fade;
        total[d][2 * half + 1] *= fade;
      }
    }

#pragma unroll
    for (int n = 0; n < kKeys / 16; ++n) {
      const uint32_t a[4] = {pack<T>(scores[2 * n][0], scores[2 * n][1]),
                             pack<T>(scores[2 * n][2], scores[2 * n][3]),
                             pack<T>(scores[2 * n + 1][0], scores[2 * n + 1][1]),
                             pack<T>(scores[2 * n + 1][2], scores[2 * n + 1][3])};
#pragma unroll
      for (int d = 0; d < DIM / 16; ++d) {
        uint32_t b[4];
        load_transposed(b, &values[n * 16 + lane % 16][d * 16 + lane / 16 * 8]);
        multiply_add<T>(total[2 * d], a, b[0], b[1]);
        multiply_add<T>(total[2 * d + 1], a, b[2], b[3]);
      }
    }
  }

  T* out = static_cast<T*>(p.out) + int64_t(blockIdx.y) * p.q_len * p.head_dim;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = quad_sum(weight[half]);
    const float share = sum == 0.0f ? 0.0f : 1.0f / sum;  // a query that saw no key gives zeros
    const int row = query + 8 * half;
    if (row >= p.q_len) continue;
#pragma unroll
    for (int d = 0; d < DIM / 8; ++d) {
      const int dim = d * 8 + lane % 4 * 2;
      if (dim < p.head_dim)
        *reinterpret_cast<uint32_t*>(out + int64_t(row) * p.head_dim + dim) =
            pack<T>(total[d][2 * half] * share, total[d][2 * half + 1] * share);
    }
  }
}

// ---- launch ------------------------------------------------------------------------------------

bool wide(const void* base, const Strides& strides) {
  return reinterpret_cast<uintptr_t>(base) % 16 == 0 && strides.dim == 1 && strides.row % 8 == 0 &&
         strides.head % 8 == 0 && strides.batch % 8 == 0;
}

template <typename T, int DIM> void launch(const Problem& p, int64_t batch, cudaStream_t stream) {
  const dim3 grid(unsigned((p.q_len + kQueries - 1) / kQueries), unsigned(batch * p.heads));
  if (wide(p.q, p.q_strides) && wide(p.k, p.k_strides) && wide(p.v, p.v_strides))
    attention<T, DIM, true><<<grid, 32 * kWarps, 0, stream>>>(p);
  else
    attention<T, DIM, false><<<grid, 32 * kWarps, 0, stream>>>(p);
}

Strides strides_of(const int64_t* strides) {
  return {strides[0], strides[1], strides[2], strides[3]};
}

template <typename T>
void dispatch(const T* q, const int64_t* q_strides, const T* k, const int64_t* k_strides,
              const T* v, const int64_t* v_strides, T* out, bool causal, double scale,
              int64_t batch, int64_t heads, int64_t q_len, int64_t head_dim, int64_t kv_heads,
              int64_t k_len, cudaStream_t stream) {
  const Problem p = {q,
                     k,
                     v,
                     out,
                     strides_of(q_strides),
                     strides_of(k_strides),
                     strides_of(v_strides),
                     int(heads),
                     int(heads / kv_heads),
                     int(q_len),
                     int(k_len),
                     int(head_dim),
                     causal,
                     float(scale * 1.4426950408889634)};
  if (head_dim <= 64)
    launch<T, 64>(p, batch, stream);
  else
    launch<T, 128>(p, batch, stream);
}

}  // namespace

extern "C" void flash_attention(const __nv_bfloat16* q, const int64_t* q_strides,
                                const __nv_bfloat16* k, const int64_t* k_strides,
                                const __nv_bfloat16* v, const int64_t* v_strides,
                                __nv_bfloat16* out, bool causal, double scale, int64_t batch,
                                int64_t heads, int64_t q_len, int64_t head_dim, int64_t kv_heads,
                                int64_t k_len, cudaStream_t stream) {
  dispatch(q, q_strides, k, k_strides, v, v_strides, out, causal, scale, batch, heads, q_len,
           head_dim, kv_heads, k_len, stream);
}

extern "C" void flash_attention_fp16(const __half* q, const int64_t* q_strides, const __half* k,
                                     const int64_t* k_strides, const __half* v,
                                     const int64_t* v_strides, __half* out, bool causal,
                                     double scale, int64_t batch, int64_t heads, int64_t q_len,
                                     int64_t head_dim, int64_t kv_heads, int64_t k_len,
                                     cudaStream_t stream) {
  dispatch(q, q_strides, k, k_strides, v, v_strides, out, causal, scale, batch, heads, q_len,
           head_dim, kv_heads, k_len, stream);
}
