"""The reference of `problem.yaml` in the documentation is that of the models."""

from __future__ import annotations

import pytest

from grader.problem.spec import Accumulate, Spec
from scripts.problem_reference import EXAMPLES, PAGE, START, reference, updated


def test_the_page_is_up_to_date() -> None:
    page = PAGE.read_text("utf-8")
    assert page == updated(page), "run `python -m scripts.problem_reference` and commit the page"


def test_every_key_is_in_a_table() -> None:
    text = reference()
    for key in (*Spec.model_fields, *Accumulate.model_fields):
        assert f"\n| `{key}` | " in text
    assert "| `operands` | text | – | none | `bf16` | Precision to which a kernel may round" in text
    assert "| `load_s` | number, ≥ 0.1 | s | `120` | `300` | " in text
    assert "| `unit` | `fp32` or `tensor` | – | `fp32` | `tensor` | " in text


def test_no_cell_breaks_its_table() -> None:
    for line in reference().splitlines():
        if line.startswith("|"):
            assert line.replace(r"\|", "").count("|") == 7, line


@pytest.mark.parametrize(
    ("place", "example", "error"),
    [("Limits.load_s", "0.01", ValueError), ("Argument.role", "inwards", ValueError)],
)
def test_an_example_must_be_valid(
    monkeypatch: pytest.MonkeyPatch, place: str, example: str, error: type[Exception]
) -> None:
    monkeypatch.setitem(EXAMPLES, place, example)
    with pytest.raises(error):
        reference()


def test_a_key_without_an_example_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(EXAMPLES, "Case.calls")
    with pytest.raises(KeyError, match=r"Case\.calls has no example"):
        reference()


def test_text_beside_the_tables_is_kept() -> None:
    page = updated(f"# Title\n\nWords.\n\n{START}\n\nan older table\n")
    assert page.startswith("# Title\n\nWords.\n\n")
    assert "an older table" not in page
    with pytest.raises(ValueError, match="is missing"):
        updated("# Title\n")
