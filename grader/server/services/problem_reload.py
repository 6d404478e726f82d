"""Problems that are added or changed while a server runs: shown, verified, and then taken.

An organiser changes folders in the server's folder of problems, and asks for a reload. Each new or
changed version is checked by ``grade verify`` in a process of its own, on exactly the files that
were loaded. Those whose check holds are taken, all at once; the others stay as they were.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import Engine, func, select

from grader.board import BoardError
from grader.board.store import not_void
from grader.board.versions import read_versions, version_of
from grader.db.engine import connect, transaction
from grader.db.tables import jobs, submissions
from grader.fleet import Ledger, State
from grader.fleet.set_problems import SetProblems
from grader.problem import JudgedVersion, Problem, ProblemError
from grader.problem.imported import SetSource
from grader.report import escape, one_line
from grader.server.services import Conflict, Invalid
from grader.server.services.audit import record_action
from grader.server.services.problem_versions import record_served
from grader.server.services.served_problems import ServedProblems

log = logging.getLogger(__name__)

OUTPUT_CHARS = 20_000
"""How much of what a check prints is kept, from its end."""

GRACE_S = 5.0
"""Time between the signals that end a check: SIGTERM and SIGKILL."""

ChangeKind = Literal["new", "version", "returning", "texts", "missing", "broken"]
"""A problem that the server lacks; one whose change opens a new ranking; one whose earlier ranking
returns; one of which only texts differ; one that the folder lacks, which stays; one that cannot be
loaded."""

CheckState = Literal["waiting", "running", "taken", "refused"]


@dataclass(frozen=True)
class FolderChange:
    """A problem whose folder differs from what the server has."""

    problem: str
    kind: ChangeKind
    digest: str | None = None
    """Of the folder's version; None for one that is missing or broken."""
    version: int | None = None
    """The number of its ranking."""
    changes: Sequence[str] = ()
    """What differs from the served version, or why the folder cannot be loaded."""
    waiting: int = 0
    """Unfinished submissions of the served version: those that wait are held by a reload."""


@dataclass(frozen=True)
class FoundProblem:
    """A problem as its files are now."""

    name: str
    judged: JudgedVersion
    files: Mapping[str, bytes] | None
    """None for one of another set, whose digest covers its files."""
    load: Callable[[], Problem]
    """May take minutes, and raises `ProblemError`."""

    @property
    def digest(self) -> str:
        return self.judged.digest

    def differs_from(self, served: Problem | None) -> bool:
        """Whether the server has it otherwise, or not at all."""
        if served is None or served.digest != self.digest:
            return True
        return self.files is not None and served.files != self.files


@dataclass(frozen=True)
class CheckedProblem:
    """How far the check of a new version is."""

    problem: str
    digest: str
    state: CheckState = "waiting"
    findings: Sequence[str] = ()
    """Why it was refused, line by line."""
    output: str = ""
    """What its check printed to stderr."""
    seconds: float | None = None


@dataclass(frozen=True)
class ReloadRun:
    """A reload, while it runs and after it."""

    by: str
    started_at: datetime
    ended_at: datetime | None = None
    problems: Sequence[CheckedProblem] = ()
    notes: Sequence[str] = field(default=())
    """What it did to rankings; or why it failed."""

    @property
    def ok(self) -> bool:
        """Whether it has ended and all problems were taken."""
        return self.ended_at is not None and all(one.state == "taken" for one in self.problems)


@dataclass(frozen=True)
class VerifyOutcome:
    """What the check of a problem found."""

    findings: Sequence[str]
    """Empty if it holds."""
    output: str
    seconds: float | None = None


Verify = Callable[[Path, float, threading.Event], VerifyOutcome]
"""Check the problem in a folder within a number of seconds, or until the event is set."""


