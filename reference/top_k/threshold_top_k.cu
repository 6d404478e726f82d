// Top k in CUDA C++. A block goes once over its row, and keeps in shared memory what is larger than
// the k-th largest number so far. Few numbers are, once some thousands have been seen; when the
// memory is full, the block sorts what it has, keeps k and raises the threshold. Few long rows are
// cut into parts, and the k largest of their parts go through the same kernel.

#include <cuda_runtime.h>
#include <stdint.h>

namespace {

constexpr int kItems = 8;       // of a thread at a time
constexpr int kMostK = 64;
constexpr int kBlocksPerSM = 8;
constexpr int kLeastPart = 1 << 14;     // elements of a row's part
constexpr int kMostCandidates = 1 << 20;  // of all parts together

// The k largest of each part. Launches on one stream use it one by one.
__device__ float candidates[kMostCandidates];

__device__ float minus_infinity() { return __int_as_float(0xff800000); }

// Sorts `size` numbers, a power of two, in descending order.
template <int THREADS> __device__ void sort_descending(float* queue, int size) {
  for (int run = 2; run <= size; run *= 2)
    for (int distance = run / 2; distance > 0; distance /= 2) {
      __syncthreads();
      for (int pair = threadIdx.x; pair < size / 2; pair += THREADS) {
        const int low = 2 * pair - (pair & (distance - 1)), high = low + distance;
        const float first = queue[low], second = queue[high];
        const bool descends = (low & run) == 0;
        if (descends ? first < second : first > second) queue[low] = second, queue[high] = first;
      }
    }
  __syncthreads();
}

// Sorts the `held` numbers of the queue in descending order, filled up with minus infinity.
template <int THREADS> __device__ void sort_held(float* queue, int held) {
  int size = 2 * kMostK;
  while (size < held) size *= 2;
  for (int i = held + threadIdx.x; i < size; i += THREADS) queue[i] = minus_infinity();
  sort_descending<THREADS>(queue, size);
}

// Each row of x, [cols], is cut into `parts` of `part` elements; a block for each. Writes k numbers
// for each part; k is at most kMostK, and minus infinity stands where a part has fewer.
template <int THREADS>
__global__ void __launch_bounds__(THREADS)
    select_largest(const float* __restrict__ x, float* __restrict__ out, int64_t cols, int parts,
                   int64_t part, int k) {
  constexpr int kChunk = THREADS * kItems;
  __shared__ float queue[2 * kChunk];
  __shared__ int count;
  const int64_t row = blockIdx.x / parts, begin = blockIdx.x % parts * part;
  const int64_t size = cols - begin < part ? cols - begin : part;  // may be below 1
  x += row * cols + begin;

  if (threadIdx.x == 0) count = 0;
  float threshold = minus_infinity();
  __syncthreads();
  for (int64_t first = 0; first < size; first += kChunk) {
    float value[kItems];
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int64_t at = first + i * THREADS + threadIdx.x;
      value[i] = at < size ? x[at] : minus_infinity();
    }
#pragma unroll
    for (int i = 0; i < kItems; ++i)
      if (value[i] > threshold) queue[atomicAdd(&count, 1)] = value[i];
    __syncthreads();
    const int held = count;
    __syncthreads();  // every thread has seen the same count
    if (first > 0 && held <= kChunk) continue;
    sort_held<THREADS>(queue, held);
    if (held >= k) threshold = queue[k - 1];
    if (threadIdx.x == 0) count = held < k ? held : k;
    __syncthreads();
  }
  sort_held<THREADS>(queue, count);
  for (int i = threadIdx.x; i < k; i += THREADS) out[int64_t(blockIdx.x) * k + i] = queue[i];
}

void launch(const float* x, float* out, int64_t rows, int64_t cols, int parts, int64_t part, int k,
            cudaStream_t stream) {
  const unsigned blocks = unsigned(rows * parts);
  if (part <= 1024)
    select_largest<32><<<blocks, 32, 0, stream>>>(x, out, cols, parts, part, k);
  else
    select_largest<256><<<blocks, 256, 0, stream>>>(x, out, cols, parts, part, k);
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int processors() {
  static int count = 0;
  if (count == 0) {
    int device;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  }
  return count;
}

}  // namespace

extern "C" void top_k(const float* x, float* out, int64_t rows, int64_t cols, int64_t k,
                      cudaStream_t stream) {
  if (k > kMostK) return;  // more than the problem has
  const int64_t wanted = ceil_div(int64_t(processors()) * kBlocksPerSM, rows);
  const int64_t useful = ceil_div(cols, kLeastPart), room = kMostCandidates / (rows * k);
  int64_t parts = wanted < useful ? wanted : useful;
  if (room < parts) parts = room;
  if (parts <= 1) return launch(x, out, rows, cols, 1, cols, int(k), stream);
  float* between;
  cudaGetSymbolAddress(reinterpret_cast<void**>(&between), candidates);
  launch(x, between, rows, cols, int(parts), ceil_div(cols, parts), int(k), stream);
  launch(between, out, rows, parts * k, 1, parts * k, int(k), stream);
}
