"""The starter files of `grade new`, generated from a problem's spec."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from grader.problem.load import Problem
from grader.problem.prototype import prototypes
from grader.problem.set_scaffold import set_scaffold
from grader.problem.spec import Argument, ProblemError, Spec

LINE_CHARS = 100


def scaffold(problem: Problem, language: str) -> str:
    """Source of a starter file in ``triton``, ``torch`` or ``cuda``. For a problem of another set,
    both Python files are the same one, in that set's own convention."""
    if problem.imported is not None and language != "cuda":
        return set_scaffold(problem)
    writers = {"triton": _triton, "torch": _torch, "cuda": _cuda}
    return writers[language](problem)


# torch -------------------------------------------------------------------------------------------


def _torch(problem: Problem) -> str:
    spec = problem.spec
    plain = _plain_pytorch(problem)
    written = [a for a in spec.args if a.role != "in"]
    inputs = [f"{a.name}={a.name}" for a in spec.args if a.role != "out"]
    what = "It is correct but slow. Replace it by a faster kernel."
    if plain.parameters:
        what = "It is to be completed."
        news = ["0"] * len(written)
        missing = " and ".join(plain.parameters)
        call = f"    # Call {plain.name}() here; shapes and dtypes tell {missing} of a case."
    else:
        news = [f"new_{a.name}" for a in written]
        call = _wrapped(f"    {', '.join(news)} = {plain.name}(", inputs, ")")
    copies = [line for a, new in zip(written, news, strict=True) for line in _copy(a, new)]
    lines = [*_unpacked(spec), call, *copies]
    return (
        f'"""{spec.title} in plain PyTorch.\n\n{what}\n"""\n\n'
        f"{plain.source}\n\n\n"
        f"{_definition(spec)}\n"
        f'    """{_task(spec)}"""\n' + "\n".join(lines) + "\n"
    )


def _copy(argument: Argument, new: str) -> list[str]:
    if argument.kind == "tensors":
        loop = f"    for tensor, new in zip({argument.name}, {new}, strict=True):"
        return [loop, "        tensor.copy_(new)"]
    if new == "0":
        return [f"    {argument.name}.zero_()"]
    return [f"    {argument.name}.copy_({new})"]


def _unpacked(spec: Spec) -> list[str]:
    """Lines that assign the arguments in nested parameters to names."""
    lines = []
    for parameter in spec.nested:
        leaves = list(_leaves(parameter, spec.nested[parameter]))
        lines.append(
            f"    {', '.join(name for name, _ in leaves)} = {', '.join(p for _, p in leaves)}"
        )
    return lines


def _leaves(place: str, tree: Any) -> Iterator[tuple[str, str]]:
    """Each argument of a tree, and the expression for its value."""
    if isinstance(tree, str):
        yield tree, place
        return
    for key, part in enumerate(tree) if isinstance(tree, list) else tree.items():
        shown = key if isinstance(key, int) else f'"{key}"'
        yield from _leaves(f"{place}[{shown}]", part)


@dataclass(frozen=True)
class _PlainPyTorch:
    """A function of `reference.py` with all that it uses."""

    source: str
    name: str
    parameters: list[str]
    """What it takes besides arguments of the problem: parameters of a case."""


def _plain_pytorch(problem: Problem) -> _PlainPyTorch:
    """The problem's `eager`, or else its `reference`."""
    file = problem.folder / "reference.py"
    try:
        source = problem.files["reference.py"].decode("utf-8")
        statements = {name: node for node in ast.parse(source).body for name in _defines(node)}
    except (SyntaxError, ValueError) as error:
        raise ProblemError(f"{file}: not readable as Python ({error})") from None
    name = "eager" if "eager" in statements else "reference"
    if name not in statements:
        raise ProblemError(f"{file}: no function named 'reference'")
    needed: set[str] = set()
    pending = [name]
    while pending:
        wanted = pending.pop()
        if wanted in statements and wanted not in needed:
            needed.add(wanted)
            pending += [n.id for n in ast.walk(statements[wanted]) if isinstance(n, ast.Name)]
    kept = {id(statements[n]): statements[n] for n in statements if n in needed}
    lines = source.splitlines()
    imports: list[str] = []
    rest: list[str] = []
    for node in kept.values():
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(d.lineno for d in decorators)])
        text = "\n".join(lines[first - 1 : node.end_lineno])
        (imports if isinstance(node, ast.Import | ast.ImportFrom) else rest).append(text)
    known = {argument.name for argument in problem.spec.args}
    taken = getattr(statements[name], "args", None)
    parameters = [*taken.posonlyargs, *taken.args, *taken.kwonlyargs] if taken else []
    return _PlainPyTorch(
        "\n".join(imports) + "\n\n\n" + "\n\n\n".join(rest),
        name,
        [parameter.arg for parameter in parameters if parameter.arg not in known],
    )


