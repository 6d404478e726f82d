"""Which configuration of a reference kernel is fastest on this GPU, case by case?

    python -m benchmarks.tune [--only WORD] PROBLEM

Prints, for every ranked benchmark case of PROBLEM, each candidate's time by
`triton.testing.do_bench` (cold L2) and the relative L2 distance of its output from plain PyTorch's.
A candidate that fails is shown with its error. The choice is then written into the kernel's file by
hand: a submission does not tune itself while it is graded.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import torch
from triton.testing import do_bench

from benchmarks.gpu import require_gpu
from grader.judge.problem_code import ProblemCode, Values, map_tensors
from grader.problem import Problem
from grader.problem.spec import Case

ROOT = Path(__file__).resolve().parent.parent
WARM_UP_MS, MEASURE_MS = 20, 80

Candidate = Callable[[Values, Values], Any]
"""A call on the inputs and on the outputs by name, of which lists that are updated in place are
inputs. A returned value replaces the first output."""
Candidates = Iterator[tuple[str, Candidate]]


def load(path: str) -> ModuleType:
    """A Python file below the repository, as a module."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def entry(path: str, name: str) -> Candidate:
    """A Python submission."""
    return _calling(getattr(load(path), name))


def _calling(function: Callable[..., Any]) -> Candidate:
    return lambda values, outs: function(**values, **outs)


def prepared(code: ProblemCode, name: str) -> Candidate:
    """A library call on inputs in its own format, which is made at the first call."""
    calls: list[Callable[[], Any]] = []

    def call(values: Values, _outs: Values) -> Any:
        if not calls:
            made = code.prepared[name](**values)
            if made is None:
                raise RuntimeError("no such call for this case")
            calls.append(made)
        return calls[0]()

    return call


# The candidates of each problem ------------------------------------------------------------------


def softmax(code: ProblemCode, case: Case, values: Values) -> Candidates:
    """Threads of the kernel's blocks, and Triton's kernel."""
    path = "reference/softmax/cluster_softmax.cu"
    suffix = "" if case.params["dtype"] == "fp32" else f"_{case.params['dtype']}"
    sizes = [case.params["rows"], case.params["cols"]]
    changes: list[dict[str, int]] = [{}, {"kBlockThreads": 256}, {"kClusterThreads": 512}]
    yield from _cuda_variants(path, f"softmax{suffix}", sizes, changes)
    yield "triton", entry("submissions/softmax/accepted/triton_softmax.py", "softmax")


def _cuda_variants(
    path: str, symbol: str, sizes: Sequence[int], changes: list[dict[str, int]]
) -> Candidates:
    """A CUDA kernel with each set of changes to its constants; the first is its own."""
    source = (ROOT / path).read_text()
    for change in changes:
        name = ", ".join(f"{key} {value}" for key, value in change.items()) or Path(path).stem
        yield name, cuda_entry(with_constants(source, change), symbol, sizes)


def with_constants(source: str, values: dict[str, int]) -> str:
    """A CUDA source with other values of its integer constants.

    Raises ValueError when it lacks one.
    """
    for name, value in values.items():
        source, found = re.subn(rf"(constexpr int {name} =) [^;]+;", rf"\g<1> {value};", source)
        if found != 1:
            raise ValueError(f"the source defines {name} {found} times; it must do so once")
    return source


@cache
def _nvcc(source: str) -> ctypes.CDLL:
    folder = Path(tempfile.mkdtemp())
    (folder / "kernel.cu").write_text(source)
    major, minor = torch.cuda.get_device_capability()
    target = f"arch=compute_{major}{minor}a,code=sm_{major}{minor}a"
    flags = ["-O3", "-std=c++17", "--shared", "-Xcompiler", "-fPIC", "-gencode", target]
    command = ["nvcc", *flags, "-o", str(folder / "kernel.so"), str(folder / "kernel.cu")]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(folder / "kernel.so"))


def cuda_entry(source: str, symbol: str, sizes: Sequence[int]) -> Candidate:
    """A CUDA submission, which takes all tensors, then `sizes`."""

    def call(values: Values, outs: Values) -> None:
        tensors = *values.values(), *outs.values()
        pointers = (ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors)
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        getattr(_nvcc(source), symbol)(*pointers, *map(ctypes.c_int64, sizes), stream)

    return call