class ProblemReload:
    """Reloads of one server. Thread-safe; one runs at a time."""

    def __init__(
        self,
        engine: Engine,
        ledger: Ledger,
        served: ServedProblems,
        folder: Path | None,
        limit_s: float,
        now: Callable[[], datetime],
        sets: SetProblems | None = None,
    ) -> None:
        self._engine = engine
        self._ledger = ledger
        self._served = served
        self._limit_s = limit_s
        self._now = now
        self._sets = sets
        self._lock = threading.Lock()
        self._run: ReloadRun | None = None
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._on_taken: Callable[[Mapping[str, Problem]], None] = lambda _: None
        self.folder = folder
        """Where the problems are; None if this server cannot reload them."""
        self.verify: Verify = verify_in_child

    def watch(self, on_taken: Callable[[Mapping[str, Problem]], None]) -> None:
        """Set the function that gets all problems after each reload that took one."""
        self._on_taken = on_taken

    @property
    def last(self) -> ReloadRun | None:
        """The reload that runs, or else the last one since the start of the server."""
        return self._run

    def preview(self) -> list[FolderChange]:
        """What differs between the folder and the server, by problem. Raises `Conflict` without a
        folder, and `BoardError`."""
        loaded, broken = self._load()
        changes = [
            FolderChange(name, "broken", changes=[reason], waiting=self._waiting(name))
            for name, reason in broken.items()
        ]
        for name in self._served:
            if name not in loaded and name not in broken:
                changes.append(FolderChange(name, "missing"))
        for name, found in loaded.items():
            if found.differs_from(served := self._served.get(name)):
                changes.append(self._change(found, served))
        return sorted(changes, key=lambda one: one.problem)

    def start(self, by: str, names: Collection[str] | None = None) -> ReloadRun:
        """Begin to verify and take what has changed, or only these problems.

        Raises `Conflict` while another reload runs, and if there is nothing to take; `Invalid` for
        a name of no problem in the folder.
        """
        loaded, broken = self._load()
        if names is not None:
            for name in names:
                if name in broken:
                    raise Conflict(f"{name} cannot be loaded: {broken[name]}")
                if name not in loaded:
                    raise Invalid(f"{self.folder} has no problem {one_line(name, 80)}")
            loaded = {name: loaded[name] for name in names}
        changed = {
            name: found
            for name, found in loaded.items()
            if found.differs_from(self._served.get(name))
        }
        with self._lock:
            if self._run is not None and self._run.ended_at is None:
                raise Conflict("a reload runs already; wait for its end")
            if not changed:
                broke = f"; these cannot be loaded: {', '.join(broken)}" if broken else ""
                raise Conflict(f"no problem has changed{broke}")
            if self._stopping.is_set():
                raise Conflict("the server is stopping")
            checks = [CheckedProblem(name, one.digest) for name, one in changed.items()]
            self._run = ReloadRun(by, self._now(), problems=checks)
            self._thread = threading.Thread(
                target=self._reload, args=(changed,), name="grade-reload", daemon=True
            )
            self._thread.start()
            return self._run

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for the end of the reload that runs, if one does."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def stop(self) -> None:
        """End a running reload, which then takes nothing."""
        self._stopping.set()
        self.join(2 * GRACE_S)

    def _load(self) -> tuple[dict[str, FoundProblem], dict[str, str]]:
        """The problems in the folder and of other sets, and why others cannot be loaded."""
        if self.folder is None:
            raise Conflict("this server was started without a folder of problems")
        loaded: dict[str, FoundProblem] = {}
        broken: dict[str, str] = {}
        if self._sets is not None:
            sources, unread = self._sets.read()
            # Below a folder of many, what cannot be judged stays so; only a name that was given
            # should be a problem.
            named = {f"{prefix}:{path}" for prefix, path in self._sets.named}
            broken = {name: one_line(why, 500) for name, why in unread.items() if name in named}
            loaded = {name: _in_set(source, self._sets) for name, source in sources.items()}
        for folder in problem_folders(self.folder):
            try:
                loaded[folder.name] = _in_folder(Problem.load(folder))
            except ProblemError as error:
                broken[folder.name] = one_line(str(error), 500)
        return loaded, broken

    def _change(self, problem: FoundProblem, served: Problem | None) -> FolderChange:
        with connect(self._engine) as connection:
            versions = read_versions(connection, problem.name, problem.digest, not_void())
        version = version_of(versions, problem.digest)
        change = FolderChange(problem.name, "new", problem.digest, version.number)
        if served is None:
            return change
        if served.digest == problem.digest:
            return replace(change, kind="texts")
        return replace(
            change,
            kind="returning" if version.results else "version",
            changes=problem.judged.changes_since(served.judged),
            waiting=self._waiting(problem.name),
        )

    def _waiting(self, problem: str) -> int:
        query = (
            select(func.count())
            .select_from(jobs)
            .join(submissions, submissions.c.id == jobs.c.submission_id)
            .where(jobs.c.state == State.QUEUED, submissions.c.problem == problem)
        )
        with connect(self._engine) as connection:
            return int(connection.scalar(query) or 0)

    def _reload(self, changed: Mapping[str, FoundProblem]) -> None:
        notes: list[str] = []
        try:
            verified = {}
            for name, found in changed.items():
                problem = self._loaded(found)
                if problem is not None and self._may_be_served(problem):
                    verified[name] = problem
            if verified and not self._stopping.is_set():
                notes = self._serve(verified)
        except BoardError as error:
            notes = [f"nothing was taken: {one_line(str(error))}"]
        except Exception as error:  # the reload must not seem to run for ever
            log.exception("the reload of problems")
            notes = [f"nothing was taken: {type(error).__name__}: {one_line(str(error))}"]
        assert self._run is not None
        self._run = replace(self._run, ended_at=self._now(), notes=notes)

    def _loaded(self, found: FoundProblem) -> Problem | None:
        """The problem; None if it is refused, since it cannot be imported."""
        if self._stopping.is_set():
            self._note(found, state="refused", findings=["the server is stopping"])
            return None
        self._note(found, state="running")
        try:
            return found.load()
        except ProblemError as error:
            self._note(found, state="refused", findings=[one_line(str(error), 500)])
            return None

    def _may_be_served(self, problem: Problem) -> bool:
        """Whether a problem may be taken: its check holds, or only its texts have changed."""
        if self._stopping.is_set():
            self._note(problem, state="refused", findings=["the server is stopping"])
            return False
        served = self._served.get(problem.name)
        if served is not None and served.digest == problem.digest:
            return True
        self._note(problem, state="running")
        with tempfile.TemporaryDirectory(prefix="grade-reload-") as root:
            folder = Path(root) / problem.name
            folder.mkdir()
            for file, content in problem.files.items():
                (folder / file).write_bytes(content)
            found = self.verify(folder, self._limit_s, self._stopping)
        self._note(
            problem,
            state="refused" if found.findings else "waiting",
            findings=found.findings,
            output=found.output,
            seconds=found.seconds,
        )
        return not found.findings

    def _serve(self, verified: Mapping[str, Problem]) -> list[str]:
        """Serve these versions from now on. Returns what that did to rankings."""
        assert self._run is not None
        now, by = self._now(), self._run.by
        lines = [change.line() for change in record_served(self._engine, verified.values(), now)]
        with transaction(self._engine, "admin") as connection:
            for name, problem in verified.items():
                detail = f"version {problem.digest[:12]}"
                record_action(connection, now, by, "problem reload", name, detail)
        self._served.put(verified)
        self._on_taken(self._served)
        held_jobs = self._ledger.hold_outdated({name: one.digest for name, one in verified.items()})
        for problem in verified.values():
            self._note(problem, state="taken")
        if held_jobs:
            lines.append(f"{held_jobs} waiting submissions of old versions are held")
        for line in lines:
            log.info("%s", line)
        return lines

    def _note(self, problem: Problem | FoundProblem, **values: Any) -> None:
        assert self._run is not None
        problems = [
            replace(one, **values) if one.problem == problem.name else one
            for one in self._run.problems
        ]
        self._run = replace(self._run, problems=problems)


