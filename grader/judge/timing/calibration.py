"""What a round costs besides its calls, measured before the submission is loaded.

It is calibrated for each runner: other load on the machine, and the processor that a process runs
on, change it by more than a submission could gain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from grader import stats
from grader.arena import TensorSpec, arrange
from grader.arena.layout import ITEM_BYTES
from grader.judge.integrity.auditor import watch_only
from grader.judge.memory.argument_sets import arguments_of, item_bytes
from grader.judge.memory.shared_block import POLICY as BLOCK_POLICY
from grader.judge.memory.shared_block import SharedBlock
from grader.judge.problem_code import Values
from grader.judge.session import Session
from grader.judge.timing.plan import POLICY, calls_per_round
from grader.judge.timing.round import MeasuredRound, RoundStart, capture, lend, publish, run_round
from grader.problem import Problem
from grader.problem.spec import Case
from grader.sandbox.base import SandboxError


@dataclass(frozen=True)
class RoundCost:
    """What a round costs the judge's clock besides its calls, microseconds."""

    publish_us: float = math.inf
    """Publishing its inputs, undisturbed; infinite where unknown."""
    cost_us: float = 0.0
    """The context switch to the runner, the launch and the probe: the least that was seen."""

    def delay_us(self, measured: MeasuredRound) -> float:
        """By how much the inputs of a round were delayed; 0 unless publishing was disturbed."""
        delay_us = measured.publish_us - self.publish_us
        return delay_us if delay_us >= POLICY.delay_us else 0.0

    def calls_us(self, measured: MeasuredRound) -> float:
        """Time of all calls of a round by the judge's clock. Work during publishing delays it, so
        the delay counts."""
        return max(0.0, measured.measured_us + self.delay_us(measured) - self.cost_us)


def calibrate(session: Session) -> float:
    """Microseconds that a graph's round costs besides its calls: the least of some idle rounds. The
    runner has loaded nothing yet, so its events are honest."""
    return min(measured.rest_us for measured in idle_rounds(session, POLICY.idle_rounds))


def idle_rounds(session: Session, rounds: int) -> list[MeasuredRound]:
    """Rounds of an idle runner, whose calls copy some memory; one more before them warms up.

    Raises `SandboxError` where nothing can be captured: no submission can be the reason yet.
    """
    words = TensorSpec(0, "int64", (POLICY.idle_words,), (1,))
    layout = arrange([[(False, words), (True, words)]] * POLICY.idle_calls)
    block = SharedBlock(layout, ITEM_BYTES[words.dtype], "cuda", BLOCK_POLICY.kept_probes)
    try:
        session.ask("idle", {}, 10, "calibration")
        lend(session, block, {"shape": None, "dims": [], "symbol": ""}, limit_s=60)
        order = list(range(POLICY.idle_calls))
        if not capture(session, order, 10):
            raise SandboxError(
                "the runner cannot capture a CUDA graph, not even of our own calls, so no time "
                "could rank; check that driver, torch and cuda-bindings are of one CUDA version"
            )
        auditor = watch_only(block)
        start = RoundStart(graph=True, gate=True)
        found = []
        for _ in range(rounds + 1):
            auditor.arm(order, lambda _: {})
            found.append(run_round(session, block, order, start, 10, auditor))
        return found[1:]
    finally:
        block.close()


def calibrate_publishing(problem: Problem, case: Case, template: Values) -> tuple[float, int]:
    """Microseconds per set that publishing a round of a case takes, undisturbed; and the bytes of
    the round's block."""
    calls = calls_per_round(problem, case, template, "cuda")
    layout = arrange([arguments_of(problem, case, template)] * calls)
    block = SharedBlock(layout, item_bytes(problem, case), "cuda")
    auditor, order = watch_only(block), list(range(calls))
    try:
        times_us = []
        for _ in range(POLICY.publish_rounds + 1):
            auditor.arm(order, lambda _: {})
            publish(block, order, auditor)
            times_us.append(block.publish_us())
        return stats.median(times_us[1:]) / calls, layout.nbytes
    finally:
        block.close()
