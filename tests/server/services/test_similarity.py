"""Sources that are alike: by tokens, whatever their names and layout."""

from __future__ import annotations

import ast
import random
import time
from functools import cache
from pathlib import Path

import pytest

from grader.problem import Problem
from grader.problem.scaffold import scaffold
from grader.server.services import fingerprints, similarity
from grader.server.services.fingerprints import Fingerprint, Fingerprints, fingerprint
from grader.server.services.similarity import similar_pairs, similar_sources
from grader.submission import LANGUAGES, Language
from tests.server.command_line import runner
from tests.server.conftest import World
from tests.server.pages.test_admin_pages import Browser
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[3]
ACCEPTED = ROOT / "submissions/softmax/accepted"
TRITON = (ACCEPTED / "triton_softmax.py").read_text()
CUDA = (ACCEPTED / "cuda_softmax.cu").read_text()
OTHER = (ACCEPTED / "hostile_skips_late_inputs.py").read_text()


@cache
def boilerplate() -> frozenset[int]:
    return similarity._boilerplate(Problem.load(ROOT / "problems/softmax"))


def own(source: str, language: Language = "python") -> Fingerprint:
    """The fingerprint of a source for softmax, without what everybody has."""
    return fingerprint(source, language).without(boilerplate())


def likeness(one: Fingerprint, other: Fingerprint) -> float:
    """How much alike two are; 0 if it is less than a tenth."""
    return max((pair[2] for pair in similar_pairs([one, other], 0.1)), default=0.0)


