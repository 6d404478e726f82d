"""Runs one call of a problem's own code. Every failure of the call is one `ProblemError`.

The code runs in the judge's process, in the caller's thread. During the call, `os._exit` and
`os.abort` raise an exception, `sys.stdout` writes to stderr, and a watchdog stops the code at its
time limit. Threads outside such a call keep their exits and their stdout. Threads that the code
starts itself are not covered.

The watchdog raises an exception, which arrives when the thread next runs Python code. A call that
stays in C code cannot be stopped: it ends in a `HungCallError`, upon which the program `grade`
exits. C code that holds Python's global lock stops the watchdog, too.
"""

from __future__ import annotations

# `signal` looks every handler up in an enumeration, which took a third of the time of a short call,
# and a grading makes two thousand.
import _signal  # type: ignore[import-not-found]
import ctypes
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from grader.problem import ProblemError

LIMIT_S = 300.0
"""Time limit of one call. torch.compile may take minutes on a slow machine."""
REPEAT_S = 1.0
"""The watchdog raises its exception again after this time if the code has caught the last one."""
HUNG_S = 10.0
"""A call hangs if it has not ended this long after its limit."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals with which a user or the system stops grade."""

Result = TypeVar("Result")


def run_authors_code(what: str, function: Callable[[], Result]) -> Result:
    """Call `function` and return its result. `what` names its file, function and case in errors.

    Raises `ProblemError` when the call raises an exception, tries to exit, or takes longer than
    `LIMIT_S`. Two exceptions pass through: running out of device memory, and the exception of a
    signal's handler. Ctrl-C therefore stops grade even if the code catches KeyboardInterrupt.
    """
    if _current() is not None:
        return function()
    call = _Call(what)
    try:
        try:
            call.begin()
            result = function()
        finally:
            call.end()
    except BaseException as error:
        call.end()  # the watchdog's exception may have interrupted the first `end`
        call.raise_stop(error)
        if isinstance(error, torch.cuda.OutOfMemoryError):
            raise
        text = str(error).splitlines()[0] if str(error) else ""
        kind = type(error).__name__
        raise ProblemError(f"{what} raised {kind}{text and ': '}{text}") from error
    call.raise_stop(None)
    return result


class HungCallError(ProblemError):
    """A call does not end, and no exception reaches it. No caller can catch this error: it is
    raised in a thread of its own, for `threading.excepthook`."""


class _Stop(BaseException):
    """Stops the author's code. Not an `Exception`, which the code may catch by mistake."""


