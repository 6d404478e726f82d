from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel, Field
from pydantic.fields import FieldInfo

from grader.problem import JudgedVersion, Problem, Spec
from grader.problem.judged_version import TEXT_KEYS
from tests.problem.conftest import YAML, MakeFolder

WHOLE = """\
format: 1
title: Scale
summary: Every element times two.
entry: scale
gpu: H100
args:
  - {name: x, dtype: dtype, shape: [rows, cols]}
  - {name: out, role: out, dtype: dtype, shape: [rows, cols]}
cuda_dtypes: [fp32, fp16]
tolerances:
  fp32: {atol: 1e-6, rtol: 1.0e-6, rel_l2: 1.0e-6}
  fp16: {atol: 1e-3, rtol: 1.0e-3, rel_l2: 1.0e-3}
accumulate: {dtype: fp32, terms: 1}
cost: {bytes: 2 * rows * cols * itemsize, flops: rows * cols}
limits: {call_s: 30}
tests:
  - {name: tiny, params: {rows: 1, cols: 3, dtype: fp32, values: plain}}
  - {name: wide, params: {rows: 2000, cols: 99, dtype: fp16, values: plain}}
benchmarks:
  - {name: large, device: cuda, params: {rows: 4096, cols: 4096, dtype: fp32, values: plain}}
variants: {values: [plain, large], dtype: [fp32]}
domain:
  - {rows: {max: 1000}, cols: {max: 90}, dtype: [fp32, fp16], values: [plain]}
"""
"""A spec that sets a key of every kind."""


@pytest.fixture
def folder(make_folder: MakeFolder) -> Path:
    made = make_folder()
    (made / "problem.yaml").write_text(WHOLE)
    (made / "checks.py").write_text("def magnitude(x):\n    return x\n")
    return made


def digest_after(folder: Path, file: str, old: str, new: str) -> str:
    """The digest with `old` replaced by `new` in a file, which is written back afterwards."""
    path = folder / file
    before = path.read_text()
    assert before.count(old) == 1, old
    path.write_text(before.replace(old, new))
    try:
        return Problem.load(folder).digest
    finally:
        path.write_text(before)


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("statement.md", "# Scale\n", "# Scale, with a comma\n"),
        ("problem.yaml", "title: Scale", "title: Scaling"),
        ("problem.yaml", "Every element times two.", "Every element, times two."),
        ("problem.yaml", "entry: scale\n", "entry: scale\ntopic: fusion\n"),
        ("problem.yaml", "entry: scale\n", "entry: scale\ndifficulty: 3\n"),
        ("problem.yaml", "entry: scale\n", "entry: scale\nlimited_by: memory\n"),
        ("problem.yaml", "entry: scale\n", "# a comment\nentry:  'scale'\n"),
        # The same values in another order, or written in another way.
        ("problem.yaml", "entry: scale\ngpu: H100\n", "gpu: H100\nentry: scale\n"),
        ("problem.yaml", "{name: x, dtype: dtype,", "{dtype: dtype, name: x,"),
        ("problem.yaml", "{rows: 1, cols: 3,", "{cols: 3, rows: 1,"),
        ("problem.yaml", "fp32: {atol: 1e-6,", "fp32: {atol: 0.000001,"),
        # A default that is written out.
        ("problem.yaml", "{name: x, dtype", "{name: x, role: in, dtype"),
        ("problem.yaml", "limits: {call_s: 30}", "limits: {call_s: 30, load_s: 120}"),
        ("problem.yaml", "rows: {max: 1000}", "rows: {min: 1, max: 1000}"),
        ("problem.yaml", "dtype: [fp32, fp16], v", "dtype: {choices: [fp32, fp16]}, v"),
    ],
)
def test_texts_order_and_defaults_are_no_part_of_a_version(
    folder: Path, file: str, old: str, new: str
) -> None:
    assert digest_after(folder, file, old, new) == Problem.load(folder).digest


