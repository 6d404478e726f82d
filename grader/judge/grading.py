"""One grading in progress: greet the runner, load the submission, run its tests."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from grader.judge.case_shapes import CaseShapes, case_shapes, entry_of
from grader.judge.compile import CompiledLibrary, nvcc_target
from grader.judge.correctness.batch_check import compile_check_kernels
from grader.judge.correctness.check import (
    CheckResult,
    ExpectedOutputs,
    check_outputs,
    combine_results,
)
from grader.judge.correctness.error_bound import error_bounds
from grader.judge.correctness.likely_cause import likely_mistake
from grader.judge.gpu.device_memory import (
    DeviceMemory,
    most_reused_bytes,
    reserve_check_memory,
)
from grader.judge.gpu.environment import describe, describe_language, measure_ceilings
from grader.judge.integrity.auditor import AuditTally
from grader.judge.kept_kernels import KeptKernels
from grader.judge.memory.argument_sets import ArgumentSets, layout_of
from grader.judge.memory.shared_block import POLICY as BLOCK_POLICY
from grader.judge.memory.shared_block import ReusedArena
from grader.judge.problem_code import ProblemCode, Values, seed_for
from grader.judge.record import Device, Effort, Record
from grader.judge.session import Session, blame_sandbox
from grader.judge.set_code import SetCode
from grader.judge.set_host import open_host
from grader.judge.timing.baseline_store import processor_name
from grader.judge.timing.baselines import time_baselines
from grader.judge.timing.calibration import calibrate, calibrate_publishing
from grader.judge.timing.plan import calls_per_round
from grader.judge.timing.round import lend
from grader.judge.verdict import Fault, SubmissionFault, decide, reason_of
from grader.problem import Problem, prototypes
from grader.problem.domain import shown
from grader.problem.spec import Case
from grader.report import CaseResult, Rule, Verdict
from grader.sandbox.base import Sandbox
from grader.submission import Language, Submission
from grader.wire import Flag, sealed_memfd

GRACE_S = 0.3
"""Outputs that are wrong at "done" are looked at again after this long, to tell late work from
wrong work. Without it, six of eight files with deferred work were called wrong answers or runtime
errors (benchmarks/results/2026-11-25-clock-ablation.md). So is lent memory that was tampered with,
to see whether the writes go on."""
GRACE_FAULTS = 3
"""Faults of a grading after which it looks no more; a submission that is late once is always
late."""
PRECOMPILE_BYTES = 16 << 30
"""Most device memory of the processes that compile beside the tests, each with a context of half a
gigabyte and the arguments of a case."""
LEND_S = 60.0
"""How long a runner may take to map lent memory."""
CALIBRATED_S = 600.0
"""How long the times of baselines and of publishing are valid."""


@dataclass(frozen=True)
class Calibrated:
    """What is measured of a case before any submission is loaded."""

    at_s: float
    """By `time.monotonic`."""
    publish_us_per_set: float
    """Publishing a round's inputs, microseconds per set; infinite where unknown."""
    baselines_us: dict[str, float]
    """Microseconds per call, by baseline."""
    block_bytes: int
    """Of the block of a round; 0 where unknown."""


_CALIBRATED: dict[tuple[object, ...], Calibrated] = {}


def _code_of(
    problem: Problem, device: Device, session: Session, sandbox: Sandbox | None
) -> ProblemCode:
    if problem.imported is None:
        return ProblemCode(problem, device, session.stopped)
    assert sandbox is not None
    with session.stopped():
        host = open_host(problem.imported.source, sandbox, device)
    return SetCode(problem, device, host, session.stopped)


def load_request(problem: Problem, submission: Submission) -> dict[str, Any]:
    """What a runner needs to know to load a submission: how its entry is called, with what, and how
    long each of the `given_files` is that are lent to it as one."""
    spec = problem.spec
    request: dict[str, Any] = {
        "language": submission.language,
        "source_bytes": len(submission.source),
        "entry": spec.entry,
        "names": [a.name for a in spec.args],
        "roles": [a.role for a in spec.args],
    }
    if spec.nested:
        request["parameters"] = spec.parameters
    if optional := [a.name for a in spec.args if a.optional]:
        request["optional"] = optional
    if problem.imported is not None:
        request |= problem.imported.convention()
    if weights := [a.name for a in spec.args if a.weight]:
        request["weights"] = weights
    if files := given_files(problem):
        request["files"] = {name: len(content) for name, content in files.items()}
    return request


