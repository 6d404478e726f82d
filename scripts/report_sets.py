"""Report which problems of other sets can be judged here, from the user's own checkouts.

    python -m scripts.report_sets OUT.jsonl leetgpu:ROOT kernelbot:ROOT... [--processes N]
        [--limit-s 120] [--for-s 420] [--sandbox process] [--only TEXT] [--share 1/4]

Proves every problem as `grade verify SET:PATH` does, and appends its result to OUT.jsonl; what is
there already is not run again, so a run can be continued; with --share 2/4, each of four GPUs takes
a quarter. After --for-s seconds no problem is begun.

With several processes a problem waits until the GPU has the memory that its tensors are estimated
to need. One that ran out of memory or time all the same is proved again alone, at the end. Prints
the counts and the reasons by set as Markdown. Exit status: 0 if every problem has a result.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import asdict
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import click

from grader.problem import ProblemError
from grader.problem_sets import SETS, list_problems, read_problem, split_prefix
from grader.problem_sets.reading import problem_name
from scripts.workers import exit_with_parent, shared

STATES = ("runs", "runs with limits", "cannot")
SCARCE = ("memory", "took longer than", "limit_exceeded", "judge_error", "ended", "killed")
"""Words of a reason that may hold only where others use the machine too."""
STOPPING_S = 10.0

Found = dict[str, Any]


class Budget:
    """The memory of the GPU, of which problems that run at the same time have shares."""

    def __init__(self) -> None:
        self._left = 1.0
        self._changed = threading.Condition()

    def take(self, share: float) -> None:
        """Wait until a share is left, and take it."""
        with self._changed:
            # Shares add up to one within rounding.
            self._changed.wait_for(lambda: share <= self._left + 1e-6)
            self._left -= share

    def give_back(self, share: float) -> None:
        """Return a share."""
        with self._changed:
            self._left += share
            self._changed.notify_all()


class Worker:
    """A process that proves one problem after another: importing torch and opening a GPU take
    seconds. After its death the next problem starts another."""

    def __init__(self, sandbox: str, threads: int, alone: bool = False) -> None:
        self._options = sandbox, threads, alone
        self._process: SpawnProcess | None = None

    def examine(self, name: str, limit_s: float, budget: Budget) -> Found:
        """What is found of a problem within `limit_s` seconds, not counting those in which it waits
        for memory."""
        self._start()
        share = 0.0
        try:
            self._connection.send(name)
            answer = self._receive(limit_s)
            if isinstance(answer, float):
                budget.take(answer)
                share = answer
                self._connection.send(None)
                answer = self._receive(limit_s)
        except TimeoutError:
            self.stop()
            answer = cannot(f"it took longer than {limit_s:g} s")
        except (EOFError, BrokenPipeError, ConnectionResetError):
            code = self.stop()
            answer = cannot(f"its process ended with exit status {code}")
        finally:
            budget.give_back(share)
        found: Found = {"problem": name} | answer
        return found

    def stop(self) -> int | None:
        """End the process and its sandboxes; its exit status."""
        if self._process is None:
            return None
        process, self._process = self._process, None
        process.terminate()
        process.join(STOPPING_S)
        process.kill()
        process.join()
        self._connection.close()
        return process.exitcode

    def _start(self) -> None:
        if self._process is None:
            self._connection, theirs = Pipe()
            # A forked process would inherit locks and an unusable CUDA context.
            context = multiprocessing.get_context("spawn")
            self._process = context.Process(target=serve, args=(theirs, *self._options))
            self._process.start()
            theirs.close()

    def _receive(self, limit_s: float) -> Any:
        if not self._connection.poll(limit_s):
            raise TimeoutError
        return self._connection.recv()


def serve(connection: Connection, sandbox_name: str, threads: int, alone: bool) -> None:
    """Prove the problems whose names arrive, until the process is ended. Before a problem makes
    tensors, the share of the GPU's memory that it needs is sent, and an answer awaited."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the first process, and it this one
    threading.Thread(target=exit_with_parent, daemon=True).start()
    import torch

    from grader.cli.dependencies import Dependencies
    from grader.cli.options import choose_device, choose_sandbox
    from grader.judge.gpu.lock import gpu_lock
    from grader.judge.set_host import close_hosts
    from grader.judge.set_report import report_problem

    deps = Dependencies()
    device = choose_device(deps, "auto")
    sandbox, _ = choose_sandbox(deps, sandbox_name)
    if device == "cpu":
        torch.set_num_threads(threads)

    def reserve(nbytes: int) -> None:
        total = torch.cuda.get_device_properties().total_memory if device == "cuda" else math.inf
        connection.send(min(1.0, nbytes / total))
        connection.recv()

    def found(name: str) -> Found:
        try:
            source = read_problem(*split_prefix(name) or ("", Path()))
            with gpu_lock(device) if alone else nullcontext():
                return asdict(report_problem(source, sandbox, device, reserve=reserve))
        except ProblemError as error:
            return cannot(str(error).removeprefix(f"{name.partition(':')[2]}: "))
        except Exception as error:  # noqa: BLE001 - one problem must not end the report
            traceback.print_exc()
            return cannot(f"the judge failed: {type(error).__name__}: {error}"[:300])
        finally:
            close_hosts()
            if device == "cuda":
                torch.cuda.empty_cache()

    while True:
        try:
            connection.send(found(connection.recv()))
        except EOFError:
            return


def cannot(reason: str) -> Found:
    """The result of a problem that cannot be judged."""
    return {"state": "cannot", "reasons": [reason]}