def int4_matmul(code: ProblemCode, case: Case, values: Values) -> Candidates:
    """Blocks that split k, and library calls on prepared weights."""
    path = "reference/int4_matmul/wgmma_int4_matmul.cu"
    changes: list[dict[str, int]] = [{}]
    changes += [{"kMostSplits": splits} for splits in (1, 2, 4)]
    changes += [{"kShortK": 0}, {"kShortK": 1 << 20}]
    sizes = [case.params[name] for name in "mkn"]
    yield from _cuda_variants(path, "int4_matmul", sizes, changes)
    yield (
        "triton",
        entry("submissions/int4_matmul/accepted/triton_int4_matmul.py", "int4_matmul"),
    )
    yield "fp16_matmul", prepared(code, "fp16_matmul")
    yield "int4pack_mm", prepared(code, "int4pack_mm")


BLOCKS = ((1024, 4), (1024, 8), (512, 4), (512, 8), (256, 2), (256, 4), (128, 1), (128, 4))
"""Elements and warps of a program that takes a block of one tensor."""


def _changed(path: str, name: str, changes: Iterable[dict[str, Any]]) -> Candidates:
    """A Triton kernel as it is, and with each set of other values of its constants."""
    yield Path(path).stem, entry(path, name)
    for change in changes:
        module = load(path)
        for constant in change:
            assert hasattr(module, constant), constant
        vars(module).update(change)
        text = ", ".join(f"{key} {value}" for key, value in change.items())
        yield text, _calling(getattr(module, name))


def _blocks(path: str, name: str, warps_name: str) -> Candidates:
    """A Triton kernel with other values of its constants `BLOCK` and `warps_name`."""
    changes = ({"BLOCK": block, warps_name: warps} for block, warps in BLOCKS)
    return _changed(path, name, changes)


def _planned(
    path: str, name: str, plans: Iterable[tuple[Any, ...]], **functions: Callable[..., Any]
) -> Candidates:
    """A Triton kernel as it is, and with other answers of the functions that choose its plan: each
    of `functions` makes its answer from a plan."""
    yield Path(path).stem, entry(path, name)
    for plan in plans:
        module = load(path)
        for function, answer in functions.items():
            assert hasattr(module, function), function
            setattr(module, function, lambda *_, plan=plan, answer=answer: answer(plan))
        yield str(plan), _calling(getattr(module, name))


def _is_one_tensor(values: Values) -> bool:
    return len(next(iter(values.values()))) == 1


def multi_tensor_adamw(code: ProblemCode, case: Case, values: Values) -> Candidates:
    """Blocks of one tensor; of several, chunk sizes, warps and cache policies."""
    path = "reference/multi_tensor_adamw/streaming_adamw.py"
    if _is_one_tensor(values):
        yield from _blocks(path, "multi_tensor_adamw", "BLOCK_WARPS")
        yield "fused", prepared(code, "fused")
        return
    expert = load(path)
    sizes = ((1024, 4), (1024, 8), (2048, 4), (2048, 8), (4096, 8), (4096, 16), (8192, 16))
    for chunk, warps in sizes:
        for policy in ("", "evict_first"):

            def call(
                values: Values, _outs: Values, c: int = chunk, w: int = warps, p: str = policy
            ) -> None:
                *scalars, step = list(values.values())[4:]
                expert.launch(tuple(list(values.values())[:4]), (*scalars, step), c, w, p)

            yield f"chunk {chunk}, {warps} warps {policy}", call
    yield "fused", prepared(code, "fused")


def multi_tensor_sgd_momentum(code: ProblemCode, case: Case, values: Values) -> Candidates:
    """Blocks of one tensor; of several, the kernel as it is."""
    path = "reference/multi_tensor_sgd_momentum/streaming_sgd.py"
    if _is_one_tensor(values):
        yield from _blocks(path, "multi_tensor_sgd_momentum", "BLOCK_WARPS")
    else:
        yield Path(path).stem, entry(path, "multi_tensor_sgd_momentum")
    yield "fused", prepared(code, "fused")


def vector_add(code: ProblemCode, case: Case, values: Values) -> Candidates:
    """Blocks, and PyTorch's addition."""
    yield from _blocks("reference/vector_add/streaming_add.py", "vector_add", "WARPS")
    yield "torch.add", lambda values, outs: torch.add(values["x"], values["y"], **outs)


def reduce_sum(code: ProblemCode, case: Case, values: Values) -> Candidates:
    """Threads of a block, blocks that share rows, and who has a short row."""
    path = "reference/reduce_sum/row_sums.cu"
    suffix = "" if case.params["dtype"] == "fp32" else f"_{case.params['dtype']}"
    sizes = [case.params["rows"], case.params["cols"]]
    changes: list[dict[str, int]] = [{}]
    changes += [{"kThreads": threads} for threads in (128, 512)]
    changes += [{"kShortThreads": threads} for threads in (64, 256)]
    changes += [{"kLoads": loads} for loads in (4, 16)]
    changes += [{"kBlocksPerSM": blocks} for blocks in (4, 16, 32)]
    changes += [{"kBlocksPerSM": 2, "kThreads": 512}, {"kBlocksPerSM": 4, "kThreads": 256}]
    changes += [{"kBlocksPerSM": 4, "kLoads": 16}]
    changes += [{"kWarpPacks": 64}, {"kGroupPacks": 0}]
    yield from _cuda_variants(path, f"reduce_sum{suffix}", sizes, changes)


