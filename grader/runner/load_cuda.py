"""Bind the entries of a compiled `.cu` file: functions of a shared object, or declared launches."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from grader.runner.declared_launch import (
    DECLARED_CUBIN,
    DEFAULT_SHARED_BYTES,
    Launch,
    declared_launches,
)
from grader.runner.entry_point import EntryPoint, LoadError
from grader.runner.nvrtc import DeviceCode
from grader.runner.prototype_check import chosen_prototypes, name_of, parameters_of

C_NUMBERS: dict[str, Any] = {
    "bool": ctypes.c_bool,
    "double": ctypes.c_double,
    "float": ctypes.c_float,
    "int": ctypes.c_int64,
    "int64_t": ctypes.c_int64,
    "size_t": ctypes.c_size_t,
}
"""Type of a number in the prototype of another set → how it is passed. Integers have 64 bits, of
which a file that takes `int` reads the lower 32."""
LIBRARY, DEVICE_CODE = "submission.so", "submission.json"
"""Where a compiled `.cu` file lies: a shared object, or the device code of declared launches."""


def write_cuda(folder: Path, source: bytes, library: bytes) -> None:
    """Write a `.cu` file and its library where `load_cuda` and a profile look for them."""
    (folder / "submission.cu").write_bytes(source)
    is_object = library.startswith(b"\x7fELF")
    (folder / (LIBRARY if is_object else DEVICE_CODE)).write_bytes(library)


def load_cuda(folder: Path, request: dict[str, Any], device: str) -> EntryPoint:
    """Bind the entries of the compiled file in a folder. Raises `LoadError`.

    Declared launches are bound on a GPU only; on a CPU nothing is called either way.
    """
    source, code = (folder / "submission.cu").read_bytes(), folder / DEVICE_CODE
    if code.exists():
        return _declared_entry(folder, source, code.read_bytes(), request, device)
    library = folder / LIBRARY
    try:
        shared = ctypes.CDLL(str(library))
    except OSError as error:
        raise LoadError(f"the compiled file does not load: {error}") from error
    functions, prototypes = {}, request["prototypes"]
    if request.get("set_prototype"):
        prototypes = chosen_prototypes(source, request)
    for symbol, prototype in prototypes.items():
        try:
            functions[symbol] = getattr(shared, symbol)
        except AttributeError:
            raise LoadError(_missing(symbol, prototype, library.read_bytes())) from None
        functions[symbol].restype = None
    if prototypes != request["prototypes"]:
        return _set_entry(functions.popitem()[1], request["set_prototype"])
    return _cuda_entry(functions, request["arguments"])


def _missing(symbol: str, prototype: str, library: bytes) -> str:
    # The name that C++ gives a function without C linkage is in the library's table of symbols.
    if f"_Z{len(symbol)}{symbol}".encode() in library:
        return f"'{symbol}' is there, but without extern \"C\"; it should begin: {prototype}"
    return f"the file lacks: {prototype}"


def _cuda_entry(functions: dict[str, Any], arguments: list[dict[str, Any]]) -> EntryPoint:
    """An entry over bound functions; `arguments` come from `grader.problem.prototypes`."""

    def prepare(values: list[Any], case: dict[str, Any]) -> Any:
        converted: list[Any] = []
        for argument, value in zip(arguments, values, strict=True):
            converted += _c_values(argument, value)
        converted += [ctypes.c_int64(size) for size in case["dims"]]
        return functions[case["symbol"]], converted

    def call(prepared: Any) -> None:
        import torch

        function, converted = prepared
        function(*converted, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))

    return EntryPoint(call, prepare)


def _declared_entry(
    folder: Path, source: bytes, library: bytes, request: dict[str, Any], device: str
) -> EntryPoint:
    """An entry that makes the launches that the file declares. Raises `LoadError`."""
    prototypes, arguments = request["prototypes"], request["arguments"]
    launches = declared_launches(source, prototypes)
    try:
        code = DeviceCode.from_json(library)
        (folder / DECLARED_CUBIN).write_bytes(code.cubin)  # for a profile
        kernels = _loaded_kernels(code) if device == "cuda" else {}
    except (ValueError, KeyError, TypeError) as error:
        raise LoadError(f"the compiled file does not load: {error}") from error
    names = {
        symbol: [name_of(declaration) for declaration in parameters_of(prototype)]
        for symbol, prototype in prototypes.items()
    }

    def prepare(values: list[Any], case: dict[str, Any]) -> list[Any]:
        converted = [c for pair in zip(arguments, values, strict=True) for c in _c_values(*pair)]
        converted += [ctypes.c_int64(size) for size in case["dims"]]
        symbol = case["symbol"]
        given = dict(zip(names[symbol], converted, strict=False))  # all but the stream
        return [_prepared(one, kernels[one.kernel], given) for one in launches[symbol]]

    return EntryPoint(_launch_all, prepare)


def _loaded_kernels(code: DeviceCode) -> dict[str, Any]:
    """Load device code. Kernel, as a launch names it → the driver's kernel. Raises ValueError."""
    from cuda.bindings import driver as cuda

    cuda.cuInit(0)
    library = _driver_result(cuda.cuLibraryLoadData(code.cubin, [], [], 0, [], [], 0))
    return {
        name: _driver_result(cuda.cuLibraryGetKernel(library, symbol.encode()))
        for name, symbol in code.symbols.items()
    }


