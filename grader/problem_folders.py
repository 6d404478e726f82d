"""Where a problem is found by its name."""

from __future__ import annotations

from pathlib import Path


def problem_roots() -> list[Path]:
    """Folders in which a problem is looked up by name; the first match wins."""
    repository = Path(__file__).resolve().parents[1] / "problems"
    here = Path("problems")
    return [here, repository] if here.resolve() != repository else [here]


def problem_folders() -> list[Path]:
    """Folder of every problem that can be found by its name, sorted by name."""
    found: dict[str, Path] = {}
    for root in problem_roots():
        for spec in sorted(root.glob("*/problem.yaml")):
            found.setdefault(spec.parent.name, spec.parent)
    return [found[name] for name in sorted(found)]