def transpose(code: ProblemCode, case: Case, values: Values) -> Candidates:
    """Bytes and warps of a tile."""
    yield from _changed(
        "reference/transpose/tile_transpose.py",
        "transpose",
        (
            {"TILE_BYTES": size, "SMALL_TILE_BYTES": size, "WARPS": warps}
            for size in (2048, 4096, 8192, 16384, 32768)
            for warps in (2, 4, 8, 16)
        ),
    )


def bias_gelu(code: ProblemCode, case: Case, values: Values) -> Candidates:
    """Elements, widest row and warps of a tile."""
    yield from _changed(
        "reference/bias_gelu/tiled_bias_gelu.py",
        "bias_gelu",
        (
            {"TILE": tile, "HALF_TILE": tile, "WIDEST": widest, "WARPS": warps}
            for tile in (1024, 2048, 4096)
            for widest in (512, 1024)
            for warps in (4, 8)
        ),
    )


def layer_norm(code: ProblemCode, case: Case, values: Values) -> Candidates:
    """Elements of a program of short rows, and bytes that a thread loads."""
    yield from _changed(
        "reference/layer_norm/row_layer_norm.py",
        "layer_norm",
        (
            {"TILE": tile, "BYTES_A_THREAD": size}
            for tile in (1024, 2048, 4096)
            for size in (16, 32, 64)
        ),
    )


def layer_norm_backward(code: ProblemCode, case: Case, values: Values) -> Candidates:
    """Rows and columns that programs of the longest rows share, their warps and registers; and the
    kernel that reads both matrices twice."""
    yield (
        "triton",
        entry("submissions/layer_norm_backward/accepted/triton_backward.py", "layer_norm_backward"),
    )
    yield from _changed(
        "reference/layer_norm_backward/one_pass_backward.py",
        "layer_norm_backward",
        [
            *({"SLAB_WARPS": w, "SLAB_REGISTERS": r} for w, r in ((16, 64), (8, 168), (4, 255))),
            *({"SLAB": slab} for slab in (64, 256)),
            *(
                {"SLAB_ROWS": rows, "SLAB_COLS": cols}
                for rows, cols in ((16, 256), (32, 128), (8, 512), (16, 512))
            ),
        ],
    )


def int8_dynamic_matmul(code: ProblemCode, case: Case, values: Values) -> Candidates:
    """Rows, columns and depth of a tile, warps, stages, and programs that share its k."""
    if case.params["m"] > 64:
        tiles = [(128, 256, 128, 8, 3), (128, 256, 128, 8, 4), (256, 128, 128, 8, 3)]
        tiles += [(128, 128, 128, 8, 4), (128, 128, 128, 4, 4), (64, 256, 128, 4, 4)]
        shares = [1, 2]
    else:
        tiles = [(32, 128, 128, 4, 5), (32, 64, 256, 4, 4), (32, 64, 128, 4, 6)]
        tiles += [(32, 128, 256, 4, 3), (32, 32, 256, 4, 5), (32, 32, 512, 4, 4)]
        shares = [1, 2, 4, 8]
    yield from _planned(
        "reference/int8_dynamic_matmul/grouped_tiles_int8_matmul.py",
        "int8_dynamic_matmul",
        ((*tile, splits) for tile in tiles for splits in shares),
        _tile=lambda plan: plan[:5],
        _splits=lambda plan: plan[5],
    )


def int4_matmul_zeros(code: ProblemCode, case: Case, values: Values) -> Candidates:
    """Rows and bytes of a tile, depth of a step, programs that share k, warps, and stages."""
    path, m = "reference/int4_matmul_zeros/three_kernels_int4.py", case.params["m"]
    sms = load(path).SMS
    plans: Iterable[tuple[Any, ...]] = ()  # for more rows the library multiplies
    one_row = ((1, width, 16, n * sms, 4, 3) for width in (32, 64, 128) for n in (3, 6, 12))
    few_rows = (
        (max(m, 16), width, step, n * sms, warps, stages)
        for width, warps in ((64, 4), (128, 8), (128, 4))
        for step, stages in ((64, 3), (64, 4), (128, 2), (128, 3))
        for n in ((2, 3, 4, 6) if m <= 32 else (1, 2, 3))
    )
    if m <= load(path).MOST_FUSED_ROWS:
        plans = one_row if m == 1 else few_rows
    yield from _planned(path, "int4_matmul_zeros", plans, _plan=lambda plan: plan)


