"""An exception as text for the submission's author: what went wrong, and on which of their lines.

Only the submission's own lines are shown, not those of PyTorch, Triton or the runner. Triton wraps
an error in a kernel: on a GPU in a `CompilationError`, whose traceback ends at the launch, and in
its interpreter in an `InterpreterError`. Here both give the kernel's line.
"""

from __future__ import annotations

import linecache
import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SUMMARY_CHARS = 200
"""Most characters of an error's message in its summary, so that the line's number always fits."""
PRINTED_CHARS = 4096
"""Most characters of each part that is printed."""
NO_GPU = re.compile(
    r"Torch not compiled with CUDA|no NVIDIA driver|No CUDA GPUs|"
    r"no CUDA-capable device|dummy base class"
)
"""What PyTorch says, in several builds, when code asks for a GPU that is not there."""
NO_GPU_ADVICE = (
    "; there is no GPU here, and the tensors are on the CPU: use device=x.device instead of 'cuda' "
    "and .cuda()"
)

COMPILER_ERROR = re.compile(r"^\S*?([^/\s]+: (?:fatal |catastrophic )?error\b.*)$", re.MULTILINE)
"""A compiler's first error, without its file's folder: of gcc, ``main.cpp:5:3: error: …``, of nvcc,
``kernel.cu(5): error: …``."""


@dataclass(frozen=True)
class _Place:
    """A line of the submission, with the columns [start, end) to mark; equal where unknown."""

    file: str
    number: int
    function: str
    start: int = 0
    end: int = 0

    def __str__(self) -> str:
        head = f'  File "{Path(self.file).name}", line {self.number}, in {self.function}\n'
        line = linecache.getline(self.file, self.number).rstrip()
        text = line.lstrip()
        if not text:
            return head
        indent = len(line) - len(text)
        start, end = max(self.start - indent, 0), min(self.end - indent, len(text))
        marks = f"    {' ' * start}{'^' * (end - start)}\n" if start < end else ""
        return f"{head}    {text}\n{marks}"


def is_submission(file: str) -> bool:
    """Whether a file name is that of a loaded submission."""
    return Path(file).name == "submission.py"


def summary(error: BaseException) -> str:
    """``ValueError: text (line 12 of the submission)`` in one line, with the innermost line.

    Never raises, though formatting may run the submission's code.
    """
    where = ""
    try:
        places = _places(error)
        where = f" (line {places[-1].number} of the submission)" if places else ""
        text = " ".join(_without_commands(_message(error)).split())
        advice = NO_GPU_ADVICE if NO_GPU.search(text) else ""
        short = text if len(text) <= SUMMARY_CHARS else f"{text[: SUMMARY_CHARS - 1]}…"
        return short + where + advice
    except BaseException:  # noqa: BLE001 - the submission's exception may do anything
        return f"an exception that cannot be shown{where}"


def _without_commands(text: str) -> str:
    """What ninja says of an extension that does not compile, which is all commands and their
    output, as the compiler's first error. Of any other message, the text as it is."""
    found = COMPILER_ERROR.search(text) if "\nFAILED: " in text else None
    return f"{text.partition(':')[0]}: compiling it failed: {found[1]}" if found else text


def printed(error: BaseException) -> str:
    """The submission's lines that led to an error, each with a mark below it, then the error."""
    shown = "".join(map(str, _places(error)))
    last = _chain(error)[-1]
    if isinstance(last, SyntaxError):
        what = "".join(traceback.format_exception_only(last))
        if last.filename and is_submission(last.filename):
            what = what.replace(last.filename, Path(last.filename).name, 1)
    else:
        what = f"{_message(error)}\n" + "".join(f"{n}\n" for n in getattr(last, "__notes__", []))
    return shown[-PRINTED_CHARS:] + what[:PRINTED_CHARS]


def _chain(error: BaseException) -> list[BaseException]:
    """An error, and what it wraps if it is one of Triton's; the innermost is last."""
    chain = [error]
    while _is_triton(chain[-1]) and (inner := _wrapped(chain[-1])) is not None:
        chain.append(inner)
    return chain


def _is_triton(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] == "triton"


def _wrapped(error: BaseException) -> BaseException | None:
    """Triton raises a compile error ``from None``, with the text of the error that it wraps."""
    context = error.__context__
    if error.__cause__ is None and getattr(error, "error_message", None) == repr(context):
        return context
    return error.__cause__


def _message(error: BaseException) -> str:
    """``ValueError: text`` of the innermost error. Triton's own text repeats the kernel's source
    above its message, so only the message is taken."""
    last = _chain(error)[-1]
    text = getattr(last, "error_message", None) if _is_triton(last) else None
    text = str(last) if text is None else text
    return f"{type(last).__name__}: {text}" if text else type(last).__name__


def _places(error: BaseException) -> list[_Place]:
    """The submission's lines that led to an error, the innermost last."""
    places: list[_Place] = []
    for one in _chain(error):
        places += _of_traceback(one)
        if places and (kernel := _of_kernel(one, places[0].file)) is not None:
            places.append(kernel)
    return places


def _of_traceback(error: BaseException) -> Iterator[_Place]:
    for frame in traceback.extract_tb(error.__traceback__):
        if not is_submission(frame.filename) or frame.lineno is None:
            continue
        line = linecache.getline(frame.filename, frame.lineno)
        start, end = 0, 0
        if frame.end_lineno == frame.lineno and frame.end_colno is not None:
            start, end = _column(line, frame.colno or 0), _column(line, frame.end_colno)
        yield _Place(frame.filename, frame.lineno, frame.name, start, end)


def _of_kernel(error: Any, file: str) -> _Place | None:
    """The line of a kernel that Triton could not compile; None if it is not in the submission.

    Triton gives the function's source, dedented and from its ``def`` on, and a position in it.
    """
    source, node = getattr(error, "src", None), getattr(error, "node", None)
    number, column = getattr(node, "lineno", None), getattr(node, "col_offset", 0)
    if not isinstance(source, str) or not isinstance(number, int) or not _is_triton(error):
        return None
    kernel = source.splitlines()[:number]
    lines = linecache.getlines(file)
    wanted = [line.strip() for line in kernel]
    has = [line.strip() for line in lines]
    for first in range(len(has) - len(wanted) + 1):
        if wanted and has[first : first + len(wanted)] == wanted:
            line, own = lines[first + number - 1], kernel[-1]
            end = column
            if getattr(node, "end_lineno", None) == number:
                end = getattr(node, "end_col_offset", column)
            shift = (len(line) - len(line.lstrip())) - (len(own) - len(own.lstrip()))
            start, end = _column(own, column) + shift, _column(own, end) + shift
            name = re.match(r"def\s+(\w+)", wanted[0])
            return _Place(file, first + number, name[1] if name else "a kernel", start, end)
    return None


def _column(line: str, offset: int) -> int:
    """A column in characters, of an offset in bytes of UTF-8."""
    return len(line.encode()[:offset].decode("utf-8", "replace"))
