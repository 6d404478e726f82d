"""Property tests of the precedence of verdicts."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grader.judge.verdict import PRECEDENCE, Fault, SubmissionFault, decide, reason_of
from grader.report import Rule, Verdict


def fault(verdict: Verdict, reason: str = "because", rule: Rule = Rule.TIME_CLAIM) -> Fault:
    return Fault(verdict, reason, rule if verdict is Verdict.REJECTED else None)


rules = st.sampled_from(Rule)
faults = st.lists(
    st.builds(fault, st.sampled_from(PRECEDENCE), st.text(max_size=5), rules), max_size=8
)


@given(faults)
def test_the_gravest_fault_decides(seen: list[Fault]) -> None:
    decided = decide(seen)
    if not seen:
        assert decided is None
        return
    assert decided in seen
    assert decided is not None
    ranks = [PRECEDENCE.index(f.verdict) for f in seen]
    assert PRECEDENCE.index(decided.verdict) == min(ranks)
    same = [f for f in seen if f.verdict is decided.verdict]
    assert decided is min(same, key=lambda f: list(Rule).index(f.rule) if f.rule else 0)


@given(faults, st.randoms(use_true_random=False))
def test_the_order_of_faults_does_not_change_the_verdict(seen: list[Fault], random) -> None:  # type: ignore[no-untyped-def]
    shuffled = list(seen)
    random.shuffle(shuffled)
    a, b = decide(seen), decide(shuffled)
    assert (a and (a.verdict, a.rule)) == (b and (b.verdict, b.rule))
    if seen:
        assert SubmissionFault(*shuffled).fault is b


@given(faults, faults)
def test_more_faults_never_make_a_milder_verdict(seen: list[Fault], more: list[Fault]) -> None:
    before, after = decide(seen), decide(seen + more)
    if before is not None:
        assert after is not None
        assert PRECEDENCE.index(after.verdict) <= PRECEDENCE.index(before.verdict)


def test_every_verdict_but_accepted_has_a_precedence() -> None:
    assert set(PRECEDENCE) == set(Verdict) - {Verdict.ACCEPTED}


def test_the_documented_precedence() -> None:
    order = [fault(v) for v in PRECEDENCE]
    for graver, milder in itertools.combinations(order, 2):
        assert decide([milder, graver]) is graver


def test_wrong_outputs_beat_a_broken_rule() -> None:
    decided = decide([fault(Verdict.REJECTED), fault(Verdict.WRONG_ANSWER)])
    assert decided is not None
    assert decided.verdict is Verdict.WRONG_ANSWER


def test_a_broken_rule_beats_a_result_held_for_review() -> None:
    held = fault(Verdict.REJECTED, rule=Rule.BELOW_FLOOR)
    forged = fault(Verdict.REJECTED, rule=Rule.TIME_CLAIM)
    assert decide([held, forged]) is forged
    assert decide([held]) is held


def test_a_rule_goes_with_rejected_and_only_with_it() -> None:
    with pytest.raises(ValueError, match="rule"):
        Fault(Verdict.REJECTED, "no rule named")
    with pytest.raises(ValueError, match="rule"):
        Fault(Verdict.WRONG_ANSWER, "wrong", Rule.TIME_CLAIM)
    with pytest.raises(ValueError, match="not the verdict of a fault"):
        Fault(Verdict.ACCEPTED, "no fault")


@given(faults.filter(bool), st.randoms(use_true_random=False))
def test_a_reason_names_every_kind_of_fault_once(seen: list[Fault], random) -> None:  # type: ignore[no-untyped-def]
    """The gravest first, whatever was found first."""
    named = [
        Fault(f.verdict, f"case '{i}': <{f.verdict} {f.rule}>", f.rule) for i, f in enumerate(seen)
    ]
    random.shuffle(named)
    kinds = {f"<{f.verdict} {f.rule}>" for f in seen}
    first, *also = reason_of(named).split("; also: ")
    decided = decide(named)
    assert decided is not None
    assert first == decided.reason
    assert {text[text.index("<") :] for text in [first, *also]} == kinds
    assert len(also) + 1 == len(kinds)


def test_the_case_that_decides_is_named_once() -> None:
    wrong = Fault(Verdict.WRONG_ANSWER, "case 'a': 3 elements are wrong")
    tampered = [
        Fault(Verdict.REJECTED, f"case '{name}': it wrote into 'x'", Rule.MEMORY_TAMPERED)
        for name in "ab"
    ]
    here, there = tampered
    assert reason_of([wrong]) == wrong.reason
    assert reason_of([here, wrong]) == f"{wrong.reason}; also: it wrote into 'x'"
    assert reason_of([wrong, there]) == f"{wrong.reason}; also: case 'b': it wrote into 'x'"


def test_what_the_deciding_reason_tells_is_not_told_again() -> None:
    both = Fault(Verdict.WRONG_ANSWER, "case 'a': it wrote into 'x'; 3 elements are wrong")
    for name in "ab":
        reason = f"case '{name}': it wrote into 'x'"
        assert reason_of([Fault(Verdict.REJECTED, reason, Rule.MEMORY_TAMPERED), both]) == (
            both.reason
        )
