"""Does a `.cu` file define its entries with the problem's prototypes?

C linkage has no types in its symbols, so a wrong prototype would link, and be called with other
arguments than it takes. So nvcc compiles the file once more, with assertions behind it that compare
each entry's parameters with the problem's. A last assertion always fails, so that nvcc stops before
it generates code. Only a failed comparison counts: a file that keeps the assertions from compiling,
such as by an overloaded entry, is not checked.

Top-level ``const`` and ``restrict`` are no difference in C++. Neither is here ``const`` of what a
pointer points to, an integer type of the same size (`long long` is not `int64_t` to the compiler),
`void` behind a pointer, or the type that is returned. In a prototype of another set, an integer
that is passed by value may have 32 or 64 bits: LeetGPU's starter files take `int` where some of its
challenges say `size_t`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from grader.runner.entry_point import LoadError
from grader.runner.nvcc import FLAGS, CompilerProcess, code

_ASSERTIONS = """
struct __half;
struct __nv_bfloat16;
struct __nv_fp8_e4m3;
struct __nv_fp8_e5m2;
namespace grade_prototypes {
constexpr bool any_integer = ANY_INTEGER;
using int64_t = long;
using int32_t = int;
using int16_t = short;
using int8_t = signed char;
using uint8_t = unsigned char;
template <class T> struct plain { using type = T; };
template <class T> struct plain<const T> : plain<T> {};
template <class T> struct plain<T*> { using type = typename plain<T>::type*; };
template <> struct plain<char> : plain<int8_t> {};
template <> struct plain<unsigned char> : plain<int8_t> {};
template <> struct plain<unsigned short> : plain<int16_t> {};
template <> struct plain<unsigned> : plain<int32_t> {};
template <> struct plain<unsigned long> : plain<int64_t> {};
template <> struct plain<long long> : plain<int64_t> {};
template <> struct plain<unsigned long long> : plain<int64_t> {};
template <class A, class B> constexpr bool same = false;
template <class A> constexpr bool same<A, A> = true;
template <class A> constexpr bool same<A*, void*> = true;
template <> constexpr bool same<void*, void*> = true;
template <class T> constexpr bool is_integer = false;
template <> constexpr bool is_integer<int32_t> = true;
template <> constexpr bool is_integer<int64_t> = true;
template <class A, class B>
constexpr bool agree = same<A, B> || (any_integer && is_integer<A> && is_integer<B>);
template <int number, class expected, class found> struct parameter {
  static_assert(agree<typename plain<expected>::type, typename plain<found>::type>, "wrong type");
};
template <int number, class E, class F> struct parameters {
  static_assert(number < 0, "wrong number of parameters");
};
template <int number> struct parameters<number, void(), void()> {};
template <int number, class E, class... Es, class F, class... Fs>
struct parameters<number, void(E, Es...), void(F, Fs...)>
    : parameter<number, E, F>, parameters<number + 1, void(Es...), void(Fs...)> {};
template <int symbol, class E, class R, class... F>
__host__ __device__ constexpr bool check(R (*)(F...)) {
  return sizeof(parameters<1, E, void(F...)>) > 0;
}
"""
_NO_CODE = 'static_assert(sizeof(int) == 0, "no code is generated");\n'
_CLASH = re.compile(r'static assertion failed with "wrong (?:type|number of parameters)"')
_PARAMETER = re.compile(r"::parameter<.*\[with number=(\d+), expected=.*, found=(.*)\]")
_ENTRY = re.compile(r"::check<.*\[with symbol=(\d+), E=.*, R=(.*), F=<(.*)>\]")


def chosen_prototypes(source: bytes, request: dict[str, Any]) -> dict[str, str]:
    """The prototypes that a file is to define: the problem's own, or that of its set, if the file
    has the entry without a stream."""
    ours: dict[str, str] = request["prototypes"]
    if not request.get("set_prototype"):
        return ours
    (symbol,) = ours
    text = source.decode("utf-8", "replace")
    found = re.findall(rf"\b{symbol}\s*\(([^(){{}};]*)\)\s*{{", text)
    if not found or any("cudaStream_t" in parameters for parameters in found):
        return ours
    return {symbol: request["set_prototype"]}


@contextmanager
def checked_prototypes(
    source: bytes,
    folder: Path,
    target: str,
    prototypes: dict[str, str],
    of_set: bool = False,
) -> Iterator[None]:
    """Check a source beside the block, which compiles it. Raises `LoadError` at the end of the
    block, unless that raises; and OSError when there is no nvcc.