def given_files(problem: Problem) -> Mapping[str, bytes]:
    """The files of another set that lie beside a submission, by path."""
    return problem.imported.given_files if problem.imported is not None else {}


class Grading:
    """What one grading holds: the problem's code, the session, and what was found so far."""

    def __init__(
        self,
        problem: Problem,
        session: Session,
        device: Device,
        master: int,
        record: Record,
        effort: Effort = "full",
        sandbox: Sandbox | None = None,
        tests: bool = True,
        benchmarks: bool = True,
        kernels: KeptKernels | None = None,
    ) -> None:
        """`sandbox` runs the code of a problem of another set. Without `tests`, they have passed
        before; without `benchmarks`, none will follow."""
        self.problem = problem
        self.session = session
        self.device = device
        self.master = master
        self.record = record
        self.effort = effort
        self.code = _code_of(problem, device, session, sandbox)
        self.drawn = problem.draw_cases(device, seed_for(master, "drawn"))
        """Tests of shapes that no submission knows beforehand."""
        self.tests = problem.cases("test", device) + self.drawn if tests else []
        """The tests to run: those that the spec lists, then the drawn ones."""
        self._kernels = kernels
        # Those of the benchmarks are compiled for the grading that times the submission, too.
        self._has_benchmarks = benchmarks or kernels is not None
        self.round_cost_us = 0.0
        """What a round of this runner costs the judge's clock besides its calls."""
        self.publish_us_per_set: dict[str, float] = {}
        """Publishing a round's inputs, microseconds per set, by benchmark case."""
        self.baselines_us: dict[str, dict[str, float]] = {}
        """Microseconds per call, by benchmark case and baseline."""
        self._block_bytes: list[int] = []  # of each benchmark, as far as known
        self.audit_tally = AuditTally()
        self.returns = False
        """Whether the submission says that it returns its outputs, which are then copied."""
        self._memory = DeviceMemory(device)
        self._language: Language = "python"
        self._lent: Any = None  # the arena that the runner has
        self._shapes: CaseShapes | None = None  # those that the runner has
        # While kernels are compiled beside the tests, not only the runner holds device memory.
        self._is_precompiling = False

    @property
    def ranks(self) -> bool:
        """Whether times may rank, and so are held against the judge's clock."""
        return self.device == "cuda" and self.effort == "full"

    def meet(self, greeting: int) -> None:
        """Receive the runner's greeting. Nothing of the submission runs yet, so a failure of the
        runner is a `SandboxError`."""
        for case in self.problem.cases("test", self.device)[:1]:
            self.code.check_deterministic(case)
        if self.device == "cuda":
            measure_ceilings()
            compile_check_kernels(self.code)
        self.record.environment |= describe(self.device)
        if self.device == "cpu":
            self.record.environment["processor"] = processor_name()
        with blame_sandbox(self.session):
            reply = self.session.receive(greeting, 120, "starting up")
        self.record.environment["runner"] = reply.text
        self._memory.note_idle()

    def prepare(self) -> None:
        """Calibrate the judge's clock with this runner, and time the baselines; both on a GPU only.

        A CPU's baselines would run in the judge's process, with its threads and on its memory:
        beside the times of a runner, PyTorch was faster than the same PyTorch, submitted.

        Nothing of the submission runs yet, its compiler included, that could disturb this. The
        times of a case are used by the next gradings of this process too."""
        if self.device == "cpu":
            return
        self.session.busy_wait = True  # the processor has nothing better to do
        if self.ranks:
            # Before the baselines: until another process has worked on the GPU, their kernels may
            # start later one after the other than in rounds (benchmarks/results/timers.md).
            with blame_sandbox(self.session):
                self.round_cost_us = calibrate(self.session)
            self.record.environment["round_cost_us"] = round(self.round_cost_us, 1)
        for case in self.problem.cases("benchmark", self.device):
            calibrated = self._calibrated(case)
            self.baselines_us[case.name] = calibrated.baselines_us
            self.publish_us_per_set[case.name] = calibrated.publish_us_per_set
            self._block_bytes.append(calibrated.block_bytes)

    def _calibrated(self, case: Case) -> Calibrated:
        key = (self.problem.digest, case.name, self.device, self.effort)
        found = _CALIBRATED.get(key)
        if found is None or time.monotonic() - found.at_s > CALIBRATED_S:
            times_us = time_baselines(self.code, case)
            per_set_us, nbytes = float("inf"), 0
            if self.ranks:
                template = self.code.inputs(case, seed_for(0, case.name))
                per_set_us, nbytes = calibrate_publishing(self.problem, case, template)
            found = _CALIBRATED[key] = Calibrated(time.monotonic(), per_set_us, times_us, nbytes)
        return found

    def load(self, submission: Submission, library: CompiledLibrary | None = None) -> None:
        """Have the runner import the source, or bind the compiled library. Raises `SubmissionFault`
        when that fails."""
        spec = self.problem.spec
        self._language = submission.language
        self.record.environment |= describe_language(submission)
        request = load_request(self.problem, submission)
        if submission.language == "cuda":
            request |= {
                "prototypes": prototypes(spec),
                "set_prototype": self.problem.set_prototype,
                "arguments": [
                    {"kind": a.kind, "dtype": a.dtype, "strided": a.is_strided} for a in spec.args
                ],
                "nvcc_target": nvcc_target(self.device),
            }
        with contextlib.ExitStack() as stack:
            lent: list[int] = []

            def lend(name: str, content: bytes) -> None:
                lent.append(sealed_memfd(name, content))
                stack.callback(os.close, lent[-1])

            lend("source", submission.source)
            if library is not None:
                self.record.environment |= library.compiler
                request["library_bytes"] = len(library.content)
                lend("library", library.content)
            needs_triton = self.device == "cuda" and submission.uses_triton
            kernels = self._kernels.read() if needs_triton and self._kernels is not None else None
            if kernels is not None:
                request["kernels_bytes"] = len(kernels)
                lend("kernels", kernels)
            if needs_triton and (kernels is None or self.tests):
                text = self._shapes_to_precompile()
                request["cases_bytes"] = len(text)
                lend("cases", text)
            if files := given_files(self.problem):
                lend("files", b"".join(files.values()))
            self.session.loading = True
            what = "loading the submission"
            reply = self.session.ask("load", request, spec.limits.load_s, what, fds=tuple(lent))
        self.session.loading = False
        self.returns = bool(reply.flags & Flag.RETURNS)
        if self.returns:
            self.record.notes.append(
                "the function returns its outputs; copying them counts into its time"
            )

    def _shapes_to_precompile(self) -> bytes:
        """The shapes of all cases, JSON, for which the runner is about to compile Triton kernels
        beside the tests."""
        self._shapes = case_shapes(
            self.problem,
            self.code,
            self.device,
            self.drawn,
            with_tests=bool(self.tests),
            with_benchmarks=self._has_benchmarks,
        )
        reserve_check_memory()
        self._is_precompiling = True
        return json.dumps(self._shapes.shapes).encode()

    def finish_precompiling(self) -> None:
        """End the processes that compile beside the tests, if there are any."""
        if self._is_precompiling:
            limit_s = self.problem.spec.limits.load_s
            what = "compiling its kernels"
            self.session.ask("finish_precompiling", {"limit_s": limit_s / 2}, limit_s, what)
            self._is_precompiling = False

    def keep_kernels(self) -> None:
        """Have the runner hand over what Triton compiled, for the grading that times it."""
        if self._kernels is not None and self._is_precompiling:
            self.finish_precompiling()
            self._kernels.receive(self.session)

    def reused_arena(self) -> ReusedArena:
        """An arena for all tests, with room for the largest while kernels are compiled beside them,
        since mapping more is slow until then."""
        return ReusedArena(self.device, self._shapes.test_bytes if self._shapes else 0)

    def benchmark_arena(self) -> ReusedArena:
        """An arena for all benchmarks but those with very large blocks. Mapping and unmapping one
        for each case takes both processes tenths of a second while others start or end."""
        most_bytes = most_reused_bytes(self.device)
        fitting = (nbytes for nbytes in self._block_bytes if nbytes <= most_bytes)
        return ReusedArena(self.device, max(fitting, default=0))

    def test(self, reused: ReusedArena, case: Case) -> CaseResult:
        """Run one test case: each of its calls on fresh inputs, every output through every bound.

        Faults are noted, and the next test may run. Raises `SubmissionFault` where work that still
        goes on would disturb it."""
        sets, weights = self._test_sets(reused, case)
        first: Values = {}  # the inputs of the first call
        carried: Values = {}  # the state as the submission left it,
        truth: Values = {}  # as float64 has it,
        eager: Values = {}  # and as PyTorch has it
        results = []
        faults: list[Fault] = []
        try:
            self.lend(sets)
            for call in range(case.calls):
                inputs = self._test_inputs(case, call) | carried | weights
                sets.fill(0, inputs)
                if case.calls == 1 and not self.code.is_local:
                    # They may be large, and nothing here could write the shadow.
                    inputs = sets.inputs(0)
                first = first or inputs
                with self.session.calling(is_first=call == 0):
                    self._call(sets, inputs)
                exact = inputs | self._state(truth)
                truth = self.code.run_reference(case, exact)
                bounds = error_bounds(self.code, case, exact, truth, call + 1)
                if self.code.has_budget:
                    eager = self.code.run_eager(case, inputs | self._state(eager))
                expected = ExpectedOutputs(truth, first, eager, bounds)
                recheck = partial(self._check_first_set, sets, expected)
                results.append(recheck())
                faults = self.faults_of(f"case {self._shown(case)}", sets, results[-1], recheck)
                if faults:
                    break
                carried = self._state(sets.outputs(0))
            if (fault := decide(faults)) and fault.rule and self._goes_on(sets, fault.rule):
                raise SubmissionFault(*faults)
            self.record.faults += faults
            self.expect_device_memory()
        finally:
            sets.close()
        return _test_result(case, combine_results(results), faults)

    def _test_sets(self, reused: ReusedArena, case: Case) -> tuple[ArgumentSets, Values]:
        """The only argument set of a test, and its weights. Until the first call it has those with
        inputs that no call gets, or else the first call's inputs."""
        values = self._test_inputs(case, 0)
        weights = self.code.weights(values)
        if weights:
            values.clear()  # before as many are made
            values = self._template(case) | weights
        sets = ArgumentSets(self.problem, case, values, 1, self.device, reused=reused)
        return sets, weights if self.code.is_local else self.code.weights(sets.inputs(0))

    def _template(self, case: Case) -> Values:
        """Inputs that no call gets."""
        return self.code.inputs(case, seed_for(self.master, "template", case.name))

    def _test_inputs(self, case: Case, call: int) -> Values:
        return self.code.inputs(case, seed_for(self.master, "test", case.name, call), call)

    def _call(self, sets: ArgumentSets, inputs: Values) -> None:
        """Call the entry once on the only set, and take the snapshot."""
        sets.prepare([0])
        sets.publish([0])
        scalars = {
            str(i): inputs[a.name]
            for i, a in enumerate(self.problem.spec.args)
            if a.kind == "scalar"
        }
        limit_s = self.problem.spec.limits.call_s
        what = f"the call on test {self._shown(sets.case)}"
        request = {"set": 0, "scalars": scalars, "frees_cache": not self.code.is_local}
        self.session.ask("call", request, limit_s, what)
        sets.probe()
        sets.take_snapshot()

    def _check_first_set(self, sets: ArgumentSets, expected: ExpectedOutputs) -> CheckResult:
        return check_outputs(self.code, sets.case, sets.outputs(0), expected)

    def _state(self, values: Values) -> Values:
        """The `inout` arguments among `values`."""
        names = [a.name for a in self.problem.spec.args if a.role == "inout"]
        return {name: values[name] for name in names if name in values}

    def new_sets(
        self, case: Case, sharing: int, gate: bool, reused: ReusedArena | None = None
    ) -> ArgumentSets:
        """The argument sets of a benchmark, each with weights of its own and without the inputs of
        any round. `sharing` and `gate` as for `calls_per_round`. They lie in the `reused` arena
        unless they are so large that it is better closed."""
        template = self._template(case)
        count = calls_per_round(
            self.problem, case, template, self.device, self.effort, sharing, gate
        )
        weights = [
            self.code.weights(
                self.code.inputs(case, seed_for(self.master, "weights", case.name, i))
            )
            for i in range(count if self.code.has_weights else 0)
        ]
        nbytes = count * layout_of(self.problem, case, template).nbytes
        if reused is not None and nbytes > most_reused_bytes(self.device):
            reused.close()
            reused = None
        kept = BLOCK_POLICY.kept_probes
        return ArgumentSets(self.problem, case, template, count, self.device, kept, reused, weights)

    def lend(self, sets: ArgumentSets) -> None:
        """Hand the sets' arena to the runner, unless it has it. The runner gives a submission's
        setup the weights, which must be there."""
        index = self._shapes.index.get(sets.case.name) if self._shapes else None
        case = entry_of(self.problem, sets.case) | {"shape": index}
        again = sets.arena is self._lent
        if self.code.has_weights:
            limit_s = LEND_S + self.problem.spec.limits.call_s * sets.count
            with self.session.calling(is_first=True):
                lend(self.session, sets, case, limit_s, again)
        else:
            lend(self.session, sets, case, LEND_S, again)
        self._lent = sets.arena

    def faults_of(
        self,
        where: str,
        sets: ArgumentSets,
        result: CheckResult,
        recheck: Callable[[], CheckResult],
    ) -> list[Fault]:
        """Every fault that the last call or round shows: wrong outputs, outputs written after it
        was done, other lent memory written. `where` begins their reasons.

        `result` is the check of the snapshot. `recheck` checks it once more, after it was taken
        again: outputs that are right by then are late, not wrong.
        """
        is_wrong, is_late = result.failure is not None, sets.changed_since_probe()
        if is_wrong and self._may_look():
            time.sleep(GRACE_S)
            if sets.snapshot_changed():
                is_late = True
                is_wrong = recheck().failure is not None
        faults = []
        tampered = sets.tampered()
        if is_wrong:
            reason = f"{where}: {self._explained(result, sets, tampered)}"
            faults.append(Fault(Verdict.WRONG_ANSWER, reason))
        if is_late:
            reason = f"{where}: outputs were written after the call was done"
            faults.append(Fault(Verdict.REJECTED, reason, Rule.WORK_OUTSIDE_CALL))
        if tampered is not None:
            reason = f"{where}: {tampered}"
            faults.append(Fault(Verdict.REJECTED, reason, Rule.MEMORY_TAMPERED))
        return faults

    def _explained(self, result: CheckResult, sets: ArgumentSets, tampered: str | None) -> str:
        """What is wrong with outputs, after what a beginner's mistake would explain it with."""
        untouched = sets.untouched(0) if sets.count == 1 else []
        spec = self.problem.spec
        mistake = likely_mistake(untouched, spec, self._language, tampered is not None)
        never_written = result.mismatch is not None and result.mismatch.argument in untouched
        failure = None if mistake and never_written else result.failure
        return "; ".join(filter(None, (tampered, mistake, failure)))

    def _shown(self, case: Case) -> str:
        """The name of a case, and of a drawn one its parameters."""
        return shown(case) if case in self.drawn else f"'{case.name}'"

    def _goes_on(self, sets: ArgumentSets, rule: Rule) -> bool:
        """Whether work of a call that broke `rule` goes on, and would disturb the next case."""
        if rule is not Rule.MEMORY_TAMPERED:
            return True
        if not self._may_look():
            return False
        sets.prepare([0])
        sets.publish([0])
        time.sleep(GRACE_S)
        sets.take_snapshot()
        return sets.tampered() is not None

    def _may_look(self) -> bool:
        """Whether to look again after `GRACE_S`."""
        return len(self.record.faults) < GRACE_FAULTS

    def expect_device_memory(self) -> None:
        """Raise `SubmissionFault` if the submission holds more device memory than it may."""
        if not self._is_precompiling and (fault := self.memory_fault()) is not None:
            raise SubmissionFault(fault)

    def memory_fault(self, spare_bytes: int = 0) -> Fault | None:
        """The fault of holding more device memory than the limit and `spare_bytes`, or None."""
        limit = self.problem.spec.limits.device_memory_bytes
        lent_bytes = self._lent.nbytes if self._lent is not None else 0
        held = self._memory.held_bytes(lent_bytes) - spare_bytes
        if held <= limit:
            return None
        reason = (
            f"the submission holds {held >> 20} MiB of device memory; {limit >> 20} are allowed"
        )
        return Fault(Verdict.MEMORY_LIMIT_EXCEEDED, reason)

    def out_of_memory_fault(self) -> Fault | None:
        """The same when device memory has run out. Precompilation is ended first; before that, a
        submission that would free its memory then is looked at."""
        if self._is_precompiling:
            if (fault := self.memory_fault(PRECOMPILE_BYTES)) is not None:
                return fault
            try:
                self.finish_precompiling()
            except SubmissionFault as stop:
                return stop.fault
        return self.memory_fault()


def _test_result(case: Case, result: CheckResult, faults: list[Fault]) -> CaseResult:
    fault = decide(faults)
    status: Any = "passed" if fault is None else fault.verdict.value
    reason = reason_of(faults).removeprefix(f"case '{case.name}': ") if faults else None
    return CaseResult(
        name=case.name,
        kind="test",
        params=case.params,
        status=status,
        reason=reason,
        max_abs_err=result.max_abs_err,
        rel_l2=result.rel_l2,
        worst_slice_rel_l2=result.worst_slice_rel_l2,
        error_budget_used=result.budget_used,
        mismatch=result.mismatch,
    )