class _Call:
    """One running call of the author's code, in one thread."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.pid = os.getpid()
        self.thread = threading.get_ident()
        self.deadline_s = math.inf
        """When the watchdog next raises `_Stop` in the thread, by `time.monotonic`."""
        self.hangs_at_s = math.inf
        """When the call counts as hung, by `time.monotonic`."""
        self.is_too_long = False
        self.exit: str | None = None
        """The exit call that the code tried, such as ``os._exit(0)``."""
        self._signal: BaseException | None = None
        """The exception that a signal's handler raised."""
        self._handlers: dict[int, Any] = {}

    def begin(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                handler = _signal.getsignal(number)
                if callable(handler):
                    self._handlers[number] = handler
                    _signal.signal(number, self._on_signal)
        _WATCHDOG.add(self)

    def end(self) -> None:
        """Idempotent."""
        while True:
            try:
                _WATCHDOG.remove(self)
                break
            except _Stop:  # it was already on its way
                continue
        for number, handler in self._handlers.items():
            _signal.signal(number, handler)

    def raise_stop(self, error: BaseException | None) -> None:
        """Raise the reason for which the code was stopped, also if it caught the exception. Do
        nothing if it was not stopped."""
        if self._signal is not None:
            raise self._signal
        if self.is_too_long:
            raise ProblemError(self._too_long()) from error
        if self.exit is not None:
            raise ProblemError(
                f"{self.what} called {self.exit}; it runs in the judge's process, so let it return "
                "or raise an exception"
            ) from error

    def raise_hung(self) -> None:
        """Raise `HungCallError`, in a thread of its own."""
        raise HungCallError(f"{self._too_long()}, and cannot be stopped")

    def _too_long(self) -> str:
        return f"{self.what} took longer than {LIMIT_S:g} s"

    def _on_signal(self, number: int, frame: Any) -> None:
        try:
            self._handlers[number](number, frame)
        except BaseException as stop:
            self._signal = stop
            raise


class _Watchdog:
    """Raises `_Stop` in the thread of every call that takes too long.

    Its own thread sleeps until the earliest deadline that it has seen. Calls that end in time
    rarely wake it.
    """

    def __init__(self) -> None:
        # A plain lock, taken by `with` itself: `_Stop` cannot arrive between taking it and entering
        # the block. In the methods of a `Condition` or of Python's other locks it can, and would
        # leave the lock taken.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._calls: dict[int, _Call] = {}
        self._looks_at_s = math.inf
        self._thread: threading.Thread | None = None
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def current(self) -> _Call | None:
        """The call that runs in this thread, or None. A forked child has no call: it may exit."""
        call = self._calls.get(threading.get_ident())
        return call if call is not None and call.pid == os.getpid() else None

    def add(self, call: _Call) -> None:
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._watch, daemon=True)
                self._thread.start()
            if not self._calls:
                self._replace()
            call.deadline_s = time.monotonic() + LIMIT_S
            call.hangs_at_s = call.deadline_s + HUNG_S
            self._calls[call.thread] = call
            if call.deadline_s < self._looks_at_s:
                self._changed.notify()

    def remove(self, call: _Call) -> None:
        with self._lock:
            self._calls.pop(call.thread, None)
            if call.is_too_long:  # its exception may still be on its way
                _raise_in(call.thread, None)
            if not self._calls:
                self._restore()

    def _replace(self) -> None:
        replacements: list[tuple[Any, str, Any]] = [
            (os, "_exit", _refused_exit),
            (os, "abort", _refused_abort),
        ]
        if sys.stdout is not None:
            replacements.append((sys, "stdout", _Stdout(sys.stdout)))
        for module, name, ours in replacements:
            self._replaced.append((module, name, getattr(module, name), ours))
            setattr(module, name, ours)

    def _restore(self) -> None:
        while self._replaced:
            module, name, original, ours = self._replaced.pop()
            if getattr(module, name) is ours:  # no other thread has replaced it meanwhile
                setattr(module, name, original)

    def _watch(self) -> None:
        with self._changed:
            while True:
                now_s = time.monotonic()
                for call in self._calls.values():
                    if call.deadline_s <= now_s:
                        call.is_too_long = True
                        call.deadline_s = now_s + REPEAT_S
                        _raise_in(call.thread, _Stop)
                    if call.hangs_at_s <= now_s:
                        call.hangs_at_s = math.inf
                        threading.Thread(target=call.raise_hung, daemon=True).start()
                deadlines_s = (call.deadline_s for call in self._calls.values())
                self._looks_at_s = min(deadlines_s, default=math.inf)
                wait_s = self._looks_at_s - now_s
                self._changed.wait(None if math.isinf(wait_s) else wait_s)


_WATCHDOG = _Watchdog()
_current = _WATCHDOG.current


def _raise_in(thread: int, kind: type[BaseException] | None) -> None:
    """Raise an exception in a thread as soon as it runs Python code. None takes back an exception
    that has not arrived."""
    argument = ctypes.py_object() if kind is None else ctypes.py_object(kind)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), argument)


def _refusing(leave: Callable[..., Any], name: str) -> Callable[..., Any]:
    def refuse(*status: object) -> Any:
        call = _current()
        if call is None:
            return leave(*status)
        call.exit = f"{name}({', '.join(map(repr, status))})"
        raise _Stop

    return refuse


_refused_exit, _refused_abort = _refusing(os._exit, "os._exit"), _refusing(os.abort, "os.abort")


class _Stdout:
    """stdout; for a thread in the author's code, stderr."""

    def __init__(self, stdout: Any) -> None:
        self._stdout = stdout

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stdout if _current() is None else sys.stderr, name)