    prototypes: symbol → prototype, as `grader.problem.prototypes` gives them, or with `of_set` as
        another set does.
    """
    if not prototypes:
        yield
        return
    sys.stderr.writelines(warnings_of_order(source.decode("utf-8", "replace"), prototypes))
    own = folder / "prototypes"
    own.mkdir()
    path = own / "submission.cu"
    path.write_bytes(source + b"\n" + (assertions(prototypes, of_set) + _NO_CODE).encode())
    command = ["nvcc", *FLAGS, "-w", "-c", *code(target, "compute"), "-o", "none.o", str(path)]
    with CompilerProcess(command, own, "check") as process:
        yield
        process.wait()
        clash = describe_clash(process.output(), prototypes)
    if clash is not None:
        raise LoadError(clash)


def warnings_of_order(source: str, prototypes: dict[str, str]) -> Iterator[str]:
    """A line for each entry that has the problem's parameter names in another order. Two integers
    may change places without a clash of types."""
    for symbol, prototype in prototypes.items():
        wanted = list(map(name_of, parameters_of(prototype)))
        for found in re.finditer(rf"\b{symbol}\s*\(([^(){{}};]*)\)", source):
            takes = list(map(name_of, found[1].split(",")))
            if takes != wanted and sorted(takes) == sorted(wanted):
                yield (
                    f"'{symbol}({', '.join(takes)})' is called with the problem's arguments in "
                    f"their order, ({', '.join(wanted)}), whatever its parameters are named\n"
                )
                break


def describe_clash(output: str, prototypes: dict[str, str]) -> str | None:
    """What nvcc's output says of a wrong prototype, in one line; None if it says of none.

    The expected and the found prototype are printed in full, for the source's author.
    """
    found = _CLASH.search(output)
    if found is None:
        return None
    context = output[found.end() :]
    entry = _ENTRY.search(context)
    if entry is None or int(entry[1]) >= len(prototypes):
        return f"an entry has another prototype than the problem: {'; '.join(prototypes.values())}"
    symbol, prototype = list(prototypes.items())[int(entry[1])]
    actual = f"{entry[2]} {symbol}({entry[3]})".replace("grade_prototypes::", "")
    sys.stderr.write(f"expected: {prototype}\nfound:    {actual}\n")
    wanted = parameters_of(prototype)
    count, parameter = _count(entry[3]), _PARAMETER.search(context, 0, entry.start())
    if count != len(wanted):
        what = f"takes {count} parameters instead of {len(wanted)}"
    elif parameter is not None:
        number = int(parameter[1])
        what = f"takes {parameter[2]} as parameter {number} instead of {wanted[number - 1]}"
    else:
        what = "has another prototype"
    short = prototype.removeprefix('extern "C" ')
    return f"'{symbol}' {what}; expected {short}; found {actual}"


def assertions(prototypes: dict[str, str], of_set: bool = False) -> str:
    """C++ that does not compile behind functions with other prototypes than these."""
    checks = [
        f"static_assert(check<{number}, void({', '.join(map(type_of, parameters_of(prototype)))})>"
        f'(::{symbol}), "");\n'
        for number, (symbol, prototype) in enumerate(prototypes.items())
    ]
    head = _ASSERTIONS.replace("ANY_INTEGER", str(of_set).lower())
    return head + "".join(checks) + "}\n"


def parameters_of(prototype: str) -> list[str]:
    """The declarations of a prototype: ``["const float* x", …]``."""
    return prototype.partition("(")[2].rstrip(")").split(", ")


def name_of(declaration: str) -> str:
    """The name in a declaration: ``x`` of ``const float* x``."""
    return "".join(re.findall(r"\w+", declaration)[-1:])


def type_of(declaration: str) -> str:
    """The type in a declaration: ``const float*`` of ``const float* x``."""
    return declaration.rpartition(" ")[0]


def _count(types: str) -> int:
    """Number of types in a list in which types may have commas of their own."""
    depth, count = 0, 1 if types else 0
    for character in types:
        depth += {"<": 1, "(": 1, ">": -1, ")": -1}.get(character, 0)
        count += character == "," and depth == 0
    return count
