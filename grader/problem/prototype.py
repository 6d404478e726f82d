"""The C prototypes that a `.cu` submission must define, generated from the spec."""

from __future__ import annotations

from collections.abc import Mapping

from grader.problem.formula import Formula
from grader.problem.spec import DTYPES, Argument, Spec

C_TYPES: dict[str, str] = {
    "fp64": "double",
    "fp32": "float",
    "fp16": "__half",
    "bf16": "__nv_bfloat16",
    "fp8_e4m3": "__nv_fp8_e4m3",
    "fp8_e5m2": "__nv_fp8_e5m2",
    "int64": "int64_t",
    "int32": "int32_t",
    "int16": "int16_t",
    "int8": "int8_t",
    "uint8": "uint8_t",
    "bool": "bool",
}
"""Dtype → CUDA C++ type. Those that begin with ``__`` are from CUDA's headers."""


def prototypes(spec: Spec) -> dict[str, str]:
    """Symbol → prototype without a semicolon, the plain symbol first.

    One symbol, or one per `cuda_dtypes` if the arguments' dtype is a case parameter.
    """
    if not spec.cuda_dtypes:
        return {spec.entry: _prototype(spec, spec.entry, "")}
    first, *others = spec.cuda_dtypes
    symbols = {spec.entry: first} | {f"{spec.entry}_{dtype}": dtype for dtype in others}
    return {symbol: _prototype(spec, symbol, dtype) for symbol, dtype in symbols.items()}


def set_prototype(spec: Spec, numbers: Mapping[str, str]) -> str:
    """The prototype in which a set's own users write a `.cu` file: pointers and numbers in the
    problem's order, without sizes and stream. Empty if the set has none that fits.

    numbers: scalar argument → its C type in the set.
    """
    if spec.cuda_dtypes:
        return ""
    parameters: list[str] = []
    for argument in spec.args:
        declared = declarations(argument, "")
        if argument.kind == "scalar" and numbers.get(argument.name):
            declared = {argument.name: f"{numbers[argument.name]} {argument.name}"}
        elif argument.kind != "tensor" or len(declared) > 1:
            return ""
        parameters += declared.values()
    return f'extern "C" void {spec.entry}({", ".join(parameters)})'


def dimensions(spec: Spec) -> list[str]:
    """Case parameters used in a shape, in order of first appearance."""
    formulas = [Formula.parse(text) for argument in spec.args for text in argument.shape]
    return list(dict.fromkeys(name for formula in formulas for name in formula.names))


def _prototype(spec: Spec, symbol: str, dtype: str) -> str:
    parameters = [p for argument in spec.args for p in declarations(argument, dtype).values()]
    parameters += [f"int64_t {name}" for name in dimensions(spec)]
    parameters.append("cudaStream_t stream")
    return f'extern "C" void {symbol}({", ".join(parameters)})'


def declarations(argument: Argument, case_dtype: str) -> dict[str, str]:
    """Name → declaration of each parameter that an argument becomes."""
    name = argument.name
    c_type = C_TYPES[argument.dtype if argument.dtype in DTYPES else case_dtype]
    const = "" if argument.is_written else "const "
    if argument.kind == "scalar":
        return {name: f"{c_type} {name}"}
    if argument.kind == "tensors":
        # The array of pointers is in host memory, and constant for both roles.
        return {
            name: f"{const}{c_type}* const* {name}",
            f"{name}_lengths": f"const int64_t* {name}_lengths",
            f"{name}_count": f"int64_t {name}_count",
        }
    found = {name: f"{const}{c_type}* {name}"}
    if argument.is_strided:
        found[f"{name}_strides"] = f"const int64_t* {name}_strides"
    return found
