"""The documentation: what it says about settings, metrics, commands and files is what the code has.

Lengths are bounded too, so that pages stay readable.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from rich.console import Console

from grader.cli.app import COMMANDS
from grader.cli.output.render import render
from grader.report import Report
from grader.server.services import metrics
from grader.server.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
DOCS = ROOT / "docs"
HOSTING = (DOCS / "hosting.md").read_text("utf-8")
RESULTS = ROOT / "benchmarks" / "results"
PAGES = [
    README,
    ROOT / "CHANGELOG.md",
    ROOT / "submissions" / "README.md",
    ROOT / "sandbox" / "README.md",
    ROOT / "benchmarks" / "README.md",
    *sorted(DOCS.glob("*.md")),
]
LINKED = [*PAGES, *sorted(RESULTS.glob("*.md"))]
"""Results are dated: their links must lead somewhere, but they may name files that have gone."""
SOURCES = [
    path
    for folder in ("grader", "benchmarks", "scripts", "tests")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".sh")
]

ROOMS = "grader|benchmarks|docs|tests|problems|reference|scripts|submissions|sandbox"
NAMED = re.compile(rf"(?<![\w/.-])(?:{ROOMS})/[\w./-]*\w/?")
"""A path below the repository's root, as text names it."""
SUBMISSION = re.compile(
    r"`(?:\w+/)?(?:accepted|rejected|wrong_answer|\w+_error|\w+_limit_exceeded)/\w+\.(?:py|cu)`"
)
"""An example submission, below `submissions/` or `submissions/softmax/`."""
MODULE = re.compile(r"python -m ((?:benchmarks|scripts)\.\w+)")
COMMAND = re.compile(r"(?:^    |`)grade ([a-z]+)(?![a-z]| on )", re.MULTILINE)
"""A command in a code block or in backticks; `grade serves on …` is what one prints."""


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def anchors(page: Path) -> Iterator[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    for heading in re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE):
        yield re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_every_setting_is_documented_with_its_default() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` \| ([\d.]+|closed) \|", HOSTING, re.MULTILINE)
    documented = {name: text if text == "closed" else float(text) for name, text in rows}
    assert documented == {one.name.upper(): one.default for one in fields(Settings)}


def test_every_metric_is_documented() -> None:
    source = Path(metrics.__file__).read_text("utf-8")
    for name in re.findall(r'"(grade_[a-z_]+)"', source):
        assert f"`{name}" in HOSTING


@pytest.mark.parametrize("page", LINKED, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text("utf-8")
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link:
            continue
        target, _, anchor = link.partition("#")
        linked = page.parent / target if target else page
        assert linked.exists(), link
        assert not anchor or anchor in anchors(linked), link
    for label in re.findall(r"\]\[(\w+)\]", text):
        assert f"\n[{label}]: " in text, f"[{label}] is no link"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_named_files_exist(page: Path) -> None:
    text = re.sub(r"\]\([^)]*\)|<[^>]*>|https?://\S+", "", page.read_text("utf-8"))
    for path in NAMED.findall(text):
        assert (ROOT / path).exists(), path
    for quoted in SUBMISSION.findall(text):
        example = quoted.strip("`")
        folder = ROOT / "submissions"
        assert (folder / example).exists() or (folder / "softmax" / example).exists(), example


@pytest.mark.parametrize("page", LINKED, ids=name_of)
def test_named_scripts_exist(page: Path) -> None:
    for module in MODULE.findall(page.read_text("utf-8")):
        assert (ROOT / module.replace(".", "/")).with_suffix(".py").exists(), module


@pytest.mark.parametrize("page", LINKED, ids=name_of)
def test_named_commands_exist(page: Path) -> None:
    for command in COMMAND.findall(page.read_text("utf-8")):
        assert command in COMMANDS, f"grade {command}"


def test_sources_name_pages_and_scripts_that_exist() -> None:
    for source in SOURCES:
        for path in re.findall(
            r"\b(?:docs|benchmarks)/[\w/-]+\.(?:md|py|sh)\b", source.read_text()
        ):
            assert (ROOT / path).exists(), f"{name_of(source)}: {path}"


def test_every_benchmark_is_in_its_table() -> None:
    table = (ROOT / "benchmarks" / "README.md").read_text("utf-8")
    for script in (ROOT / "benchmarks").glob("*.py"):
        if "click.command" in script.read_text() or "click.group" in script.read_text():
            assert f"python -m benchmarks.{script.stem}" in table, script.stem


def test_every_result_is_in_its_index() -> None:
    index = (RESULTS / "README.md").read_text("utf-8")
    for page in RESULTS.glob("*.md"):
        assert page.stem == "README" or f"]({page.name})" in index, page.name


def test_the_report_of_the_readme_is_a_recorded_one() -> None:
    """Each of its lines is one of the report, as the terminal shows it."""
    report = Report.model_validate_json((ROOT / "benchmarks/recorded_report.json").read_bytes())
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(render(report, 100))
    shown = {" ".join(line.split()) for line in console.export_text().splitlines()}
    quoted = re.search(r"^```\n(.*?)^```", README.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert quoted is not None
    lines = [" ".join(line.split()) for line in quoted[1].splitlines()]
    assert len(lines) > 20
    left_out = {"", "…"}
    assert [line for line in lines if line not in shown | left_out] == []


def test_every_page_is_linked_from_the_readme() -> None:
    text = README.read_text("utf-8")
    for page in DOCS.glob("*.md"):
        assert f"](docs/{page.name})" in text, page.name


@pytest.mark.parametrize(
    ("page", "lines"), [(README, 120), (DOCS / "measurements.md", 200)], ids=["README", "results"]
)
def test_pages_stay_short(page: Path, lines: int) -> None:
    assert len(page.read_text("utf-8").splitlines()) <= lines


def test_the_readme_has_no_long_line() -> None:
    long = [line for line in README.read_text("utf-8").splitlines() if len(line) > 120]
    assert long == []


def test_pictures_are_small() -> None:
    for picture in (DOCS / "images").glob("*"):
        assert picture.stat().st_size <= 250_000, picture.name


def test_the_glossary_has_few_terms_each_in_a_sentence() -> None:
    text = (DOCS / "glossary.md").read_text("utf-8")
    terms = re.findall(r"^- \*\*(.+?)\*\*: (.+?)(?=^- |^#|\Z)", text, re.MULTILINE | re.DOTALL)
    assert len({name for name, _ in terms}) == len(terms) == len(re.findall(r"^- ", text, re.M))
    assert len(terms) <= 40
    for name, sentence in terms:
        plain = re.sub(r"`[^`]*`|<!--.*?-->", "", sentence).strip()
        assert plain.endswith("."), name
        assert not re.search(r"\. [A-Z]", plain), f"{name}: more than one sentence"


def test_results_of_the_readme_are_in_the_measurements() -> None:
    """A cell of the table of claims has one number, or one of another; all stand in the tables."""
    text = README.read_text("utf-8").split("## Performance")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \| (yes|no) \|$", text, re.MULTILINE)
    assert len(rows) >= 10
    measured = (DOCS / "measurements.md").read_text("utf-8")
    for claim, result, target, _ in rows:
        for cell in (result, target):
            assert re.fullmatch(r"[\d.,]+(?: of [\d.,]+)?(?: (?:%|s|µs))?", cell), cell
        assert re.search(rf"(?<![\d.,]){re.escape(result.split()[0])}(?![\d])", measured), claim
