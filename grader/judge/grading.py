"""One grading in progress: meet the runner, load the submission, hold each test case against it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from grader.arena import pack
from grader.judge.compile import CompiledLibrary, nvcc_target
from grader.judge.correctness.batch_check import compile_check_kernels
from grader.judge.correctness.check import CheckResult, check, combine_results, tolerance_of
from grader.judge.gpu.environment import describe, measure_ceilings
from grader.judge.integrity.auditor import AuditLog
from grader.judge.memory.argument_sets import ArgumentSets, arguments_of, layout_of
from grader.judge.memory.shared_block import ReusedArena, reserve_check_memory
from grader.judge.problem_code import ProblemCode, Values, seed_for
from grader.judge.record import Device, Effort, Record
from grader.judge.session import Session, blame_sandbox
from grader.judge.timing.baselines import time_baselines
from grader.judge.timing.calibration import calibrate, publish_us_per_set
from grader.judge.timing.round import lend
from grader.judge.verdict import Fault, SubmissionFault
from grader.problem import Problem, prototypes
from grader.problem.prototype import dimensions
from grader.problem.spec import Case
from grader.report import CaseResult, Rule, Verdict
from grader.submission import Submission
from grader.wire import Flag, sealed_memfd

GRACE_S = 0.3
"""How long after a wrong "done" the outputs are looked at again, to tell late work from wrong."""
GRACE_CASES = 3
"""So many wrong cases get that second look; a submission that is late once is late always."""
PRECOMPILE_BYTES = 16 << 30
"""The most device memory of what compiles beside the tests: eight processes, if each makes a
context after all, of half a gigabyte, and has the arguments of a case."""
PREPARED_S = 600.0
"""How long the times of baselines and of publishing are good for."""


@dataclass(frozen=True)
class Prepared:
    """What is measured of a case before any submission is loaded."""

    at_s: float
    """On the clock of `time.monotonic`."""
    publish_us_per_set: float
    """Publishing a round's inputs, microseconds per set; infinite where unknown."""
    baselines_us: dict[str, float]


_PREPARED: dict[tuple[object, ...], Prepared] = {}


@dataclass(frozen=True)
class Shapes:
    """The shapes of a problem's cases, which are no secret: kernels are compiled for them side by
    side."""

    told: list[dict[str, Any]]
    """In the order to compile in, each once."""
    places: dict[str, int]
    """By name of a case, where its shape is in that."""
    test_bytes: int
    """What the largest test takes in a block."""