def _defines(node: ast.stmt) -> list[str]:
    """The names that a top-level statement defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [(alias.asname or alias.name).partition(".")[0] for alias in node.names]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


# Triton ------------------------------------------------------------------------------------------


def _triton(problem: Problem) -> str:
    spec = problem.spec
    launches = [line for a in spec.args if a.role != "in" for line in _launch(a)]
    body = "\n".join([*_unpacked(spec), *launches])
    return f'''"""{spec.title} in Triton.

This starter file runs, and is a wrong answer until you write the kernel.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def fill_kernel(x, count, KEEP: tl.constexpr, BLOCK: tl.constexpr):
    """Write zeros, or keep the values, one tile of BLOCK elements per program."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    tile = tl.load(x + offsets, mask=mask)
    if not KEEP:
        tile = tl.zeros_like(tile)
    tl.store(x + offsets, tile, mask=mask)


def fill(x: torch.Tensor, keep: bool) -> None:
    block = 4096
    fill_kernel[(triton.cdiv(x.numel(), block),)](x, x.numel(), KEEP=keep, BLOCK=block)


{_definition(spec)}
    """{_task(spec)}"""
    # Replace these launches by your own kernels.
{body}
'''


def _launch(argument: Argument) -> list[str]:
    keep = argument.role == "inout"
    if argument.kind == "tensors":
        return [f"    for tensor in {argument.name}:", f"        fill(tensor, keep={keep})"]
    return [f"    fill({argument.name}, keep={keep})"]


# CUDA --------------------------------------------------------------------------------------------


def _cuda(problem: Problem) -> str:
    spec = problem.spec
    entries = "\n".join(
        f"{_unfolded(prototype)} {{\n    // my_kernel<<<blocks, threads, 0, stream>>>(...);\n}}\n"
        for prototype in prototypes(spec).values()
    )
    return f"""// {spec.title} in CUDA C++.
// This starter file compiles, and is a wrong answer until you write the kernel.
//
// {_task(spec)}
// Tensor pointers are device memory. Strides, lengths and lists of pointers are host memory, valid
// during the call only. Launch on the given stream and do not synchronize it.
//
// A file that only launches kernels compiles ten times faster if it declares that, for each entry,
// instead of defining it:  // launch {spec.entry}: my_kernel<<<blocks, threads>>>(...)
#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
{_fp8_header(spec)}#include <cuda_runtime.h>

{entries}"""


def _fp8_header(spec: Spec) -> str:
    needs = any("__nv_fp8" in prototype for prototype in prototypes(spec).values())
    return "#include <cuda_fp8.h>\n" if needs else ""


def _unfolded(prototype: str) -> str:
    head, _, rest = prototype.rstrip("; ").partition("(")
    return _wrapped_c(f"{head}(", rest.removesuffix(")").split(", "))


def _wrapped_c(head: str, items: list[str]) -> str:
    """As `_wrapped`, without a trailing comma, which C++ does not allow."""
    return _wrapped(head, items, ")").replace(",\n)", ")")


# Text --------------------------------------------------------------------------------------------


def _task(spec: Spec) -> str:
    written = [a.name for a in spec.args if a.role != "in"]
    return f"Write {', '.join(written)}; do not change the other arguments."


def _definition(spec: Spec) -> str:
    return _wrapped(f"def {spec.entry}(", list(spec.parameters), "):")


def _wrapped(head: str, items: list[str], tail: str) -> str:
    """Code with a comma-separated list, on one line if it fits."""
    line = f"{head}{', '.join(items)}{tail}"
    if len(line) <= LINE_CHARS:
        return line
    indent = head[: len(head) - len(head.lstrip())]
    body = "".join(f"{indent}    {item},\n" for item in items)
    return f"{head}\n{body}{indent}{tail}"
