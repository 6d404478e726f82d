"""The two consoles, and the one way in which text of a submission's making gets onto them."""

from __future__ import annotations

import os
import select
import sys
from typing import IO

from rich.console import Console
from rich.text import Text

from grader.report import escape


class _Console(Console):
    """Prints text as it is: no markup, no emoji codes, no guessed colours.

    A submission can therefore not style, link or hide anything by what it calls itself.
    """

    def __init__(self, file: IO[str]) -> None:
        super().__init__(file=file, markup=False, emoji=False, highlight=False, soft_wrap=False)

    def on_broken_pipe(self) -> None:
        """`grade … | head`: stop printing, keep the exit status."""
        self.quiet = True
        drop_stdout()


def out() -> Console:
    """What was asked for."""
    return _Console(sys.stdout)


def err() -> Console:
    """Progress and notes."""
    return _Console(sys.stderr)


def is_read(console: Console) -> bool:
    """Whether anybody may still read it: false once the reader of a pipe went away.

    For commands that wait long before they print again, or for ever; others find out by printing.
    """
    if console.quiet:
        return False
    poll = select.poll()
    try:
        poll.register(console.file, 0)  # errors are told without being asked for
    except ValueError:  # it is no file of the system's
        return True
    return not poll.poll(0)


def emit(text: str) -> None:
    """Write one line of machine-readable output. A reader that went away is no error."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        drop_stdout()


def drop_stdout() -> None:
    """The reader went away: let what is still to be written go nowhere."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def safe(text: str, limit: int = 300, style: str = "") -> Text:
    """Text of a submission's making, with what a terminal would obey escaped, cut to `limit`."""
    return Text(escape(text, limit), style=style)