_SHAPES: dict[tuple[str, Device], Shapes] = {}
"""By digest of the problem, and device."""


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
    ) -> None:
        self.problem = problem
        self.session = session
        self.device = device
        self.master = master
        self.record = record
        self.effort = effort
        self.code = ProblemCode(problem, device)
        self.round_cost_us = 0.0
        """What a round of this runner costs the outside clock besides its calls."""
        self.publish_us_per_set: dict[str, float] = {}
        """Publishing a round's inputs, microseconds per set, by benchmark case."""
        self.baselines_us: dict[str, dict[str, float]] = {}
        """By benchmark case and baseline, microseconds per call."""
        self.audit_log = AuditLog()
        self._idle_device_bytes = 0
        self._lent: Any = None
        """The arena that the runner has."""
        self._shapes: Shapes | None = None
        """What the runner was told of."""
        self._is_precompiling = False
        """While kernels are compiled beside the tests, device memory is not only the runner's."""

    @property
    def ranks(self) -> bool:
        """Whether times are to be trusted, and so held against the outside clock."""
        return self.device == "cuda" and self.effort == "full"

    def meet(self, greeting: int) -> None:
        """Take the runner's greeting. It is ours alone yet: what fails here is a `SandboxError`."""
        for case in self.problem.cases("test", self.device)[:1]:
            self.code.check_deterministic(case)
        if self.device == "cuda":
            measure_ceilings()
            compile_check_kernels(self.code)
        self.record.environment |= describe(self.device)
        with blame_sandbox(self.session):
            reply = self.session.receive(greeting, 120, "starting up")
        self.record.environment["runner"] = reply.text
        self._idle_device_bytes = self._device_bytes()

    def prepare(self) -> None:
        """Time the problem's own PyTorch code, and gauge the outside clock with this runner.

        Nothing of the submission's runs yet that could slow the one or mislead the other, and its
        compiler no more. What was found of a case holds for the next gradings of this process too.
        """
        # On a GPU the processor has nothing better to do than to wait.
        self.session.busy_wait = self.device == "cuda"
        if self.ranks:
            # Before the baselines: until another process has worked on the GPU, their kernels may
            # begin later one after the other than they do in rounds (benchmarks/results).
            with blame_sandbox(self.session):
                self.round_cost_us = calibrate(self.session)
            self.record.environment["round_cost_us"] = round(self.round_cost_us, 1)
        for case in self.problem.cases("benchmark", self.device):
            known = self._prepared(case)
            self.baselines_us[case.name] = known.baselines_us
            self.publish_us_per_set[case.name] = known.publish_us_per_set

    def _prepared(self, case: Case) -> Prepared:
        key = (self.problem.digest, case.name, self.device, self.effort)
        known = _PREPARED.get(key)
        if known is None or time.monotonic() - known.at_s > PREPARED_S:
            times_us = time_baselines(self.code, case)
            per_set_us = float("inf")
            if self.ranks:
                template = self.code.inputs(case, seed_for(0, case.name))
                per_set_us = publish_us_per_set(self.problem, case, template)
            known = _PREPARED[key] = Prepared(time.monotonic(), per_set_us, times_us)
        return known

    def load(self, submission: Submission, library: CompiledLibrary | None = None) -> None:
        """Have the runner import the source, or bind the library that was compiled of it."""
        spec = self.problem.spec
        request: dict[str, Any] = {
            "language": submission.language,
            "source_bytes": len(submission.source),
            "entry": spec.entry,
            "roles": [a.role for a in spec.args],
        }
        if submission.language == "cuda":
            request |= {
                "prototypes": prototypes(spec),
                "arguments": [
                    {"kind": a.kind, "dtype": a.dtype, "strided": not a.contiguous}
                    for a in spec.args
                ],
                "nvcc_target": nvcc_target(self.device),
            }
        own = [sealed_memfd("source", submission.source)]
        if self.device == "cuda" and submission.uses_triton:
            self._shapes = self._known_shapes()
            text = json.dumps(self._shapes.told).encode()
            request["cases_bytes"] = len(text)
            own.append(sealed_memfd("cases", text))
            reserve_check_memory()
            self._is_precompiling = True
        fds = own
        if library is not None:
            self.record.environment["nvcc"] = library.nvcc
            fds = [*own, library.fd]
        self.session.loading = True
        try:
            reply = self.session.ask(
                "load", request, spec.limits.load_s, "loading the submission", fds=tuple(fds)
            )
        finally:
            for fd in own:
                os.close(fd)
        self.session.loading = False
        if reply.flags & Flag.RETURNS:
            self.record.notes.append(
                "the function returns its outputs; copying them counts into its time"
            )

    def finish_precompiling(self) -> None:
        """Have the processes that compile beside the tests ended, if they have not been."""
        if self._is_precompiling:
            limit_s = self.problem.spec.limits.load_s
            what = "compiling its kernels"
            self.session.ask("finish_precompiling", {"limit_s": limit_s / 2}, limit_s, what)
            self._is_precompiling = False

    def _known_shapes(self) -> Shapes:
        key = (self.problem.digest, self.device)
        if key not in _SHAPES:
            tests = self.problem.cases("test", self.device)
            every = by_turns(tests, self.problem.bytes)
            every += self.problem.cases("benchmark", self.device)
            told: list[dict[str, Any]] = []
            places, test_bytes = {}, 0
            for case in every:
                template = self.code.inputs(case, seed_for(0, case.name))
                shape = self._shape(case, template)
                if shape not in told:
                    told.append(shape)
                places[case.name] = told.index(shape)
                if case in tests:
                    test_bytes = max(test_bytes, layout_of(self.problem, case, template).nbytes)
            _SHAPES[key] = Shapes(told, places, test_bytes)
        return _SHAPES[key]

    def _shape(self, case: Case, template: Values) -> dict[str, Any]:
        values = [value for _, value in arguments_of(self.problem, case, template)]
        return {"values": list(map(pack, values)), **self._told(case)}

    def reused_arena(self) -> ReusedArena:
        """Where all tests are to lie, with room for the largest if kernels are compiled beside
        them: until they are, memory is dear."""
        return ReusedArena(self.device, self._shapes.test_bytes if self._shapes else 0)

    def test(self, reused: ReusedArena, case: Case) -> CaseResult:
        """One test case: each of its calls with fresh inputs, every output through every gate."""
        initial = self._test_inputs(case, 0)
        sets = ArgumentSets(self.problem, case, initial, 1, self.device, reused=reused)
        carried: Values = {}  # the state as the submission left it,
        truth: Values = {}  # as float64 has it,
        eager: Values = {}  # and as PyTorch has it
        findings = []
        try:
            self.lend(sets)
            for call in range(case.calls):
                inputs = self._test_inputs(case, call) | carried
                sets.fill(0, inputs)
                self._call(sets, inputs)
                truth = self.code.run_reference(case, inputs | self._state(truth))
                eager = self.code.run_eager(case, inputs | self._state(eager))
                look = partial(self._look, sets, truth, eager, initial)
                findings.append(look())
                self.judge(sets, findings[-1], look)
                if findings[-1].failure is not None:
                    break
                carried = self._state(sets.outputs(0))
            self.expect_device_memory()
        finally:
            sets.close()
        return _tested(case, combine_results(findings))

    def _test_inputs(self, case: Case, call: int) -> Values:
        return self.code.inputs(case, seed_for(self.master, "test", case.name, call), call)

    def _call(self, sets: ArgumentSets, inputs: Values) -> None:
        """Have the entry called once on the sets's only set, and take the snapshot."""
        sets.prepare([0])
        sets.publish([0])
        scalars = {
            str(i): inputs[a.name]
            for i, a in enumerate(self.problem.spec.args)
            if a.kind == "scalar"
        }
        limit_s = self.problem.spec.limits.call_s
        what = f"the call on test '{sets.case.name}'"
        self.session.ask("call", {"set": 0, "scalars": scalars}, limit_s, what)
        sets.probe()
        sets.take_snapshot()

    def _look(
        self, sets: ArgumentSets, truth: Values, eager: Values, initial: Values
    ) -> CheckResult:
        return self.compare(sets.case, sets.outputs(0), truth, eager, initial)

    def _state(self, values: Values) -> Values:
        """The `inout` arguments among `values`."""
        names = [a.name for a in self.problem.spec.args if a.role == "inout"]
        return {name: values[name] for name in names if name in values}

    def lend(self, sets: ArgumentSets) -> None:
        """Hand the sets's arena to the runner, unless it has it."""
        place = self._shapes.places.get(sets.case.name) if self._shapes else None
        told = self._told(sets.case) | {"shape": place}
        lend(self.session, sets, told, again=sets.arena is self._lent)
        self._lent = sets.arena

    def _told(self, case: Case) -> dict[str, Any]:
        """What a `.cu` entry is told of a case besides its arguments."""
        dims = [int(case.params[name]) for name in dimensions(self.problem.spec)]
        return {"dims": dims, "symbol": self._symbol(case)}

    def judge(
        self, sets: ArgumentSets, finding: CheckResult, look: Callable[[], CheckResult]
    ) -> None:
        """Raise `SubmissionFault` for a broken rule; note a wrong answer and go on.

        `look` checks the sets's snapshot anew, after it was taken again.
        """
        late = Fault(
            Verdict.REJECTED,
            f"case '{sets.case.name}': outputs were written after the call was done",
            Rule.WORK_OUTSIDE_CALL,
        )
        if finding.failure is not None:
            if len(self.record.faults) < GRACE_CASES and self._becomes_right(sets, look):
                raise SubmissionFault(late)
            reason = f"case '{sets.case.name}': {finding.failure}"
            self.record.faults.append(Fault(Verdict.WRONG_ANSWER, reason))
            return
        if sets.changed_since_probe():
            raise SubmissionFault(late)
        tampered = sets.tampered()
        if tampered is not None:
            reason = f"case '{sets.case.name}': {tampered}"
            raise SubmissionFault(Fault(Verdict.REJECTED, reason, Rule.MEMORY_TAMPERED))

    def _becomes_right(self, sets: ArgumentSets, look: Callable[[], CheckResult]) -> bool:
        """Whether outputs that were wrong at "done" are right a moment later."""
        time.sleep(GRACE_S)
        return sets.snapshot_changed() and look().failure is None

    def compare(
        self, case: Case, outputs: Values, truth: Values, eager: Values | None, initial: Values
    ) -> CheckResult:
        """Every output of one call through every gate."""
        return combine_results(
            [
                check(
                    argument.name,
                    outputs[argument.name],
                    truth[argument.name],
                    eager[argument.name] if eager is not None else None,
                    tolerance_of(self.problem, argument, case),
                    initial[argument.name] if argument.role == "inout" else None,
                )
                for argument in self.code.written
            ]
        )

    def _symbol(self, case: Case) -> str:
        """The function of a `.cu` file for this case's dtype."""
        spec = self.problem.spec
        variable = next((a.dtype for a in spec.args if a.dtype in case.params), None)
        if variable is None or not spec.cuda_dtypes:
            return spec.entry
        dtype = case.params[variable]
        return spec.entry if dtype == spec.cuda_dtypes[0] else f"{spec.entry}_{dtype}"

    def _device_bytes(self) -> int:
        """Device memory in use that is neither the judge's own nor lent."""
        if self.device == "cpu":
            return 0
        free, total = torch.cuda.mem_get_info()
        return total - free - torch.cuda.memory_reserved()

    def expect_device_memory(self) -> None:
        """Raise `SubmissionFault` if more device memory is in use than the submission may have."""
        if not self._is_precompiling and (fault := self.hoarding()) is not None:
            raise SubmissionFault(fault)

    def hoarding(self, spare_bytes: int = 0) -> Fault | None:
        """The fault of holding more device memory than allowed, beyond what is lent, and beyond
        what others of our own may hold; or None."""
        limit = self.problem.spec.limits.device_memory_bytes
        lent_bytes = self._lent.nbytes if self._lent is not None else 0
        used = self._device_bytes() - lent_bytes - self._idle_device_bytes - spare_bytes
        if used <= limit:
            return None
        reason = (
            f"the submission holds {used >> 20} MiB of device memory; {limit >> 20} are allowed"
        )
        return Fault(Verdict.MEMORY_LIMIT_EXCEEDED, reason)

    def hoarding_at_last(self) -> Fault | None:
        """The same when memory has run out. What compiles beside the tests is ended first, but who
        is asked to end it could also let go of what he holds, so that is looked at before."""
        if self._is_precompiling:
            if (fault := self.hoarding(PRECOMPILE_BYTES)) is not None:
                return fault
            try:
                self.finish_precompiling()
            except SubmissionFault as stop:
                return stop.fault
        return self.hoarding()


def by_turns(cases: list[Case], weight: Callable[[Case], float]) -> list[Case]:
    """The first case, the one of most weight, the second, the one of most weight but one, and so
    on. So what the tests begin with is compiled first, and large cases, which often have more than
    one kernel and come late, are not begun last."""
    heavy = sorted(cases, key=weight, reverse=True)
    turns = [case for pair in zip(cases, heavy, strict=True) for case in pair]
    return list({case.name: case for case in turns}.values())


def _tested(case: Case, finding: CheckResult) -> CaseResult:
    return CaseResult(
        name=case.name,
        kind="test",
        params=case.params,
        status="passed" if finding.failure is None else "wrong_answer",
        reason=finding.failure,
        max_abs_err=finding.max_abs_err,
        rel_l2=finding.rel_l2,
        worst_slice_rel_l2=finding.worst_slice_rel_l2,
        error_budget_used=finding.budget_used,
        mismatch=finding.mismatch,
    )