def lacks_resources(found: Found) -> bool:
    """Whether a problem failed, or lost cases, for what others may have used."""
    return any(word in reason.lower() for reason in found["reasons"] for word in SCARCE)


def names_below(roots: tuple[str, ...], only: str) -> Iterator[str]:
    """Every problem below the roots whose path has the text `only`, as typed."""
    for root in roots:
        of_set = split_prefix(root)
        if of_set is None:
            raise click.UsageError(f"{root}: name a set and a folder, such as kernelbot:ROOT")
        prefix, folder = of_set
        for path in list_problems(prefix, folder):
            if only in str(path):
                yield f"{prefix}:{path}"


def line(found: Found) -> str:
    """A problem in a line."""
    prefix, _, path = found["problem"].partition(":")
    name = problem_name(prefix, *Path(path).parts[-2:])
    alone = f" · alone, after in company: {found['in_company']}" if "in_company" in found else ""
    again = " · will be proved again, alone" if found.get("again") else ""
    took_s = f" · {found['took_s']} s" if "took_s" in found else ""
    return f"{found['state']} · {name} · {'; '.join(found['reasons'])}{again}{alone}{took_s}"


def summary(results: list[Found]) -> str:
    """Counts and reasons by set, as Markdown."""
    lines = ["| set | problems | runs | with limits | cannot |", "|---|---|---|---|---|"]
    reasons = []
    for prefix in SETS:
        mine = [one for one in results if one["problem"].startswith(f"{prefix}:")]
        if not mine:
            continue
        counts = Counter(one["state"] for one in mine)
        cells = " | ".join(str(counts[state]) for state in STATES)
        lines.append(f"| {SETS[prefix].TITLE} | {len(mine)} | {cells} |")
        reasons += [
            f"- {line(one)}" for one in mine if one["state"] == "cannot" or "in_company" in one
        ]
    return "\n".join([*lines, "", *reasons])


class Results:
    """The file of results: the last line of a problem counts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.by_name: dict[str, Found] = {}
        if path.exists():
            for text in path.read_text().splitlines():
                found = json.loads(text)
                self.by_name[found["problem"]] = found

    def add(self, found: Found) -> None:
        """Append a result, and print it."""
        self.by_name[found["problem"]] = found
        with self._path.open("a") as file:
            file.write(json.dumps(found) + "\n")
        print(line(found), file=sys.stderr, flush=True)

    def is_final(self, name: str) -> bool:
        """Whether a problem need not be run."""
        return name in self.by_name and not self.by_name[name].get("again")

    def left_alone(self, names: list[str]) -> list[str]:
        """The problems that failed in company, and are to be proved again."""
        return [name for name in names if self.by_name.get(name, {}).get("again")]


def examine_all(
    names: list[str], workers: list[Worker], limit_s: float, end_s: float
) -> Iterator[Found]:
    """Examine problems by these workers until the time `end_s`, and end them."""
    idle: SimpleQueue[Worker] = SimpleQueue()
    for worker in workers:
        idle.put(worker)
    budget = Budget()

    def examine(name: str) -> Found | None:
        if time.monotonic() >= end_s:
            return None
        worker = idle.get()
        try:
            return worker.examine(name, limit_s, budget)
        finally:
            idle.put(worker)

    try:
        with ThreadPoolExecutor(len(workers)) as threads:
            for future in as_completed([threads.submit(examine, name) for name in names]):
                if (found := future.result()) is not None:
                    yield found
    finally:
        for worker in workers:
            worker.stop()


@click.command()
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("roots", nargs=-1, required=True)
@click.option("--processes", default=1, show_default=True, help="Problems at a time.")
@click.option("--limit-s", default=120.0, show_default=True, help="Time of one problem.")
@click.option("--for-s", default=math.inf, help="Seconds after which no problem is begun.")
@click.option("--sandbox", default="auto", show_default=True, help="As of `grade verify`.")
@click.option("--only", default="", help="Only problems with this in their path.")
@click.option("--share", default="1/1", show_default=True, help="Which part of the problems.")
def main(
    out: Path,
    roots: tuple[str, ...],
    processes: int,
    limit_s: float,
    for_s: float,
    sandbox: str,
    only: str,
    share: str,
) -> None:
    """Examine the problems below ROOTS, such as kernelbot:FOLDER, and append to OUT."""
    end_s = time.monotonic() + for_s
    results = Results(out)
    try:
        names = shared(list(names_below(roots, only)), share)
    except ProblemError as error:
        raise click.UsageError(str(error)) from None
    threads = max(1, len(os.sched_getaffinity(0)) // processes)
    left = [name for name in names if name not in results.by_name]
    in_company = processes > 1 and len(left) > 1
    company = [Worker(sandbox, threads) for _ in range(processes)]
    for found in examine_all(left, company, limit_s, end_s):
        again = {"again": True} if in_company and lacks_resources(found) else {}
        results.add(found | again)
    alone = [Worker(sandbox, threads, alone=True)]
    for found in examine_all(results.left_alone(names), alone, limit_s, end_s):
        before = results.by_name[found["problem"]]
        results.add(found | {"in_company": "; ".join(before["reasons"])})
    print(summary([results.by_name[name] for name in names if results.is_final(name)]))
    if missing := sum(not results.is_final(name) for name in names):
        print(f"\n{missing} problems are left: run the same command again")
        sys.exit(1)


if __name__ == "__main__":
    main()