def int8_weight_only_gemv(code: ProblemCode, case: Case, values: Values) -> Candidates:
    """Rows, weights of a step, warps, and stages of a program of long rows."""
    plans = [(1, step, warps) for step, warps in ((2048, 4), (4096, 8), (8192, 16), (4096, 4))]
    plans += [(2, 1024, 2), (2, 2048, 8), (4, 512, 4), (4, 1024, 8)]
    plans += [(1, 2048, 16), (1, 4096, 16), (1, 2048, 8), (2, 1024, 16), (2, 2048, 16)]
    yield from _changed(
        "reference/int8_weight_only_gemv/streaming_int8_gemv.py",
        "int8_weight_only_gemv",
        (
            {"ROWS": rows, "STEP": step, "WARPS": warps, "STAGES": stages}
            for rows, step, warps in plans
            for stages in (1, 2, 3, 4)
        ),
    )


def add_layer_norm_gelu(code: ProblemCode, case: Case, values: Values) -> Candidates:
    """Elements of a program of short rows, and bytes that a thread loads."""
    yield from _changed(
        "reference/add_layer_norm_gelu/fused_chain.py",
        "add_layer_norm_gelu",
        ({"TILE": tile, "BYTES_A_THREAD": size} for tile in (1024, 2048) for size in (32, 64, 128)),
    )


PROBLEMS = (
    transpose,
    bias_gelu,
    layer_norm,
    layer_norm_backward,
    int8_dynamic_matmul,
    int4_matmul_zeros,
    int8_weight_only_gemv,
    add_layer_norm_gelu,
    softmax,
    reduce_sum,
    int4_matmul,
    multi_tensor_adamw,
    multi_tensor_sgd_momentum,
    vector_add,
)
CANDIDATES = {f.__name__: f for f in PROBLEMS}


# Measuring them ----------------------------------------------------------------------------------


def distance(got: Any, expected: Any) -> float:
    """Relative L2 distance, over all tensors of a list."""
    got = got if isinstance(got, list) else [got]
    expected = expected if isinstance(expected, list) else [expected]
    off = sum((g.double() - e.double()).square().sum() for g, e in zip(got, expected, strict=True))
    return float((off / sum(e.double().square().sum() for e in expected)).sqrt())


def empty_outputs(code: ProblemCode, case: Case, values: Values) -> Values:
    """Contiguous tensors by name for the outputs of a case that are not updated in place."""
    right = code.run_eager(case, values)
    fresh = {a.name: right[a.name] for a in code.written if a.role == "out"}
    return map_tensors(fresh, partial(torch.empty_like, memory_format=torch.contiguous_format))


def tune(code: ProblemCode, case: Case, only: str) -> None:
    """Measure and print the candidates of one case, then the best."""
    values = code.inputs(case, 1)
    outs = empty_outputs(code, case, values)
    found = []
    for name, candidate in CANDIDATES[code.problem.name](code, case, values):
        if only not in name:
            continue
        try:
            expected = code.run_eager(case, values)
            result = candidate(values, outs)
            got = values | outs
            if result is not None:
                got[code.written[0].name] = result[0] if isinstance(result, tuple) else result
            off = max(distance(got[a.name], expected[a.name]) for a in code.written)
            del expected
            call = partial(candidate, values, outs)
            time_us = 1e3 * do_bench(call, WARM_UP_MS, MEASURE_MS, return_mode="median")
        except Exception as error:  # noqa: BLE001 - a candidate's failure does not stop the rest
            text = str(error).splitlines()[0][:100] if str(error) else ""
            print(f"{case.name:14} {name:40} {type(error).__name__}: {text}", flush=True)
            continue
        found.append((time_us, name))
        print(f"{case.name:14} {name:40} {time_us:10.2f} µs  off by {off:.1e}", flush=True)
    if found:
        print(f"{case.name:14} best: {min(found)[1]}\n", flush=True)


@click.command()
@click.option("--only", default="", help="Only candidates with this in their name.")
@click.option("--case", "only_case", default="", help="Only this benchmark case.")
@click.argument("problem", type=click.Choice(sorted(CANDIDATES)))
def main(problem: str, only: str, only_case: str) -> None:
    """Time every candidate of PROBLEM on its ranked cases."""
    require_gpu()
    print(torch.cuda.get_device_name(), torch.__version__, flush=True)
    code = ProblemCode(Problem.load(ROOT / "problems" / problem), "cuda")
    for case in code.problem.cases("benchmark", "cuda"):
        if only_case in ("", case.name):
            tune(code, case, only)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
