"""`grade new-problem`: write the folder of a new problem."""

from __future__ import annotations

from pathlib import Path

import click

from grader.cli.options import find_problem

KINDS = ("elementwise", "reduction", "normalization", "matmul")


@click.command("new-problem")
@click.argument("folder", metavar="NAME", type=click.Path(path_type=Path))
@click.option(
    "--kind",
    type=click.Choice(KINDS),
    help="Kind of operation, for the cases and the checks [default: elementwise].",
)
@click.option("--like", metavar="PROBLEM", help="Copy this problem instead, under the new name.")
def new_problem(folder: Path, kind: str | None, like: str | None) -> None:
    """Write the folder of a new problem: spec, inputs, reference, checks and statement.

    It verifies as soon as the function in its reference.py is filled in. A NAME with a slash is the
    folder to write; a plain one goes to ./problems if there is such a folder. With --like, the copy
    computes what the other problem does until you change it.
    """
    from grader.cli.output.terminal import print_note
    from grader.cli.problem_scaffold import copied_files, kind_files, write_problem

    if kind and like:
        raise click.UsageError("--kind and --like exclude each other; leave one out")
    is_plain = len(folder.parts) == 1 and str(folder) not in (".", "..")
    target = Path("problems") / folder if is_plain and Path("problems").is_dir() else folder
    name = target.name
    files = copied_files(find_problem(like), name) if like else kind_files(kind or KINDS[0], name)
    write_problem(target, files)
    what = "change it step by step" if like else "fill in the function in its reference.py"
    print_note(f"wrote {target}; {what}, then: grade verify {target if not is_plain else name}")
