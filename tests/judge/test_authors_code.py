"""Whatever a problem's code does ends in one `ProblemError`; other threads notice nothing."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from grader.judge import authors_code
from grader.judge.authors_code import run_authors_code
from grader.problem import ProblemError

WHERE = "reference.py: reference() for case 'tiny'"


def in_main_thread(body: Callable[[], object]) -> object:
    return body()


def in_other_thread(body: Callable[[], object]) -> object:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(body).result()


THREADS = pytest.mark.parametrize("thread", [in_main_thread, in_other_thread])


def endless() -> None:
    while True:
        pass


def stubborn() -> str:
    """Survives the watchdog's first exception."""
    for _ in range(2):
        with contextlib.suppress(BaseException):
            endless()
    return "done"


def leave_quietly() -> str:
    with contextlib.suppress(BaseException):
        os._exit(0)
    return "done"


def interrupt() -> None:
    raise KeyboardInterrupt


@THREADS
@pytest.mark.parametrize(
    ("code", "message"),
    [
        (lambda: os._exit(3), r"called os\._exit\(3\); it runs in the judge's process"),
        (lambda: os.abort(), r"called os\.abort\(\)"),
        (leave_quietly, r"called os\._exit\(0\)"),
        (lambda: sys.exit(0), r"raised SystemExit: 0"),
        (interrupt, r"raised KeyboardInterrupt$"),
        (lambda: torch.zeros(2) @ torch.zeros(3), "raised RuntimeError: "),
    ],
)
def test_an_exit_is_the_problems_error(
    thread: Callable[..., object], code: Callable[[], object], message: str
) -> None:
    before = os._exit, os.abort, sys.stdout, signal.getsignal(signal.SIGINT)
    with pytest.raises(ProblemError, match=f"^reference.py: .*'tiny' {message}"):
        thread(lambda: run_authors_code(WHERE, code))
    assert (os._exit, os.abort, sys.stdout, signal.getsignal(signal.SIGINT)) == before


@THREADS
@pytest.mark.parametrize("code", [endless, stubborn])
def test_an_endless_loop_ends(
    monkeypatch: pytest.MonkeyPatch, thread: Callable[..., object], code: Callable[[], object]
) -> None:
    monkeypatch.setattr(authors_code, "LIMIT_S", 0.2)
    monkeypatch.setattr(authors_code, "REPEAT_S", 0.1)
    with pytest.raises(ProblemError, match=r"^reference.py: .*'tiny' took longer than 0.2 s$"):
        thread(lambda: run_authors_code(WHERE, code))


@pytest.mark.parametrize("sleeps_s", [0.1, 1.0])
def test_a_call_that_stays_in_c_is_reported_once_to_the_process(
    monkeypatch: pytest.MonkeyPatch, sleeps_s: float
) -> None:
    monkeypatch.setattr(authors_code, "LIMIT_S", 0.2)
    monkeypatch.setattr(authors_code, "HUNG_S", 0.2)
    monkeypatch.setattr(authors_code, "REPEAT_S", 0.1)
    seen: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda error: seen.append(str(error.exc_value)))
    with contextlib.suppress(ProblemError):
        run_authors_code(WHERE, lambda: time.sleep(sleeps_s))
    hung = [f"{WHERE} took longer than 0.2 s, and cannot be stopped"]
    assert seen == (hung if sleeps_s == 1.0 else [])


def test_a_call_that_ends_at_its_limit_leaves_no_exception_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The watchdog's exception may arrive anywhere, and must never leave the call."""
    monkeypatch.setattr(authors_code, "LIMIT_S", 0.002)
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    late = 0
    try:
        for _ in range(300):
            end_s = time.monotonic() + random.uniform(0.0015, 0.003)
            try:
                run_authors_code(WHERE, lambda end_s=end_s: spin_until(end_s))  # type: ignore[misc]
            except ProblemError:
                late += 1
    finally:
        sys.setswitchinterval(interval_s)
    assert late > 0


def spin_until(end_s: float) -> None:
    while time.monotonic() < end_s:
        pass


@pytest.mark.parametrize(
    ("number", "stop"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_a_signal_of_the_user_stops_grade(number: int, stop: type[BaseException]) -> None:
    """Even where the code catches it."""

    def handler(*_: Any) -> None:
        raise stop

    def code() -> str:
        with contextlib.suppress(BaseException):
            signal.raise_signal(number)
        return "done"

    before = signal.signal(number, handler)
    try:
        with pytest.raises(stop):
            run_authors_code(WHERE, code)
        assert signal.getsignal(number) is handler
    finally:
        signal.signal(number, before)


def test_device_memory_that_runs_out_is_no_error_of_the_problem() -> None:
    def code() -> None:
        raise torch.cuda.OutOfMemoryError("no memory")

    with pytest.raises(torch.cuda.OutOfMemoryError):
        run_authors_code(WHERE, code)


def test_only_the_codes_own_thread_prints_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def code() -> int:
        print("from the problem")
        sys.stdout.write("also from the problem\n")
        inside.set()
        assert go_on.wait(60)
        return 7

    results: list[int] = []
    thread = threading.Thread(target=lambda: results.append(run_authors_code(WHERE, code)))
    thread.start()
    assert inside.wait(60)
    print("from grade")
    go_on.set()
    thread.join()
    assert results == [7]
    shown = capfd.readouterr()
    assert shown.out == "from grade\n"
    assert shown.err == "from the problem\nalso from the problem\n"


def test_a_call_takes_its_lock_without_running_python_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The watchdog's exception may arrive wherever Python code runs. In a lock's own Python code,
    such as a condition's, it would leave the lock taken, and other calls would wait for ever."""
    threads: list[int] = []
    for name in ("__enter__", "__exit__"):
        original = getattr(threading.Condition, name)

        def noting(self: threading.Condition, *arguments: Any, original: Any = original) -> Any:
            threads.append(threading.get_ident())
            return original(self, *arguments)

        monkeypatch.setattr(threading.Condition, name, noting)
    assert run_authors_code(WHERE, lambda: 7) == 7
    assert threading.get_ident() not in threads


def test_a_forked_child_may_exit() -> None:
    def code() -> int:
        pid = os.fork()
        if pid == 0:
            os._exit(5)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    assert run_authors_code(WHERE, code) == 5
