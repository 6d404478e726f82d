"""FlashInfer-Trace: a folder with `definitions/**/X.json` and `workloads/**/X.jsonl`.

``fib:ROOT#X`` names the problem X.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

from grader.problem.imported import SetSource
from grader.problem.spec import ProblemError
from grader.problem_sets.reading import natural_order, problem_name
from grader.problem_sets.trace_schema import (
    Definition,
    choose,
    parsed_workload,
    problem_file,
    read_definition,
    read_lines,
)

TITLE = "FlashInfer-Trace"
LICENCE = "Apache-2.0"
LINK = "https://github.com/flashinfer-ai/flashinfer-bench"
EXPECTED = "FlashInfer-Trace is a folder with definitions/ and workloads/"
TOLERANCE = {"max_atol": 1e-2, "max_rtol": 1e-2}
LOW_BIT_RATIO = 0.95
"""The share of matching elements that a mixture of experts needs; all must match elsewhere."""


def find(root: Path) -> list[Path]:
    """``ROOT#X`` of all problems below `root`."""
    found = [
        Path(f"{folder.parent}#{file.stem}")
        for folder in root.rglob("definitions")
        for file in folder.rglob("*.json")
    ]
    return sorted(found, key=natural_order)


def read(path: Path) -> SetSource | None:
    """The problem that ``ROOT#X`` names; None if there is no X."""
    text, mark, name = str(path).rpartition("#")
    root = Path(text)
    if not mark or not (root / "definitions").is_dir():
        return None
    known = {file.stem: file for file in sorted((root / "definitions").rglob("*.json"))}
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise ProblemError(f"{root}: no definition named '{name}'{hint}")
    file = known[name]
    definition = read_definition(file)
    if reason := _unsupported(definition):
        raise ProblemError(f"{file}: {reason}")
    if not definition.reference:
        raise ProblemError(f"{file}: reference: missing")
    workloads = [
        parsed_workload(definition, line.get("workload"), where)
        for lines in sorted((root / "workloads").rglob(f"{name}.jsonl"))
        for where, line in read_lines(lines)
        if isinstance(line, dict) and line.get("definition", name) == definition.name
    ]
    if not workloads:
        raise ProblemError(f"{file}: {root / 'workloads'} has no workload of it")
    chosen = choose(workloads, lambda blob: _file(root / blob), file)
    files = {
        "reference.py": definition.reference.encode(),
        "problem.json": problem_file(definition, chosen.workloads, _tolerance(definition)),
    }
    files |= {f"blobs/{blob}": content for blob, content in chosen.files.items()}
    options: dict[str, Any] = {}
    if definition.name.startswith("dsa_topk_indexer"):
        options["chooses_tokens"] = True
    if definition.name.startswith("dsa_sparse_attention"):
        # As in the set's evaluator, the first output alone may be returned.
        options["optional_outputs"] = list(definition.outputs)[1:]
    return SetSource(
        "fib", TITLE, LICENCE, LINK, problem_name("fib", name), definition.name, file, files,
        notes=tuple(chosen.notes),
        options=options,
    )  # fmt: skip


def _unsupported(definition: Definition) -> str | None:
    if definition.op_type == "sampling":
        return "op_type: its outputs are random samples, which are judged by their frequencies"
    return None


def _tolerance(definition: Definition) -> dict[str, float]:
    is_low_bit = definition.op_type == "moe" or "moe_fp8_block_scale" in definition.name
    return TOLERANCE | {"required_matched_ratio": LOW_BIT_RATIO if is_low_bit else 1.0}


def _file(path: Path) -> Path | None:
    return path if path.is_file() else None
