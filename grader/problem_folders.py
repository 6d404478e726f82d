"""Where a problem is found by its name."""

from __future__ import annotations

from pathlib import Path


def problem_roots() -> list[Path]:
    """Folders in which a problem is looked up by name; the first match wins."""
    repository = Path(__file__).resolve().parents[1] / "problems"
    here = Path("problems")
    return [here, repository] if here.resolve() != repository else [here]


def problem_folder(text: str) -> Path | None:
    """The folder that a path or a name means; None for a name of no folder. A named problem comes
    before a folder here of that name that is no problem."""
    folder = Path(text)
    is_bare = len(folder.parts) == 1 and text not in (".", "..")
    if not is_bare or (folder / "problem.yaml").exists():
        return folder
    for root in problem_roots():
        if (root / text).is_dir():
            return root / text
    return folder if folder.is_dir() else None


def problem_folders() -> list[Path]:
    """Folder of every problem that can be found by its name, sorted by name."""
    found: dict[str, Path] = {}
    for root in problem_roots():
        for spec in sorted(root.glob("*/problem.yaml")):
            found.setdefault(spec.parent.name, spec.parent)
    return [found[name] for name in sorted(found)]
