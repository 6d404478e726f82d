"""`grade completion`: the shell code that completes commands and options."""

from __future__ import annotations

import click


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the code that makes SHELL complete the commands and options of `grade`.

    Put the line that evaluates it into the shell's start-up file: ~/.bashrc, ~/.zshrc; fish reads
    ~/.config/fish/completions/grade.fish.
    """
    from click.shell_completion import get_completion_class

    chosen = get_completion_class(shell)
    assert chosen is not None
    click.echo(chosen(context.find_root().command, {}, "grade", "_GRADE_COMPLETE").source())
