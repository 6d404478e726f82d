"""A test double of `Auditor`, which returns given evidence and records its calls."""

from __future__ import annotations

from collections.abc import Callable

from grader.judge.integrity.auditor import Auditor, Evidence, OtherInputs, RoundOutputs


class ScriptedAudit(Auditor):
    """Concludes `evidence`, round by round and then the last of it again. A method's name is
    appended to `steps` when it is called."""

    def __init__(
        self,
        *evidence: Evidence,
        unranked: str | None = None,
        steps: list[str] | None = None,
    ) -> None:
        super().__init__(unranked)
        self.evidence = list(evidence) or [Evidence()]
        self.unranked = unranked
        self.steps: list[str] = [] if steps is None else steps
        self.orders: list[list[int]] = []
        """The order of each round that was armed."""
        self.other_inputs: list[OtherInputs] = []
        self.early: list[bool] = []
        """For each sample while inputs were published, whether it was early."""
        self.round_us: list[float] = []
        """The measured time of each round that was concluded."""
        self.learned_us: list[float] = []

    def arm(self, order: list[int], other_inputs: OtherInputs) -> None:
        self.steps.append("arm")
        self.orders.append(order)
        self.other_inputs.append(other_inputs)

    def sample_early(self, is_early: Callable[[], bool]) -> None:
        self.steps.append("sample_early")
        self.early.append(is_early())

    def watch(self, going_on: Callable[[], bool]) -> None:
        self.steps.append("watch")

    def disarm(self) -> None:
        self.steps.append("disarm")

    def conclude(self, round_us: float, outputs: RoundOutputs) -> Evidence:
        self.steps.append("conclude")
        self.round_us.append(round_us)
        return self.evidence.pop(0) if len(self.evidence) > 1 else self.evidence[0]

    def learn(self, call_us: float) -> None:
        self.steps.append("learn")
        self.learned_us.append(call_us)

    def unranked_reason(self) -> str | None:
        return self.unranked
