"""One benchmark case: how many sets, rounds over them, every output checked, and the baselines."""

from __future__ import annotations

import contextlib
import math
import random
import secrets
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

from grader import stats
from grader.judge.correctness.batch_check import Answers, QuickLook
from grader.judge.correctness.check import (
    Finding,
    check,
    tolerance_of,
    unexplained,
    unwritten,
    worst,
)
from grader.judge.gpu.state import complaint, gpu_state
from grader.judge.grading import Grading
from grader.judge.integrity.call_order import Lookout, turned
from grader.judge.integrity.deferred_inputs import LateInputs
from grader.judge.memory.argument_sets import Loan
from grader.judge.memory.shared_block import KEPT
from grader.judge.problem_code import Values, each, seed_for
from grader.judge.timing.measure import (
    AGREE_SHARE,
    LEAST_US,
    PLANS,
    Sample,
    Timing,
    calls_per_round,
    floor_us,
    is_heavy,
    measure,
)
from grader.judge.timing.round import Bracket, Starts, capture, run_round
from grader.judge.verdict import Fault, SubmissionFault
from grader.problem import ProblemError
from grader.problem.spec import Argument, Case, Tolerance
from grader.report import CaseResult, Rule, Verdict

SPOT_ALLOWANCE = 2.0
"""Against PyTorch's answer, itself off by as much, the elementwise and L2 bounds are doubled."""
THOROUGH_ONE_IN = 16
"""One round in so many, by lot, has a set that goes through every gate; the truth is dear. So has
each whole round that looks faster from outside than all that had one, by more than clocks may
differ; and of it the set furthest from PyTorch's answer: no single round may win by a worse one."""
FLOOR_SHARE = 0.95
"""A time below this share of the roofline's floor is held for review."""

REST_SHARE, MOST_REST_S = 30.0, 0.25
"""Rest before a round that tensor cores limit: so many times what the last round took, and at most
this. Without, the chip steps its clock down and up from round to round, by 0.7 %, though it reports
the highest one. With 0.2 s every case of attention settled in 6 to 9 rounds; with fifteen times the
round, 0.12 to 0.17 s, its long ones took 15 to 28, and some did not settle."""
HELD_UP_US = 1000.0
"""Inputs that come later by more are held up. A graph with branches has them on hardware queues of
their own, and where those wait at the gate, each takes its slice of time from the judge: 1.9 ms."""
MEETINGS = 2
"""So many looks at a seam, or bursts of glances, must tell of calls that overlap, of all rounds of
a submission; those under way at the same time count once. A round of honest calls has none: both
words are read at once, and from a call's end to the next one's first output it takes some
microseconds. One alone could still be a copy that was held up in its midst, though not for long."""
UNEXPLAINED = 8
"""So many sets of a grading, and more than half of those that were wrong with inputs too late to
tell of, must be wrong by more than that explains: who leaves them undone has them all so. Of
mixtures of sorted zeros and ones, the worst that is known, 17 % are."""
PACE_SHARE, SUDDEN_SHARE = 0.95, 0.9
"""Late inputs are aimed at calls that take this share of the shortest time that was seen, since
that holds what a round costs besides its calls; and a round whose calls took less than this share
of it was faster than what its late inputs were aimed at."""
ODD = 1_000_000
"""Rounds of this number and above have inputs of other kinds."""
BASELINE_DRIFT = 0.02
"""How much slower PyTorch may have become since before the submission was loaded."""


