"""The rounds of one benchmark case: warm up, run them, and check every output."""

from __future__ import annotations

import contextlib
import math
import secrets
import time
from collections.abc import Iterator
from dataclasses import replace

from grader.judge.correctness.check import CheckResult
from grader.judge.correctness.round_check import RoundCheck
from grader.judge.gpu.state import throttle_reason
from grader.judge.grading import Grading
from grader.judge.integrity.auditor import Auditor, Evidence, audit_of
from grader.judge.integrity.call_order import rotated
from grader.judge.memory.argument_sets import ArgumentSets
from grader.judge.memory.shared_block import ReusedArena
from grader.judge.round_inputs import VARIANTS, RoundInputs
from grader.judge.timing.calibration import RoundCost
from grader.judge.timing.measure import Sample
from grader.judge.timing.plan import PLANS, POLICY, is_tensor_bound
from grader.judge.timing.round import MeasuredRound, RoundStart, capture, run_round
from grader.judge.verdict import SubmissionFault
from grader.problem.spec import Case
from grader.report import Verdict


class Benchmark:
    """Rounds of one case over its argument sets."""

    def __init__(
        self, grading: Grading, case: Case, sets: ArgumentSets, gate: bool, captures: bool
    ) -> None:
        self.grading = grading
        self.case = case
        self.sets = sets
        self.gate = gate
        self.captures = captures
        self.graph = False
        """Whether rounds are replays of a captured graph."""
        self.cold_us: float | None = None
        """Measured time of a single call, launch included; of the second one."""
        self.first: Sample | None = None
        """The sample of the round that the warm-up ended with."""
        self.plan = PLANS[grading.device, grading.effort]
        self._rests = grading.ranks and is_tensor_bound(grading.problem, case)
        per_set_us = grading.publish_us_per_set.get(case.name, float("inf"))
        self._cost = RoundCost(per_set_us * sets.count, grading.round_cost_us)
        self.check = RoundCheck(grading.problem, grading.code, case, sets)
        self._inputs = RoundInputs(grading.problem, grading.code, sets, grading.master, gate)
        self.auditor = self._new_auditor()
        self._last_us = self._delay_us = 0.0
        self._holds_up = False
        self._was_called = False
        self._variants_before = 1 + secrets.randbelow(self.plan.least_rounds - 1)

    def _new_auditor(self) -> Auditor:
        """The auditor of this case's rounds. With too few sets it says that the case never ranks:
        work ahead of a call, such as while its inputs are copied, saves more of a round the fewer
        calls it has, and nothing shows it where a round is one call."""
        if self.grading.device == "cpu" or self.sets.count >= POLICY.least_calls:
            return audit_of(self.sets, self.grading.audit_tally, self.grading.ranks)
        count = self.sets.count
        fit = "argument set fits" if count == 1 else "argument sets fit"
        return Auditor(
            f"only {count} {fit} into the GPU's memory, so that a round need not show work outside "
            "its calls, and its start counts more"
        )

    @property
    def needs_messages(self) -> bool:
        """Whether rounds cannot wait at the gate after all, and are too short without it."""
        return self.gate and (not self.graph or self._holds_up) and self.grading.ranks

    def warm_up(self) -> None:
        """Call everything once, and capture a round; keep the graph only if a replay on fresh
        inputs is right."""
        if self.grading.device == "cuda":
            index = secrets.randbelow(self.sets.count)
            # Compiles what is left. Checked, since autotuning may spoil the first call of a shape.
            self.round(-10, [index])
            self.cold_us = self.round(-11, [index]).measured_us
            limit_s = self.grading.problem.spec.limits.call_s * self.sets.count
            if self.captures:
                order = list(range(self.sets.count))
                with self.grading.session.calling(is_first=False):
                    self.graph = capture(self.grading.session, order, limit_s)
            if self.needs_messages:
                return
        log = self.grading.audit_tally.copy()
        try:
            if self.grading.device == "cuda" and not self.graph:
                self.round(-12)  # what is planned once per set
            self.first = self.round(0)
            if self._delay_us > POLICY.held_up_us:  # once may be chance
                self.round(-13)
                self._holds_up = self._delay_us > POLICY.held_up_us
        except SubmissionFault as stop:
            if not self.graph or stop.fault.verdict is not Verdict.WRONG_ANSWER:
                raise
            self.graph, self.first = False, None
            self.grading.audit_tally = log  # without what the audits of the graph found
            self.auditor = self._new_auditor()
            self.grading.record.notes.append(
                f"'{self.case.name}': a replayed CUDA graph gave wrong outputs "
                f"({stop.fault.reason}); timed eagerly"
            )
            if not self.needs_messages:
                self.round(-14)  # the auditor learns how fast it is now

    def next(self, number: int) -> Sample:
        """The sample of round `number`; that of the warm-up's last round comes first."""
        if number == 0 and self.first is not None:
            return self.first
        if number == self._variants_before:
            for variants in range(self._inputs.variant_rounds):
                self.round(VARIANTS + variants)
        # The warm-up was round 0: answers kept from it must not fit another round.
        return self.round(number + 1)

    def round(self, number: int, order: list[int] | None = None) -> Sample:
        """One round on fresh inputs, audited and checked. Raises `SubmissionFault`."""
        if self._rests:
            time.sleep(min(POLICY.rest_share * self._last_us / 1e6, POLICY.most_rest_s))
        # A graph has its order; an eager round begins with a secret set.
        first = 0 if self.graph else secrets.randbelow(self.sets.count)
        chosen = rotated(self.sets.count, first) if order is None else order
        is_whole, is_ordinary = len(chosen) == self.sets.count, number < VARIANTS
        auditor = self.auditor if is_whole else Auditor()
        self._inputs.fill(number, chosen)
        auditor.arm(chosen, lambda i: self._inputs.draw(number, i, "other"))
        measured = self._run(chosen, auditor)
        self.check.begin(chosen, is_ordinary)
        evidence = auditor.conclude(measured.measured_us, self.check)
        thorough = number in (0, 1) or secrets.randbelow(POLICY.thorough_one_in) == 0
        self._expect_no_fault(number, evidence, thorough)
        self._last_us, self._delay_us = measured.reported_us, self._cost.delay_us(measured)
        call_us = self._cost.calls_us(measured) / measured.calls
        if is_whole and is_ordinary and evidence.discard is None:
            auditor.learn(call_us)
        throttled = throttle_reason() if self.sets.device == "cuda" else None
        discard = evidence.discard or throttled
        return Sample(measured.reported_us / measured.calls, call_us, discard, measured.sm_mhz)

    def long_round_us(self, about_us: float) -> float:
        """The judge's own time of one call, which takes `about_us`, in a round long enough for it.

        The sets are called again and again, so their outputs are not checked."""
        calls = min(POLICY.long_round_us / about_us, POLICY.most_repeats)
        order = list(range(self.sets.count)) * math.ceil(calls / self.sets.count)
        return self._run(order, Auditor()).measured_us / len(order)

    def _run(self, order: list[int], auditor: Auditor) -> MeasuredRound:
        limit_s = self.grading.problem.spec.limits.call_s * len(order)
        start = RoundStart(self.graph, self.graph and self.gate)
        session, is_first = self.grading.session, not self._was_called
        self._was_called = True
        with session.calling(is_first):
            return run_round(session, self.sets, order, start, limit_s, auditor)

    def _expect_no_fault(self, number: int, evidence: Evidence, thorough: bool) -> None:
        """Raise `SubmissionFault` with all that the outputs and the audit of a round have shown."""

        def named(i: int, found: CheckResult) -> CheckResult:
            deferred = "a part written just before the call" if i in evidence.deferred else ""
            particular = list(filter(None, (self._inputs.changed_params(number, i), deferred)))
            if found.failure is None or not particular:
                return found
            failure = f"{found.failure}, on inputs with {' and '.join(particular)}"
            return replace(found, failure=failure)

        def look() -> CheckResult:
            self.check.refresh()
            return self.check.worst(evidence.unchecked, thorough, named)

        where = f"benchmark '{self.case.name}'"
        found = self.check.worst(evidence.unchecked, thorough, named)
        faults = self.grading.faults_of(where, self.sets, found, look)
        faults += [replace(fault, reason=f"{where}: {fault.reason}") for fault in evidence.faults]
        if faults:
            raise SubmissionFault(*faults)


@contextlib.contextmanager
def open_benchmark(
    grading: Grading,
    case: Case,
    sharing: int = 1,
    gate: bool = True,
    captures: bool = True,
    reused: ReusedArena | None = None,
) -> Iterator[Benchmark]:
    """A benchmark whose sets are lent and which is warm. `sharing` is how many must fit into the
    device's memory. Without `gate`, messages start the rounds, which are longer for it. `reused` is
    as for `Grading.new_sets`."""
    sets = grading.new_sets(case, sharing, gate, reused)
    try:
        bench = Benchmark(grading, case, sets, gate, captures)
        grading.finish_precompiling()  # not sooner: meanwhile kernels are compiled
        grading.lend(sets)
        bench.warm_up()
        yield bench
        if sharing == 1:  # otherwise another benchmark's sets are there too
            grading.expect_device_memory()
        bench.check.release()
    finally:
        sets.close()
