// Declares a launch whose size takes for ever to compute, and one that calls Python. Launches are
// integer expressions of a few operators, parsed and never executed as code.
//
// launch softmax: softmax_row<<<9 ** 9 ** 9 ** 9, __import__("os").system("id")>>>(x, out, cols)

#include <stdint.h>

__global__ void softmax_row(const float* x, float* out, int64_t cols) {}