class Bench:
    """Rounds of one benchmark case over one loan."""

    def __init__(
        self, grading: Grading, case: Case, loan: Loan, usual_calls: int, gate: bool, captures: bool
    ) -> None:
        self.grading = grading
        self.case = case
        self.loan = loan
        self.plan = PLANS[grading.device, grading.effort]
        self.is_heavy = grading.ranks and is_heavy(grading.problem, case)
        self.overhead = grading.overhead(case).of_rounds(self.calls / usual_calls)
        self.captures = captures
        """Whether to capture rounds into a graph, if that can be."""
        self.gate = gate
        """Whether rounds that can be captured wait for their inputs at the block's gate; else a
        message starts them."""
        self.graph = False
        """Whether they were captured."""
        self._holds_up = False
        """Whether a graph that waits at the gate holds up what it waits for."""
        self.cold_us: float | None = None
        """Latency of a single call by the outside clock, launch included; of the second one."""
        self.answers = Answers(grading.code, case, loan)
        self.quick = QuickLook.over(self.answers, loan, self.spot_bounds)
        self._vouched_us = math.inf
        """Per call, the least outside time of a whole round with a set that went through every
        gate."""
        self.first: Sample | None = None
        """The sample of a round that the warm-up ended with."""
        self._last_us = self._delay_us = 0.0
        """What the last round claims to have taken, and by how much its inputs were delayed."""
        self._least_us = math.inf
        """Per call, the least outside time of a whole round of ordinary inputs, which late ones are
        aimed by. No claim is: it could have them written too soon to tell anything, or too late."""
        self._is_sudden = False
        """Whether the last round was much faster than that was."""
        self.meetings = 0
        """How often looks at a seam, and glances, told of calls that overlap."""
        self._was_blind = False
        """Whether too much of the last round passed without a look."""
        self._index = 0
        """The round that the image is of."""
        self.lookout = Lookout.over(loan)
        self.late = LateInputs.over(loan) if self.lookout is not None and grading.ranks else None
        self._odd = 1 + secrets.randbelow(self.plan.least_rounds - 1)
        """Before this round come those with inputs of other kinds."""
        self.eager_us: list[float] = []
        """What PyTorch took per call, round by round, where that is known."""

    @property
    def calls(self) -> int:
        """Sets, and so calls, per round."""
        return len(self.loan.layout.sets)

    def round(self, index: int, order: list[int] | None = None) -> Sample:
        """One round on fresh inputs with every output checked. Raises `SubmissionFault`."""
        self.cool_down()
        bracket = self.bracket(index, order)
        claim_us = bracket.claim_us / bracket.calls
        self._last_us = bracket.claim_us
        self._delay_us = self.overhead.delay_us(bracket)
        objection = complaint() if self.loan.device == "cuda" else None
        if self._is_sudden:
            objection = "its calls were much faster than was known before"
        if self._was_blind:
            objection = "the judge could not watch"
        return Sample(claim_us, self._outside_us(bracket), objection, bracket.sm_mhz)

    def _outside_us(self, bracket: Bracket) -> float:
        return self.overhead.outside_us(bracket) / bracket.calls

    def cool_down(self) -> None:
        """Let a chip that runs at its power limit rest, so that each round meets the same clock."""
        if self.is_heavy:
            time.sleep(min(REST_SHARE * self._last_us / 1e6, MOST_REST_S))

    def bracket(self, index: int, order: list[int] | None = None) -> Bracket:
        """The same, as the clocks saw it."""
        chosen = order if order is not None else self._order()
        self._index = index
        for i in chosen:
            self.loan.fill(i, self.inputs(index, i))
        whole = len(chosen) == self.calls
        lookout, late = (self.lookout, self.late) if whole else (None, None)
        if math.isinf(self._least_us):
            late = None  # there is nothing to aim by
        if late is not None:
            late.withhold(
                chosen,
                self._least_us * PACE_SHARE,
                secrets.SystemRandom(),
                lambda i: self.inputs(index, i, "another"),
            )
        bracket = self._run(chosen, lookout, late)
        if late is not None:
            late.put_back()
        if whole and (eager_us := self.answers.compute()) is not None and index < ODD:
            self.eager_us.append(eager_us)
        doubt, untold = None, set[int]()
        if late is not None and lookout is not None:
            doubt = self._doubtful(chosen)
            untold = self._expect_unread(late, lookout, chosen, doubt[0])
        outside_us = self._outside_us(bracket)
        # Nothing is known of the first one that is watched, so it has no late inputs. It may count
        # all the same: the middle one of six does not follow it.
        known_us = 0.0 if math.isinf(self._least_us) else self._least_us
        self._is_sudden = self.late is not None and whole and outside_us < known_us * SUDDEN_SHARE
        self._was_blind = (
            lookout is not None and self.grading.ranks and lookout.was_blind(bracket.outside_us)
        )
        is_fast = whole and index < ODD and outside_us < self._vouched_us * (1 - AGREE_SHARE)
        is_thorough = is_fast or secrets.randbelow(THOROUGH_ONE_IN) == 0
        self._expect_right([i for i in chosen if i not in untold], is_thorough, doubt)
        if late is not None and doubt is not None:
            self._expect_explained(late, untold & doubt[0])
        # Of a round that was wrong, or not watched, nothing is to be learnt.
        if whole and index < ODD and not self._was_blind:
            self._least_us = min(self._least_us, outside_us)
            if is_fast:
                self._vouched_us = outside_us
        if lookout is not None:  # after that, since a wrong answer is no broken rule
            self._expect_order(lookout, chosen)
        return bracket

    def _run(
        self, chosen: list[int], lookout: Lookout | None, late: LateInputs | None = None
    ) -> Bracket:
        grading = self.grading
        limit_s = grading.problem.spec.limits.call_s * len(chosen)
        starts = Starts(self.graph, self.graph and self.gate)
        return run_round(grading.session, self.loan, chosen, starts, limit_s, lookout, late)

    def warm_up(self) -> None:
        """Call everything once, and capture a round into a graph; keep that only if a replay on
        fresh inputs is right."""
        if self.grading.device == "cuda":
            index = secrets.randbelow(self.calls)
            # Compiles what is left to compile. Checked, since who chooses among configurations may
            # spoil the first call of a shape, and only that.
            self.round(-10, [index])
            self.cold_us = self.round(-11, [index]).external_us
            order = list(range(self.calls))
            limit_s = self.grading.problem.spec.limits.call_s * self.calls
            if self.captures:
                self.graph = capture(self.grading.session, order, limit_s)
            if self.is_for_gates:
                return
        try:
            if self.grading.device == "cuda" and not self.graph:
                self.round(-12)  # what is planned once per set, is planned now
            self.first = self.round(0)
            if self._is_sudden:
                self.first = None
            if self._delay_us > HELD_UP_US:  # once may be chance
                self.round(-13)
                self._holds_up = self._delay_us > HELD_UP_US
        except SubmissionFault as stop:
            if not self.graph or stop.fault.verdict is not Verdict.WRONG_ANSWER:
                raise
            self.graph, self.first = False, None
            self._least_us = self._vouched_us = math.inf
            self.grading.record.notes.append(
                f"'{self.case.name}': a replayed CUDA graph gave wrong outputs "
                f"({stop.fault.reason}); timed eagerly"
            )
            if self.late is not None and not self.is_for_gates:
                self.round(-14)  # tells how fast it is now

    @property
    def is_for_gates(self) -> bool:
        """Whether its rounds are too short for calls that cannot wait at a gate after all."""
        return self.gate and (not self.graph or self._holds_up) and self.grading.ranks

    @property
    def unseen(self) -> str | None:
        """What could not be seen of its calls and should have been, so that its times do not rank;
        or None. Of outputs that are state a call may leave most as they are, and then nobody sees
        when it has ended."""
        if self.lookout is None and self.loan.device == "cuda" and self.grading.ranks:
            return (
                "the sets are too large for the judge to watch from one to the next, so it never "
                "will be"
            )
        if self.meetings and self.grading.ranks:
            return (
                "one look told that a call began before the one before it had ended, which proves "
                "nothing; submit it again"
            )
        if self.late is None or self.loan.poisons_image or self.late.tally.tells:
            return None
        return (
            "what the judge wrote late, to know when calls read their inputs, came too late; "
            "submit it again"
        )

    def next(self, index: int) -> Sample:
        """Sample of round `index`: of the warm-up's last one, or of another."""
        if index == 0 and self.first is not None:
            return self.first
        if index == self._odd:
            # As many as every kind needs; calls may take longer for some, so no time of it counts.
            for number in range(math.ceil(len(self._kinds) / self.calls)):
                self.round(ODD + number)
        # Round 0 was the warm-up's: answers kept from there must not do for another.
        return self.round(index + 1)

    def _expect_order(self, lookout: Lookout, chosen: list[int]) -> None:
        """Raise `SubmissionFault` when a watched round did not run call by call, from when the
        inputs were there."""
        if lookout.has_begun(chosen):
            raise self._broken("outputs were written before the calls were asked for")
        if lookout.side_by_side():
            raise self._broken("calls of a round ran side by side")
        meetings = lookout.meetings()
        self.meetings += meetings
        self.grading.meetings += meetings
        self.grading.bursts += lookout.kept_bursts
        self.grading.lost_bursts += lookout.lost_bursts
        if self.grading.meetings >= MEETINGS:
            raise self._broken("a call began before the one before it had ended")

    def _expect_unread(
        self, late: LateInputs, lookout: Lookout, chosen: list[int], doubtful: set[int]
    ) -> set[int]:
        """Raise `SubmissionFault` when inputs that came late, but before their call may have begun,
        were read sooner. The sets that tell nothing, since theirs may have come too late."""
        in_time = late.were_in_time(lookout.first_unfinished())
        came_late = late.written.keys()
        late.tally.wrong += len(doubtful & came_late - in_time)
        for i in doubtful & in_time:
            if self._is_right(i):
                continue
            with late.stale(i):
                is_right_so = self._is_right(i)
            # Whose other sets are wrong too, is wrong and no cheat.
            if is_right_so and all(map(self._is_right, doubtful - came_late)):
                raise self._broken("inputs were read before their call began")
        return came_late - in_time

    def _expect_explained(self, late: LateInputs, sets: set[int]) -> None:
        """Raise `SubmissionFault` when outputs of these sets, and of those of the grading so far,
        are as a rule wrong by more than what came late explains, or were never written: who knows
        which sets tell nothing shall not leave them undone."""
        code, explained = self.grading.code, self.grading.explained
        for i in sorted(sets):
            if self.quick is None and self._is_right(i):
                continue  # nothing is known of any yet
            inputs, outputs = self.loan.inputs(i), self.loan.outputs(i)
            right = code.plain(self.case, inputs)
            with late.stale(i):
                # A copy, since an answer may be a view of the inputs.
                stale = each(code.plain(self.case, inputs), lambda answer: answer.clone())
            wrong = {}
            for argument in code.written:
                name, bounds = argument.name, self.spot_bounds(argument)
                initial = inputs[name] if argument.role == "inout" else None
                wrong[name] = unwritten(outputs[name]) or unexplained(
                    outputs[name], right[name], stale[name], bounds, initial
                )
            explained.append(not any(wrong.values()))
            if explained.count(False) >= max(UNEXPLAINED, len(explained) // 2 + 1):
                name = max(wrong, key=lambda name: wrong[name])
                raise self._wrong(
                    f"{wrong[name]} elements of '{name}' are wrong or were never written, whenever "
                    "its inputs were read"
                )

    def _is_right(self, i: int) -> bool:
        return self.look(i, False).failure is None

    def _wrong(self, what: str) -> SubmissionFault:
        reason = f"benchmark '{self.case.name}': {what}"
        return SubmissionFault(Fault(Verdict.WRONG_ANSWER, reason))

    def _broken(self, what: str) -> SubmissionFault:
        reason = f"benchmark '{self.case.name}': {what}"
        return SubmissionFault(Fault(Verdict.REJECTED, reason, Rule.WORK_OUTSIDE_CALL))

    def inputs(self, index: int, i: int, *which: str) -> Values:
        """Inputs of set i in round `index`, from their own seed; or with another word, others like
        them."""
        path = ("benchmark", self.case.name, self.calls, self.gate, index, i, *which)
        seed = seed_for(self.grading.master, *path)
        values = self.grading.code.inputs(self._case_of(index, i), seed)
        for name, value in self.loan.scalars.items():
            if values[name] != value:  # the runner was told the scalars once
                raise ProblemError(
                    f"{self.grading.problem.folder / 'inputs.py'}: generate() gives another "
                    f"'{name}' for some set of benchmark '{self.case.name}'; make it depend on "
                    "nothing but the case's parameters, and not on those that variants change"
                )
        return values

    def _case_of(self, index: int, i: int) -> Case:
        """The case; or in rounds that do not count, each of its variants for one set."""
        if index < ODD or not self._kinds:
            return self.case
        path = ("variant", self.case.name, self.calls, index)
        sets = random.Random(seed_for(self.grading.master, *path)).sample(
            range(self.calls), self.calls
        )
        at = (index - ODD) * self.calls + sets.index(i)
        return self._kinds[at] if at < len(self._kinds) else self.case

    @cached_property
    def _kinds(self) -> list[Case]:
        """The case with inputs of other kinds."""
        return self.grading.problem.variants(self.case)

    def _expect_right(
        self, chosen: list[int], is_thorough: bool, doubt: tuple[set[int], list[int]] | None = None
    ) -> None:
        """Check every output of these sets of a round, and those of one set through every gate;
        `doubt` is what a quick look at it told, if there was one. Raises `SubmissionFault`."""
        grading, loan = self.grading, self.loan

        def look() -> Finding:
            nonlocal doubt
            doubtful, furthest = doubt or self._doubtful(chosen)
            doubt = None  # of the next snapshot it tells nothing
            one = next(i for i in furthest if i in chosen)
            if is_thorough:
                doubtful = doubtful | {one}
            return worst(
                [
                    self._named(i, self.look(i, is_thorough and i == one))
                    for i in chosen
                    if i in doubtful
                ]
            )

        found = look()
        grading.judge(loan, found, look)
        if (wrong := found.failure) is not None:
            grading.record.faults.pop()
            raise self._wrong(wrong)

    def _doubtful(self, chosen: list[int]) -> tuple[set[int], list[int]]:
        """The sets that are to be looked at, and all of them, those furthest from PyTorch's answer
        first, as far as a quick look at a round tells."""
        if self.quick is None or len(chosen) == 1:
            return set(chosen), secrets.SystemRandom().sample(chosen, len(chosen))
        return self.quick.doubtful()

    def _named(self, i: int, found: Finding) -> Finding:
        """With what is particular about the inputs of set i: what they were drawn with, where that
        is not what the case says, and whether some came late."""
        drawn = self._case_of(self._index, i).params.items() - self.case.params.items()
        told = [", ".join(f"{name}={value}" for name, value in sorted(drawn))] if drawn else []
        if self.late is not None and i in self.late.written:
            told.append("a part that came shortly before the call")
        if found.failure is None or not told:
            return found
        return replace(found, failure=f"{found.failure}, on inputs with {' and '.join(told)}")

    def look(self, i: int, thorough: bool) -> Finding:
        """Check the outputs of set i: through every gate, or against PyTorch's own answer.

        Every output of every round is checked; now and then one set, which nobody knows
        beforehand, is held against the float64 reference, and the rest against plain PyTorch.
        """
        code, grading = self.grading.code, self.grading
        inputs, outputs = self.loan.inputs(i), self.loan.outputs(i)
        eager = code.plain(self.case, inputs)
        if thorough:
            truth = code.truth(self.case, inputs)
            return grading.compare(self.case, outputs, truth, eager, inputs)
        findings = []
        for argument in code.written:
            initial = inputs[argument.name] if argument.role == "inout" else None
            name, bounds = argument.name, self.spot_bounds(argument)
            findings.append(check(name, outputs[name], eager[name], None, bounds, initial))
        return worst(findings)

    def spot_bounds(self, argument: Argument) -> Tolerance:
        """The bounds of an output that is held against PyTorch's answer."""
        bounds = tolerance_of(self.grading.problem, argument, self.case)
        return bounds.model_copy(
            update={
                "atol": bounds.atol * SPOT_ALLOWANCE,
                "rtol": bounds.rtol * SPOT_ALLOWANCE,
                "rel_l2": bounds.rel_l2 * SPOT_ALLOWANCE,
            }
        )

    def release(self) -> None:
        """Let the device memory go; what was measured stays."""
        del self.quick, self.answers

    def baselines_us(self) -> dict[str, float]:
        """Microseconds per call of the baselines. PyTorch's own was timed between the rounds, so
        that drift of the chip cancels; unless something made it slower than it was before."""
        times = dict(self.grading.baselines_us.get(self.case.name, {}))
        if self.eager_us and "eager" in times:
            beside_us = stats.median(self.eager_us)
            times["eager"] = min(beside_us, times["eager"] * (1 + BASELINE_DRIFT))
        return times

    def _order(self) -> list[int]:
        """A captured graph has its order; an eager round begins with a set that nobody could know.
        Sets follow each other as they lie, so that it is seen where one call meets the next."""
        return turned(self.calls, 0 if self.graph else secrets.randbelow(self.calls))


@contextlib.contextmanager
def opened(
    grading: Grading, case: Case, sharing: int = 1, gate: bool = True, captures: bool = True
) -> Iterator[Bench]:
    """A bench that is lent and warm: what compiles has compiled, and a graph is captured if it can
    be, and it is to be tried. `sharing` is how many of them must fit into the device's memory.
    Without a `gate` messages start the rounds, which are as long as they then need to be."""
    template = grading.code.inputs(case, seed_for(grading.master, "template", case.name))
    usual, calls = (
        calls_per_round(
            grading.problem, case, template, grading.device, grading.effort, sharing, waits
        )
        for waits in (True, gate)
    )
    loan = Loan(grading.problem, case, template, calls, grading.device, KEPT)
    try:
        bench = Bench(grading, case, loan, usual, gate, captures)
        grading.end_rehearsal()  # no sooner: meanwhile kernels are compiled
        grading.lend(loan)
        bench.warm_up()
        yield bench
        if sharing == 1:  # else another's block is there too
            grading.expect_device_memory()
        bench.release()
    finally:
        loan.close()


def benchmark(grading: Grading, case: Case) -> CaseResult:
    """Measure one benchmark case. Raises `SubmissionFault` when it goes wrong or breaks a rule."""
    bench, timing = _timed(grading, case)
    if timing.fault is not None:
        raise SubmissionFault(timing.fault)
    for reason, count in timing.discarded.items():
        grading.record.notes.append(f"'{case.name}': {count} rounds left out ({reason})")
    return _result(bench, timing)


def _timed(
    grading: Grading, case: Case, gate: bool = True, captures: bool = True
) -> tuple[Bench, Timing]:
    with opened(grading, case, gate=gate, captures=captures) as bench:
        if not bench.is_for_gates:
            timing = measure(bench.next, bench.plan, bench.calls, bench.graph, grading.ranks)
            if (why := bench.unseen) is not None:
                timing = replace(timing, converged=False)
                grading.record.unseen.append(case.name)
                grading.record.notes.append(f"not ranked: of '{case.name}' {why}")
            return bench, timing
    return _timed(grading, case, gate=False, captures=bench.graph)


def _result(bench: Bench, timing: Timing) -> CaseResult:
    grading, case = bench.grading, bench.case
    nbytes, flops = grading.problem.bytes(case), grading.problem.flops(case)
    share = None
    if grading.device == "cuda":
        share = floor_us(grading.problem, case) / timing.time_us
        if share > 1 / FLOOR_SHARE:
            reason = (
                f"benchmark '{case.name}': {timing.time_us:.1f} µs is {share:.2f} times the "
                "hardware's own limit; held for review"
            )
            # Not raised: a forged time shows more clearly in a longer case.
            grading.record.faults.append(Fault(Verdict.REJECTED, reason, Rule.BELOW_FLOOR))
        grading.record.environment[f"gpu_state_{case.name}"] = gpu_state()
    return CaseResult(
        name=case.name,
        kind="benchmark",
        params=case.params,
        status="passed",
        time_us=timing.time_us,
        ci_us=timing.ci_us,
        external_us=timing.external_us,
        cold_us=bench.cold_us,
        rounds=timing.rounds,
        round_us=[max(round(us, 3), LEAST_US) for us in timing.round_us],
        round_mhz=[round(mhz, 1) for mhz in timing.round_mhz],
        calls_per_round=timing.calls_per_round,
        converged=timing.converged,
        graph=timing.graph,
        baseline_us=bench.baselines_us(),
        gb_per_s=nbytes / timing.time_us / 1e3,
        tflop_per_s=flops / timing.time_us / 1e6,
        sol=share,
    )
