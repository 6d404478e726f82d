"""The C prototypes, and that nvcc compiles them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from grader.problem import Problem, prototypes

PROBLEMS = Path(__file__).resolve().parents[2] / "problems"

EXPECTED = {
    "softmax": {
        "softmax": "const float* x, float* out, int64_t rows, int64_t cols",
        "softmax_fp16": "const __half* x, __half* out, int64_t rows, int64_t cols",
        "softmax_bf16": "const __nv_bfloat16* x, __nv_bfloat16* out, int64_t rows, int64_t cols",
    },
    "reduce_sum": {
        "reduce_sum": "const float* x, float* out, int64_t rows, int64_t cols",
        "reduce_sum_bf16": "const __nv_bfloat16* x, float* out, int64_t rows, int64_t cols",
    },
    "histogram": {"histogram": "const float* x, int32_t* out, int64_t n, int64_t bins"},
    "top_k": {"top_k": "const float* x, float* out, int64_t rows, int64_t cols, int64_t k"},
    "int4_matmul": {
        "int4_matmul": (
            "const __half* a, const uint8_t* b_packed, const __half* scales, __half* out, "
            "int64_t m, int64_t k, int64_t n"
        ),
    },
    "multi_tensor_adamw": {
        "multi_tensor_adamw": (
            "float* const* params, const int64_t* params_lengths, int64_t params_count, "
            "const float* const* grads, const int64_t* grads_lengths, int64_t grads_count, "
            "float* const* exp_avgs, const int64_t* exp_avgs_lengths, int64_t exp_avgs_count, "
            "float* const* exp_avg_sqs, const int64_t* exp_avg_sqs_lengths, "
            "int64_t exp_avg_sqs_count, double lr, double beta1, double beta2, double eps, "
            "double weight_decay, int64_t step"
        ),
    },
    "flash_attention": {
        f"flash_attention{suffix}": (
            f"const {t}* q, const int64_t* q_strides, const {t}* k, const int64_t* k_strides, "
            f"const {t}* v, const int64_t* v_strides, {t}* out, bool causal, double scale, "
            "int64_t batch, int64_t heads, int64_t q_len, int64_t head_dim, int64_t kv_heads, "
            "int64_t k_len"
        )
        for suffix, t in {"": "__nv_bfloat16", "_fp16": "__half"}.items()
    },
}


@pytest.mark.parametrize("name", EXPECTED)
def test_prototypes_of_problems(name: str) -> None:
    expected = {
        symbol: f'extern "C" void {symbol}({parameters}, cudaStream_t stream)'
        for symbol, parameters in EXPECTED[name].items()
    }
    found = prototypes(Problem.load(PROBLEMS / name).spec)
    assert list(found.items()) == list(expected.items())


@pytest.mark.nvcc
def test_nvcc_compiles_them_all(tmp_path: Path) -> None:
    includes = ["cstdint", "cuda_fp16.h", "cuda_bf16.h"]
    lines = [f"#include <{header}>" for header in includes]
    for name in EXPECTED:
        lines += [f"{p} {{}}" for p in prototypes(Problem.load(PROBLEMS / name).spec).values()]
    source = tmp_path / "all.cu"
    source.write_text("\n".join(lines) + "\n")
    built = subprocess.run(
        ["nvcc", "-shared", "-Xcompiler", "-fPIC", "-o", tmp_path / "all.so", source],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
