// Softmax with one block a row, whose launches are declared: the file has no code for the host, so
// NVRTC compiles it in a tenth of the time that nvcc takes.
//
// launch softmax: softmax_row<float><<<rows, 256>>>(x, out, cols)
// launch softmax_fp16: softmax_row<__half><<<rows, 256>>>(x, out, cols)
// launch softmax_bf16: softmax_row<__nv_bfloat16><<<rows, 256>>>(x, out, cols)

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

__device__ float highest_of(float a, float b) { return fmaxf(a, b); }
__device__ float sum_of(float a, float b) { return a + b; }

// Over the 256 threads of the block; every thread gets the result.
template <float (*combine)(float, float)> __device__ float over_block(float value) {
  __shared__ float of_warp[8];
  for (int lane = 16; lane > 0; lane /= 2)
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, lane));
  __syncthreads();  // others may still read the previous result
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  value = of_warp[threadIdx.x % 8];
  for (int lane = 4; lane > 0; lane /= 2)
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, lane));
  return value;
}

template <typename T> __global__ void softmax_row(const T* x, T* out, int64_t cols) {
  x += blockIdx.x * cols;
  out += blockIdx.x * cols;
  float highest = __int_as_float(0xff800000);  // minus infinity
  for (int64_t i = threadIdx.x; i < cols; i += 256) highest = fmaxf(highest, float(x[i]));
  highest = over_block<highest_of>(highest);
  float sum = 0.0f;
  for (int64_t i = threadIdx.x; i < cols; i += 256) sum += __expf(float(x[i]) - highest);
  sum = over_block<sum_of>(sum);
  for (int64_t i = threadIdx.x; i < cols; i += 256)
    out[i] = T(__fdividef(__expf(float(x[i]) - highest), sum));
}
