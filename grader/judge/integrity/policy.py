"""The numbers of the integrity checks, each with its unit, its meaning and its source."""

from __future__ import annotations

from dataclasses import dataclass

from grader.problem.spec import FLOATING_DTYPES


@dataclass(frozen=True)
class CallOrderPolicy:
    """How a round is sampled, and what counts as evidence."""

    near: int = 64
    """Near the start or the end means within this part of an output tensor, or of a set."""
    boundary_parts: tuple[int, ...] = (64, 32, 16)
    """The two words of a boundary pair are as far apart as one of these parts of a set is long."""
    pairs: int = 4
    """Boundary pairs that a sample reads back to back, 3 µs each. Calls that share a launch overlap
    for a few microseconds: with single pairs, 3 of 8 gradings of `batches_one_case.py` were
    accepted on an H200, and on an H100 two of ten ranked, 11.6 µs too fast."""
    tries: int = 16
    """Draws of a boundary pair until both of its words lie in outputs."""
    early_words: int = 3
    """Words of every set that a sample reads while inputs are published. Few, for many samples."""
    closing_calls: int = 3
    """The block is probed from when this many calls are left: a call may write all at its end."""
    most_samples: int = 8192
    """Samples that are kept of a round."""
    slow_us: float = 150.0
    """A sample takes 20 to 40 µs, and with a probe 60. One that took longer was held up, and proves
    nothing."""
    blind_share: float = 0.1
    """A round that was not sampled for more than this share, and `slow_us`, does not count: calls
    that overlap only then gain 1.6 % of the shortest rounds."""
    most_overlaps: int = 2
    """Samples of a submission that show overlapping calls before it is rejected. One could be a
    copy that stalled between its words."""


@dataclass(frozen=True)
class DeferredInputsPolicy:
    """Which inputs are written just before their call, when, and what counts as evidence."""

    dtypes: tuple[str, ...] = (*FLOATING_DTYPES, "int8", "uint8")
    """Element types of which a mixture of two tensors is as valid as either. Wider integers may be
    offsets, which belong together."""
    most_sets: int = 4
    """Most deferred sets of a round,"""
    calls_per_set: int = 10
    """and one in this many calls. They do not change times (`benchmarks/deferred_inputs.py`)."""
    least_bytes: int = 4096
    """Least size of a tensor that is deferred."""
    align_bytes: int = 16
    """Alignment of a piece's rows."""
    rows: tuple[int, int] = (8, 32)
    """Rows of a piece, with gaps between them: the driver does not give small copies without gaps
    to the copy engine (`benchmarks/copy_engine.py`). Drawn, so that re-reading a few words finds no
    rule."""
    row_bytes: tuple[int, int] = (64, 2048)
    """Width of a row."""
    tries: int = 16
    """Draws of a piece until its stale content differs from its true one."""
    trip_us: float = 35.0
    """Duration of a write and the sample behind it, until it is known: 20 µs on some hosts, 60 on
    others."""
    trips: int = 16
    """Durations remembered; the first quartile counts, so that slowing some changes nothing."""
    seen_us: float = 20.0
    """How much later than it begins a call is seen to begin."""
    lead_calls: tuple[tuple[float, float], ...] = ((0.0, 0.5), (0.1, 2.5))
    """A write ends this many calls before its call, drawn from one of these ranges: late enough to
    detect reading a little early, early enough for kernels that write their outputs at the end."""
    sample_us: float = 30.0
    """A write that is due within one sample's time is waited for."""
    held_up_us: float = 100.0
    """A write and its sample that take longer were held up."""
    recent_calls: int = 4
    """Calls from which the pace of a round is estimated."""
    pace_share: float = 0.95
    """Writes are aimed at calls of this share of the shortest measured time, which holds the
    round's cost too."""
    least_in_time: float = 1 / 32
    """Share of deferred sets that must be in time for a case to rank, once there are"""
    enough_sets: int = 12
    """this many;"""
    most_held_up: float = 1 / 3
    """and share of them that may be held up. Otherwise the copy engine is kept busy on purpose."""
    least_unexplained: int = 8
    """A submission is wrong when at least this many undecidable sets, and more than half of those
    that are wrong, have errors that mixed inputs cannot explain. Of mixtures of sorted zeros and
    ones, the worst known, 17 % are unexplained."""


CALL_ORDER = CallOrderPolicy()
DEFERRED = DeferredInputsPolicy()
