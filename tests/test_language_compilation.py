"""The softmax of each kernel language compiles for an H100 on any machine, where its package is
installed. Whether it is right, only a GPU shows: tests/cli/test_language_check.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from grader.cli.examples import examples
from grader.cli.language_check import EXAMPLES
from grader.kernel_languages import BY_KEY
from grader.problem import Problem
from grader.sandbox.host import cuda_home

LOAD = """\
import importlib.util, sys
spec = importlib.util.spec_from_file_location("submission", sys.argv[1])
kernels = sys.modules["submission"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kernels)
"""

COMPILE = {
    "tilelang": """
import tilelang
for dtype in kernels.NAMES.values():
    kernel = kernels._softmax_rows.get_tir(dtype)
    built = tilelang.compile(kernel, target={"kind": "cuda", "arch": "sm_90a"})
    print("__global__" in built.get_kernel_source())
""",
    "cute": """
for dtype in kernels.TYPES:
    print(".target sm_90a" in kernels._compiled(dtype).artifacts.PTX)
""",
    "cutile": """
import io
import cuda.tile as ct
from cuda.tile.compilation import (
    ArrayConstraint, CallingConvention, ConstantConstraint, KernelSignature, export_kernel
)
for dtype in (ct.float32, ct.float16, ct.bfloat16):
    array = ArrayConstraint(
        dtype, 2, index_dtype=ct.int32, stride_lower_bound_incl=0, alias_groups=(),
        may_alias_internally=False, stride_constant=(None, 1),
    )
    convention = CallingConvention.cutile_python_v1()
    tile = ConstantConstraint(kernels.TILE)
    signature = KernelSignature([array, array, tile], calling_convention=convention)
    cubin = io.BytesIO()
    export_kernel(
        kernels._softmax_rows, [signature], cubin, gpu_code="sm_90", output_format="cubin"
    )
    print(cubin.getvalue()[:4] == b"\\x7fELF")
""",
    "helion": """
import torch
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    x = torch.empty(5, 1, dtype=dtype)
    code = kernels._softmax_rows.bind((x, torch.empty_like(x))).to_triton_code()
    (store,) = (line for line in code.splitlines() if "tl.store(" in line)
    print("num_warps=8" in code and not store.endswith(", None)"))
""",
}
"""Prints True for each element type. Helion's code is only generated; it is Triton's to compile."""

SETTINGS = {"CUTE_DSL_ARCH": "sm_90a", "CUTE_DSL_KEEP": "ptx"}


@pytest.mark.parametrize("key", COMPILE)
def test_an_example_compiles_for_an_h100(key: str, tmp_path: Path) -> None:
    problem = Problem.load(EXAMPLES.parents[2] / "problems" / "softmax")
    (example,) = (one for one in examples(problem) if one.path.name == f"{key}_softmax.py")
    if why := example.missing("cuda"):
        pytest.skip(f"not run, {why}")
    if key == "tilelang" and cuda_home() is None:
        pytest.skip("not run, needs nvcc: no CUDA toolkit here")
    caches = {
        name: str(tmp_path)
        for name in ("TILELANG_CACHE_DIR", "CUTE_DSL_CACHE_DIR", "CUTE_DSL_DUMP_DIR", "TMPDIR")
    }
    triton = {"TRITON_INTERPRET": "1"} if key == "helion" else {}  # else it asks the GPU's driver
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LOAD + COMPILE[key], str(example.path)],
        env=os.environ | SETTINGS | caches | triton,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{BY_KEY[key].label}: {done.stderr[-2000:]}"
    printed = [line for line in done.stdout.splitlines() if line in ("True", "False")]
    assert printed == ["True"] * 3
