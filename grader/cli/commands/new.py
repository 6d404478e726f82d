"""`grade new`: write a file to start from."""

from __future__ import annotations

from pathlib import Path

import click

from grader.cli.options import find_problem

SUFFIXES = {"triton": ".py", "torch": ".py", "cuda": ".cu"}


@click.command()
@click.argument("problem")
@click.option(
    "--lang",
    type=click.Choice(list(SUFFIXES)),
    default="triton",
    show_default=True,
    help="What to write it in.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where to write it [default: PROBLEM_LANG with its suffix, here].",
)
def new(problem: str, lang: str, output: Path | None) -> None:
    """Write a file that loads and runs, to start solving PROBLEM from.

    torch is the plain PyTorch answer and passes. triton and cuda run, and are wrong answers until
    their kernels are filled in.
    """
    from grader.cli.output.terminal import err
    from grader.cli.scaffold import scaffold

    found = find_problem(problem)
    path = output or Path(f"{found.name}_{lang}{SUFFIXES[lang]}")
    if path.suffix != SUFFIXES[lang]:
        raise click.UsageError(f"{path}: a {lang} file ends in {SUFFIXES[lang]}")
    source = scaffold(found, lang)
    try:
        _write(path, source)
    except FileExistsError:
        raise click.UsageError(f"{path} is there already; name another file with -o") from None
    except OSError as error:
        raise click.UsageError(f"{path}: cannot be written ({error.strerror})") from None
    err().print(f"wrote {path}; try it: grade practice {problem} {path}", soft_wrap=True)


def _write(path: Path, source: str) -> None:
    """A new file, whole or not at all."""
    file = path.open("x", encoding="utf-8")
    try:
        with file:
            file.write(source)
    except BaseException:
        path.unlink()
        raise