def _driver_result(answer: tuple[Any, ...]) -> Any:
    """What a call of the driver returned. Raises ValueError with the driver's error."""
    status, *results = answer
    if status:
        raise ValueError(status.name)
    return results[0] if results else None


def _prepared(launch: Launch, kernel: Any, given: dict[str, Any]) -> Any:
    """The arguments of `cuLaunchKernel` but the stream; None for a launch without blocks."""
    from cuda.bindings import driver as cuda

    numbers = {name: one.value for name, one in given.items() if isinstance(one, ctypes.c_int64)}
    grid, block, shared_bytes = launch.sizes(numbers)
    if 0 in grid:
        return None
    if shared_bytes > DEFAULT_SHARED_BYTES:
        kind = cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _driver_result(cuda.cuKernelSetAttribute(kind, shared_bytes, kernel, cuda.CUdevice(0)))
    values = launch.values(given)
    addresses = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
    return cuda.CUfunction(int(kernel)), grid, block, shared_bytes, addresses, values


def _launch_all(launches: list[Any]) -> None:
    import torch
    from cuda.bindings import driver as cuda

    stream = cuda.CUstream(torch.cuda.current_stream().cuda_stream)
    for launch in launches:
        if launch is not None:
            kernel, grid, block, shared_bytes, addresses, _ = launch
            parameters = ctypes.addressof(addresses)
            _driver_result(
                cuda.cuLaunchKernel(kernel, *grid, *block, shared_bytes, stream, parameters, 0)
            )


def _set_entry(function: Any, prototype: str) -> EntryPoint:
    """An entry over a function with the prototype of another set, which has no stream."""
    kinds = [
        None if "*" in declaration else C_NUMBERS[declaration.rpartition(" ")[0]]
        for declaration in parameters_of(prototype)
    ]

    def prepare(values: list[Any], case: dict[str, Any]) -> Any:
        pairs = zip(kinds, values, strict=True)
        return [ctypes.c_void_p(v.data_ptr()) if kind is None else kind(v) for kind, v in pairs]

    return EntryPoint(lambda converted: function(*converted), prepare, on_default_stream=True)


def _c_values(argument: dict[str, Any], value: Any) -> list[Any]:
    if argument["kind"] == "scalar":
        kinds = {"int64": ctypes.c_int64, "fp64": ctypes.c_double, "bool": ctypes.c_bool}
        return [kinds[argument["dtype"]](value)]
    if argument["kind"] == "tensors":
        pointers = (ctypes.c_void_p * len(value))(*[t.data_ptr() for t in value])
        lengths = (ctypes.c_int64 * len(value))(*[t.numel() for t in value])
        return [pointers, lengths, ctypes.c_int64(len(value))]
    values: list[Any] = [ctypes.c_void_p(value.data_ptr())]
    if argument["strided"]:
        values.append((ctypes.c_int64 * value.dim())(*value.stride()))
    return values
