"""`grade new`: write a starter file."""

from __future__ import annotations

from pathlib import Path

import click

from grader.cli.options import find_problem
from grader.submission import STARTERS


@click.command()
@click.argument("problem")
@click.option(
    "--lang",
    type=click.Choice(list(STARTERS)),
    default="triton",
    show_default=True,
    help="Language of the file.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File to write [default: PROBLEM_LANG.py or .cu, in this folder].",
)
def new(problem: str, lang: str, output: Path | None) -> None:
    """Write a starter file for PROBLEM that loads and runs.

    torch is a plain PyTorch solution and is accepted. triton and cuda run, and are a wrong answer
    until you write their kernels. For a problem of another set, such as kernelbot:PATH, torch and
    triton are the same file, in that set's own convention, and a wrong answer too.
    """
    from grader.cli.output.terminal import print_note
    from grader.problem.scaffold import scaffold

    found = find_problem(problem)
    path = output or Path(f"{found.name}_{lang}{STARTERS[lang]}")
    if path.suffix != STARTERS[lang]:
        raise click.UsageError(f"{path}: the name of a {lang} file ends in {STARTERS[lang]}")
    source = scaffold(found, lang)
    try:
        _write(path, source)
    except FileExistsError:
        raise click.UsageError(f"{path} already exists; choose another file with -o") from None
    except OSError as error:
        raise click.UsageError(f"{path}: cannot be written ({error.strerror})") from None
    print_note(f"wrote {path}; try it: grade practice {problem} {path}")


def _write(path: Path, source: str) -> None:
    """Create the file; remove it if it cannot be written completely."""
    file = path.open("x", encoding="utf-8")
    try:
        with file:
            file.write(source)
    except BaseException:
        path.unlink()
        raise