@pytest.mark.parametrize(
    ("file", "old", "new", "change"),
    [
        ("reference.py", "return x * 2\n", "return x * 2  # twice\n", "reference.py: changed"),
        ("inputs.py", "...", "pass", "inputs.py: changed"),
        ("checks.py", "return x\n", "return 2 * x\n", "checks.py: changed"),
        ("problem.yaml", "gpu: H100\n", "", "gpu: H100 → not set"),
        ("problem.yaml", "call_s: 30", "call_s: 40", "limits.call_s: 30.0 → 40.0"),
        ("problem.yaml", "limits: {call_s: 30}\n", "", "limits.call_s: 30.0 → not set"),
        ("problem.yaml", "call_s: 30", "call_s: 30, pids: 2048", "limits.pids: not set → 2048"),
        (
            "problem.yaml",
            "fp16: {atol: 1e-3",
            "fp16: {atol: 2e-3",
            "tolerances.fp16.atol: 0.001 → 0.002",
        ),
        (
            "problem.yaml",
            "{name: tiny, params: {rows: 1,",
            "{name: tiny, params: {rows: 5,",
            "tests[tiny].params.rows: 1 → 5",
        ),
        (
            "problem.yaml",
            "{name: x, dtype",
            "{name: x, structured: true, dtype",
            "args[x].structured: not set → true",
        ),
        (
            "problem.yaml",
            "  - {name: tiny, params: {rows: 1, cols: 3, dtype: fp32, values: plain}}\n",
            "",
            "tests[tiny]: removed",
        ),
        (
            "problem.yaml",
            "role: out, dtype: dtype, shape: [rows, cols]}",
            "role: out, dtype: dtype, shape: [rows, 1 * cols]}",
            "args[out].shape[1]: cols → 1 * cols",
        ),
        (
            "problem.yaml",
            "{values: [plain, large], dtype: [fp32]}",
            "{dtype: [fp32], values: [plain, large]}",
            "variants: in another order",
        ),
        (
            "problem.yaml",
            "{values: [plain, large], dtype",
            "{values: [large, plain], dtype",
            "variants[values].values[0]: plain → large",
        ),
        # Drawn cases depend on the order in which their parameters are drawn.
        (
            "problem.yaml",
            "{rows: {max: 1000}, cols: {max: 90},",
            "{cols: {max: 90}, rows: {max: 1000},",
            "domain[0]: in another order",
        ),
        ("problem.yaml", "max: 1000", "max: 999", "domain[0][rows].max: 1000 → 999"),
    ],
)
def test_what_changes_a_verdict_or_a_time_changes_the_version(
    folder: Path, file: str, old: str, new: str, change: str
) -> None:
    before = Problem.load(folder)
    assert digest_after(folder, file, old, new) != before.digest
    (folder / file).write_text((folder / file).read_text().replace(old, new))
    changes = Problem.load(folder).judged.changes_since(before.judged)
    assert change in changes
    assert len(changes) == (2 if "variants[values]" in change else 1)
    assert before.judged.changes_since(before.judged) == []


def test_a_file_that_is_added_or_removed(folder: Path) -> None:
    with_checks = Problem.load(folder).judged
    (folder / "checks.py").unlink()
    (folder / "notes.txt").write_text("not part of the problem")
    without = Problem.load(folder).judged
    assert without.digest != with_checks.digest
    assert without.changes_since(with_checks) == ["checks.py: removed"]
    assert with_checks.changes_since(without) == ["checks.py: added"]


def test_equal_numbers_of_other_types_are_changes() -> None:
    """A generator may tell 1, 1.0 and true apart."""
    one, real, true = (
        JudgedVersion("scale", {"tests": [{"name": "a", "params": {"n": value}}]}, {})
        for value in (1, 1.0, True)
    )
    assert len({one.digest, real.digest, true.digest}) == 3
    assert real.changes_since(one) == ["tests[a].params.n: 1 → 1.0"]
    assert true.changes_since(one) == ["tests[a].params.n: 1 → true"]


def test_a_long_value_is_cut() -> None:
    old = JudgedVersion("scale", {"accumulate": {"terms": "n" * 100}}, {})
    (change,) = JudgedVersion("scale", {}, {}).changes_since(old)
    assert change == f"accumulate.terms: {'n' * 57}… → not set"


