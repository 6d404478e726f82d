"""SOL-ExecBench: a folder with `definition.json`, `reference.py` and `workload.jsonl`."""

from __future__ import annotations

from pathlib import Path

from grader.problem.imported import SetSource
from grader.problem.spec import ProblemError
from grader.problem_sets.reading import natural_order, problem_name, read_file
from grader.problem_sets.trace_schema import (
    choose,
    parsed_workload,
    problem_file,
    read_definition,
    read_lines,
)

TITLE = "SOL-ExecBench"
LICENCE = "NVIDIA Evaluation Dataset License"
LINK = "https://github.com/NVIDIA/SOL-ExecBench"
EXPECTED = "a SOL-ExecBench problem is a folder with definition.json and workload.jsonl"


def find(root: Path) -> list[Path]:
    """The folders of all problems below `root`."""
    files = root.rglob("definition.json")
    return sorted({f.parent for f in files if _has_workloads(f.parent)}, key=natural_order)


def read(folder: Path) -> SetSource | None:
    """The problem in a folder; None if there is none."""
    path = folder / "definition.json"
    if not path.is_file() or not _has_workloads(folder):
        return None
    definition = read_definition(path)
    if definition.op_type == "sampling":
        raise ProblemError(f"{path}: op_type: its outputs are random samples")
    reference = definition.reference.encode() or read_file(folder / "reference.py")
    lines = read_lines(folder / "workload.jsonl")
    workloads = [parsed_workload(definition, line, where) for where, line in lines]
    chosen = choose(workloads, lambda blob: _located(folder, blob), folder / "workload.jsonl")
    files = {
        "reference.py": reference,
        "problem.json": problem_file(definition, chosen.workloads, None),
    }
    files |= {f"blobs/{blob}": content for blob, content in chosen.files.items()}
    name = problem_name("sol", folder.parent.name, folder.name)
    return SetSource(
        "sol", TITLE, LICENCE, LINK, name, definition.name, folder, files,
        notes=tuple(chosen.notes),
    )  # fmt: skip


def _has_workloads(folder: Path) -> bool:
    return (folder / "workload.jsonl").is_file()


def _located(folder: Path, blob: str) -> Path | None:
    """A file that a workload names by its path in the checkout, or in a folder above it."""
    return next((up / blob for up in (folder, *folder.parents) if (up / blob).is_file()), None)