def _in_folder(problem: Problem) -> FoundProblem:
    return FoundProblem(problem.name, problem.judged, problem.files, lambda: problem)


def _in_set(source: SetSource, sets: SetProblems) -> FoundProblem:
    return FoundProblem(source.name, source.judged, None, lambda: sets.problem(source))


def problem_folders(root: Path) -> list[Path]:
    """The folders of problems in a folder, by name."""
    return sorted(spec.parent for spec in root.glob("*/problem.yaml"))


def verify_in_child(folder: Path, limit_s: float, stopping: threading.Event) -> VerifyOutcome:
    """Run ``grade verify`` without examples, and end it after `limit_s` seconds or when `stopping`
    is set. It has a low priority, and none of the server's settings and secrets. It uses the CPU;
    for a problem of another set, the device on which it was imported."""
    imported = Problem.load(folder).imported
    device = "cpu" if imported is None else imported.device
    polite = ["nice", "-n", "10"] if shutil.which("nice") else []
    command = [
        *(*polite, sys.executable, "-m", "grader.cli", "verify", str(folder)),
        *("--no-examples", "--device", device, "--json"),
    ]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("GRADE_")
    }
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=environment,
            start_new_session=True,
        )
        why = _await(process, limit_s, stopping)
        answer, output = _read_end(out), escape(_read_end(err), OUTPUT_CHARS)
    if why is not None:
        return VerifyOutcome([why], output)
    return _result(answer, output, process.returncode)


def _await(
    process: subprocess.Popen[bytes], limit_s: float, stopping: threading.Event
) -> str | None:
    """Wait for the end of a process. Returns why it was ended before; None if it was not."""
    left_s, step_s = limit_s, 0.2
    why = None
    while why is None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(min(step_s, max(left_s, 0)))
            break
        left_s -= step_s
        if stopping.is_set():
            why = "the server is stopping"
        elif left_s <= 0:
            why = f"its check took longer than {limit_s:g} s"
    if why is not None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    with suppress(ProcessLookupError):  # what the problem's code has started
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return why


def _read_end(file: Any) -> str:
    """The end of what a process wrote."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - (1 << 20)))
    return str(file.read().decode("utf-8", "replace"))


def _result(answer: str, output: str, status: int) -> VerifyOutcome:
    """What ``grade verify --json`` said, which must agree with its exit status."""
    try:
        found = json.loads(answer)
    except ValueError:
        found = {}
    if status == 0 and found.get("ok") is True and not found.get("findings"):
        return VerifyOutcome((), output, found.get("seconds"))
    reasons = [one_line(str(text), 500) for text in found.get("findings") or ()]
    error = found.get("error")
    if error:
        reasons.append(one_line(str(error), 500))
    return VerifyOutcome(
        reasons or [f"grade verify ended with exit status {status}"], output, found.get("seconds")
    )