def disguised(source: str) -> str:
    """A Python source with other names and other layout, without comments and docstrings."""

    class Rename(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.Name:
            return ast.Name(f"{node.id}_of_mine", node.ctx)

        def visit_arg(self, node: ast.arg) -> ast.arg:
            self.generic_visit(node)
            return ast.arg(f"{node.arg}_of_mine", node.annotation)

        def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
            if ast.get_docstring(node):
                node.body = node.body[1:]
            self.generic_visit(node)
            node.name += "_of_mine"
            return node

    text = ast.unparse(Rename().visit(ast.parse(source)))
    return text.replace(", ", " ,\n    ").replace(" = ", "=") + "\n# all my own work\n"


def test_renaming_and_reformatting_hide_nothing() -> None:
    copy = disguised(TRITON)
    assert "softmax_of_mine" in copy
    assert likeness(own(TRITON), own(copy)) > 0.9
    renamed = CUDA.replace("block", "klotz").replace("row", "zeile").replace("    ", "\t")
    assert renamed != CUDA
    assert likeness(own(CUDA, "cuda"), own("// mine\n" + renamed, "cuda")) == 1.0


def test_a_copy_in_a_longer_file_is_found() -> None:
    padding = (ROOT / "submissions/matmul/accepted/triton_matmul.py").read_text()
    assert likeness(own(TRITON), own(padding + TRITON + padding)) > 0.9


def test_different_kernels_are_not_alike() -> None:
    for other in (own(CUDA, "cuda"), own(OTHER)):
        assert likeness(own(TRITON), other) < 0.3


@pytest.mark.parametrize("name", ["softmax", "rms_norm", "flash_attention"])
def test_no_two_of_our_honest_kernels_reach_the_default(name: str) -> None:
    common = similarity._boilerplate(Problem.load(ROOT / "problems" / name))
    files = [
        path
        for folder in (ROOT / "submissions" / name / "accepted", ROOT / "reference" / name)
        for path in sorted(folder.iterdir())
        if path.suffix in LANGUAGES and not path.name.startswith("hostile_")
    ]
    prints = [
        fingerprint(path.read_text(), LANGUAGES[path.suffix]).without(common) for path in files
    ]
    assert len(files) > 3
    pairs = [
        (files[one].name, files[other].name)
        for one, other, *_ in similar_pairs(prints, similarity.LEAST)
    ]
    assert pairs == []


@pytest.mark.parametrize(
    ("name", "language"), [("triton", "python"), ("torch", "python"), ("cuda", "cuda")]
)
def test_a_starter_is_no_likeness(name: str, language: Language) -> None:
    starter = scaffold(Problem.load(ROOT / "problems/softmax"), name)
    assert len(own(starter, language).hashes) == 0
    both = own(f"{starter}\nx = 1\n", language), own(f"{starter}\ny = {{}}\n", language)
    assert likeness(*both) == 0.0


def test_long_sources_are_compared_by_their_smallest_hashes() -> None:
    some = random.Random(1)

    def source(seed: int) -> str:
        numbers = random.Random(seed)
        operators = ("+", "-", "*", "/", "//", "%", "@", "<<", ">>", "|", "&")
        return "".join(
            f"x{''.join(numbers.choice(operators) + ' x' for _ in range(12))}\n" for _ in range(900)
        )

    one, other = source(some.randrange(99)), source(100 + some.randrange(99))
    long, mixed = fingerprint(one, "python"), fingerprint(one + other, "python")
    assert len(long.hashes) == fingerprints.MAX_KEPT
    assert long.end == long.hashes[-1]
    assert likeness(long, fingerprint(other, "python")) < 0.2
    assert likeness(long, mixed) > 0.95, "the whole of it is in the other"
    short = fingerprint(one[: len(one) // 40], "python")
    assert short.end == fingerprints.MAX_HASH
    assert likeness(short, mixed) > 0.9


def test_a_slow_start_shifts_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Fingerprints()
    try:
        monkeypatch.setattr(fingerprints, "START_S", 0.0)
        with pytest.raises(OSError, match="did not start"):
            made.of("a", "python", lambda: b"x = 1")
        monkeypatch.setattr(fingerprints, "START_S", PATIENCE_S)
        assert made.of("b", "python", lambda: TRITON.encode()) == fingerprint(TRITON, "python")
    finally:
        made.stop()


def test_a_source_that_takes_too_long_costs_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprints, "SOURCE_S", 1.0)
    made = Fingerprints()
    try:
        endless = ("x = 1\n" * 400_000).encode()
        began = time.monotonic()
        assert made.of("a", "python", lambda: endless) is None
        assert time.monotonic() - began < fingerprints.START_S + 5
        monkeypatch.setattr(fingerprints, "SOURCE_S", 60.0)
        assert made.of("b", "python", lambda: TRITON.encode()) == fingerprint(TRITON, "python")
        assert made.of("c", "python", lambda: None) is None, "it was removed"
        assert made.of("b", "python", lambda: pytest.fail("it is at hand")) is not None
    finally:
        made.stop()


def entered(world: World, name: str, source: str, score_us: float) -> int:
    """The number of a ranked submission."""
    if name not in world.tokens:
        world.tokens[name] = world.services.accounts.add_user(name)
    number = world.submitted(name, content=source.encode())
    world.grade(score_us=score_us, score_ci_us=(score_us - 0.1, score_us + 0.1))
    return number


def test_a_report_names_the_pairs_of_different_users(world: World) -> None:
    copied = entered(world, "ada", TRITON, 50.0)
    entered(world, "ada", TRITON + "\n# again\n", 49.0)  # the same user's, and the better one
    copy = entered(world, "bob", disguised(TRITON), 48.0)
    entered(world, "cara", OTHER, 70.0)
    entered(world, "dan", scaffold(world.problem, "torch"), 90.0)
    report = similar_sources(world.services, world.problem)
    assert (report.sources, report.compared, report.too_short) == (4, 3, 1)
    assert report.complete
    (pair,) = report.pairs
    assert (pair.left.submission_id, pair.left.user, pair.left.rank) == (copy, "bob", 1)
    assert (pair.right.submission_id, pair.right.user) == (copied + 1, "ada")
    assert pair.similarity > 0.9
    many = similar_sources(world.services, world.problem, 0.1).pairs
    assert list(many) == sorted(many, key=lambda one: -one.similarity)


def test_a_report_ends_in_time_and_goes_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    entered(world, "ada", TRITON, 50.0)
    entered(world, "bob", disguised(TRITON), 51.0)
    late = iter([0.0, 0.0, similarity.LIMIT_S, *[similarity.LIMIT_S] * 50])
    report = similar_sources(world.services, world.problem, clock=lambda: next(late))
    assert (report.compared, report.complete) == (1, False)
    assert report.pairs == []
    monkeypatch.setattr(similarity, "MAX_SOURCES", 1)
    report = similar_sources(world.services, world.problem)
    assert (report.sources, report.compared, report.complete) == (2, 1, True)


def test_only_admins_see_it(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = entered(world, "ada", TRITON, 50.0)
    other = entered(world, "bob", disguised(TRITON), 51.0)
    path = "/api/v1/admin/similar/softmax"
    for name, status in ((None, 401), ("ada", 403), ("wilma", 403)):
        assert world.client(name).get(path).status_code == status
    found = world.client("root").get(path, params={"min": 0.9}).json()
    assert [pair["left"]["user"] for pair in found["pairs"]] == ["ada"]
    root = Browser(world)
    shown = root.get("/admin/similar/softmax")
    assert "2 of 2 sources compared" in shown
    assert "ada rank 1" in shown
    assert f'href="/submissions/{one}/compare/{other}"' in root.html("/admin/similar/softmax")
    assert "Side by side" in shown
    assert root.client.get(f"/submissions/{one}/compare/{other}").status_code == 200
    assert "No two sources" in root.get("/admin/similar/gelu")
    monkeypatch.setenv("GRADE_SERVER", world.url)
    monkeypatch.setenv("GRADE_TOKEN", world.tokens["root"])
    monkeypatch.setenv("COLUMNS", "200")
    grade = runner(capsys, "admin")
    listed = grade("similar", "softmax", "--min", "0.9")
    assert listed.status == 0
    assert f"/submissions/{one}/compare/{other}" in listed.out
    assert f"ada, #{one}, rank 1" in listed.out
    assert "2 of 2 sources compared" in listed.err
    assert grade("similar", "softmax", "--json").json["complete"] is True
    assert grade("similar", "nothing").status == 2
