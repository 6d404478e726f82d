"""Runs one call of a problem's own code, so that whatever it does ends in one `ProblemError`.

The code runs in the judge's process and in the thread of its caller. While it does, `os._exit` and
`os.abort` raise, `sys.stdout` writes to stderr, and a watchdog ends a call that takes too long. All
of this holds for threads in such a call only: other threads keep their stdout and their exits. Out
of reach are threads that the code itself starts, and code outside Python: a kernel that never
returns is ended by whoever ends the judge.
"""

from __future__ import annotations

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
"""The most that one call may take: generous, since torch.compile needs minutes on a slow machine.
"""
REPEAT_S = 1.0
"""A call that catches the watchdog's exception gets another one after this long."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What a user or the system stops grade with."""

Result = TypeVar("Result")


def run_authors_code(what: str, function: Callable[[], Result]) -> Result:
    """Call `function`; `what` names file, function and case.

    Raises `ProblemError` when it raises anything, exits, or takes longer than `LIMIT_S`. Running
    out of device memory passes through, and so does what a signal's handler raises: Ctrl-C stops
    grade whatever the code makes of it.
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
        call.end()  # the watchdog's exception may have met the first one
        call.raise_stop(error)
        if isinstance(error, torch.cuda.OutOfMemoryError):
            raise
        text = str(error).splitlines()[0] if str(error) else ""
        kind = type(error).__name__
        raise ProblemError(f"{what} raised {kind}{text and ': '}{text}") from error
    call.raise_stop(None)
    return result


class _Stop(BaseException):
    """Ends the author's code; not an Exception, which the code may catch by mistake."""


class _Call:
    """One running call of the author's code, in one thread."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.pid = os.getpid()
        self.thread = threading.get_ident()
        self.deadline_s = math.inf
        """By `time.monotonic`: when the watchdog raises `_Stop` in the thread."""
        self.is_too_long = False
        self.exit: str | None = None
        """The exit that the code tried."""
        self._signal: BaseException | None = None
        """What the handler of a signal raised."""
        self._handlers: dict[int, Any] = {}

    def begin(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                handler = signal.getsignal(number)
                if callable(handler):
                    self._handlers[number] = handler
                    signal.signal(number, self._on_signal)
        _WATCHDOG.add(self)

    def end(self) -> None:
        """Idempotent."""
        while True:
            try:
                _WATCHDOG.remove(self)
                break
            except _Stop:  # on the way here
                continue
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def raise_stop(self, error: BaseException | None) -> None:
        """Raise the reason why the code was stopped, even where it caught the exception."""
        if self._signal is not None:
            raise self._signal
        if self.is_too_long:
            raise ProblemError(f"{self.what} took longer than {LIMIT_S:g} s") from error
        if self.exit is not None:
            raise ProblemError(
                f"{self.what} called {self.exit}; it runs in the judge's process, so let it return "
                "or raise an exception"
            ) from error

    def _on_signal(self, number: int, frame: Any) -> None:
        try:
            self._handlers[number](number, frame)
        except BaseException as stop:
            self._signal = stop
            raise


class _Watchdog:
    """Knows the running calls, and raises `_Stop` in those that take too long.

    Its thread sleeps until the oldest deadline that it knew of when it last looked, so calls that
    end in time rarely wake it.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls: dict[int, _Call] = {}
        self._looks_at_s = math.inf
        self._thread: threading.Thread | None = None
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def current(self) -> _Call | None:
        """The call that runs in this thread. None in a forked child, which may exit."""
        call = self._calls.get(threading.get_ident())
        return call if call is not None and call.pid == os.getpid() else None

    def add(self, call: _Call) -> None:
        with self._changed:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._watch, daemon=True)
                self._thread.start()
            if not self._calls:
                self._replace()
            call.deadline_s = time.monotonic() + LIMIT_S
            self._calls[call.thread] = call
            if call.deadline_s < self._looks_at_s:
                self._changed.notify()

    def remove(self, call: _Call) -> None:
        with self._changed:
            self._calls.pop(call.thread, None)
            if call.is_too_long:  # the exception may not have arrived yet
                _raise_in(call.thread, None)
            if not self._calls:
                self._restore()

    def _replace(self) -> None:
        replacements: list[tuple[Any, str, Any]] = [
            (os, "_exit", _refusing(os._exit, "os._exit")),
            (os, "abort", _refusing(os.abort, "os.abort")),
        ]
        if sys.stdout is not None:
            replacements.append((sys, "stdout", _Stdout(sys.stdout)))
        for module, name, ours in replacements:
            self._replaced.append((module, name, getattr(module, name), ours))
            setattr(module, name, ours)

    def _restore(self) -> None:
        while self._replaced:
            module, name, original, ours = self._replaced.pop()
            if getattr(module, name) is ours:  # not replaced by another thread meanwhile
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
                deadlines_s = (call.deadline_s for call in self._calls.values())
                self._looks_at_s = min(deadlines_s, default=math.inf)
                wait_s = self._looks_at_s - now_s
                self._changed.wait(None if math.isinf(wait_s) else wait_s)


_WATCHDOG = _Watchdog()
_current = _WATCHDOG.current


def _raise_in(thread: int, kind: type[BaseException] | None) -> None:
    """Raise an exception in a thread when it next runs Python code; None takes it back."""
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


class _Stdout:
    """stdout, which is stderr for threads in the author's code."""

    def __init__(self, stdout: Any) -> None:
        self._stdout = stdout

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stdout if _current() is None else sys.stderr, name)