def test_two_problems_with_the_same_content_have_a_ranking_each(folder: Path) -> None:
    copy = folder.with_name("scale_again")
    shutil.copytree(folder, copy)
    one, other = Problem.load(folder), Problem.load(copy)
    assert one.digest != other.digest
    assert one.judged.spec == other.judged.spec


def test_a_stored_version_has_the_same_digest(folder: Path) -> None:
    judged = Problem.load(folder).judged
    spec, files = json.loads(json.dumps([judged.spec, judged.files]))
    assert JudgedVersion("scale", spec, files).digest == judged.digest


class WiderLimits(BaseModel):
    """Limits of a later grade."""

    call_s: float = 20
    load_s: float = 120
    sleep_s: float = 5


class WiderSpec(Spec):
    """The spec of a later grade, with new optional keys."""

    limits: WiderLimits = WiderLimits()  # type: ignore[assignment]
    seeds: list[int] = Field(default_factory=list)
    mode: str = "fast"


def test_a_new_optional_key_changes_no_version(folder: Path) -> None:
    problem = Problem.load(folder)
    data = problem.spec.model_dump(mode="json")
    data["limits"] = {"call_s": 30.0}
    wider = WiderSpec.model_validate(data)
    assert JudgedVersion.of("scale", wider, problem.files).digest == problem.digest
    used = WiderSpec.model_validate(data | {"mode": "slow"})
    assert JudgedVersion.of("scale", used, problem.files).digest != problem.digest


def models(model: type[BaseModel], found: dict[str, type[BaseModel]]) -> dict[str, type[BaseModel]]:
    """A model and all models in its fields, by name."""
    found[model.__name__] = model
    for field in model.model_fields.values():
        for inner in inside(field.annotation):
            if inner.__name__ not in found:
                models(inner, found)
    return found


def inside(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from inside(argument)


def default(field: FieldInfo) -> Any:
    value = field.get_default(call_default_factory=True)
    return value.model_dump() if isinstance(value, BaseModel) else value


DEFAULTS: dict[str, dict[str, Any]] = {
    "Spec": {
        "cuda_dtypes": [], "tolerances": {}, "accumulate": None, "gpu": None, "variants": {},
        "domain": [], "nested": {}, "cost": None,
        "limits": {
            "source_bytes": 1 << 20, "load_s": 120, "call_s": 20, "compile_s": 120, "total_s": 600,
            "memory_bytes": 8 << 30, "device_memory_bytes": 16 << 30, "scratch_bytes": 1 << 30,
            "output_bytes": 64 << 20, "pids": 1024,
        },
    },
    "Argument": {
        "role": "in", "kind": "tensor", "shape": [], "contiguous": True, "structured": False,
        "tolerances": {}, "strides": [], "weight": False, "scratch": False, "unique": True,
        "optional": False,
    },
    "Tolerance": {"budget": 4.0},
    "Accumulate": {"roundings": 16, "operands": None},
    "Cost": {"unit": "fp32"},
    "Case": {"calls": 1, "device": "any", "tolerances": {}},
    "ParameterDomain": {"min": "1", "max": None, "multiple_of": "1", "choices": None},
}  # fmt: skip
"""The defaults of all judged keys. A new key is added here. A changed default changes what problems
without the key mean, and no digest: give it a new `format`."""


def test_no_default_has_changed() -> None:
    found = {
        name: {
            key: default(field)
            for key, field in model.model_fields.items()
            if not field.is_required() and key not in TEXT_KEYS
        }
        for name, model in models(Spec, {}).items()
    }
    assert found.pop("Limits") == DEFAULTS["Spec"]["limits"]
    assert found == DEFAULTS


def test_the_digest_of_a_problem_stays_the_same_from_release_to_release(
    make_folder: MakeFolder,
) -> None:
    """A change of this number empties every board."""
    folder = make_folder()
    assert (folder / "problem.yaml").read_text() == YAML
    assert Problem.load(folder).digest == (
        "0f40b24b8135ef865ce38346ce264a8461711bd179d0a57324bfc5719c100d5b"
    )
