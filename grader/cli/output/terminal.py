"""The two consoles, and the escaping of text that a submission chose."""

from __future__ import annotations

import json
import os
import select
import sys
from typing import IO, Any

from pydantic import BaseModel
from rich.console import Console
from rich.text import Text

from grader.report import escape


class PlainConsole(Console):
    """Prints text as it is: no markup, no emoji codes, no guessed colours.

    A submission can therefore not style, link or hide anything through a name or a message.
    """

    def __init__(self, file: IO[str]) -> None:
        super().__init__(file=file, markup=False, emoji=False, highlight=False, soft_wrap=False)

    def on_broken_pipe(self) -> None:
        """Stop printing and keep the exit status, as in `grade … | head`."""
        self.quiet = True
        discard_stdout()


def stdout() -> Console:
    """Console for the result of a command."""
    return PlainConsole(sys.stdout)


def stderr() -> Console:
    """Console for progress and notes."""
    return PlainConsole(sys.stderr)


def print_note(text: str, style: str = "") -> None:
    """Print a note on stderr; control characters are escaped."""
    stderr().print(safe_text(text, 1000, style), soft_wrap=True)


def print_warning(text: str) -> None:
    """Print a warning on stderr; control characters are escaped."""
    print_note(text, "yellow")


def reader_is_gone(console: Console) -> bool:
    """Whether the reader of a pipe has closed it.

    For commands that wait long between two lines; others notice when they print.
    """
    if console.quiet:
        return True
    poll = select.poll()
    try:
        poll.register(console.file, 0)  # errors are reported in any case
    except ValueError:  # not backed by a file descriptor
        return False
    return bool(poll.poll(0))


def print_json(value: BaseModel | dict[str, Any]) -> None:
    """Print one JSON object on a line of stdout. A closed pipe is no error."""
    text = value.model_dump_json() if isinstance(value, BaseModel) else json.dumps(value)
    try:
        print(text, flush=True)
    except BrokenPipeError:
        discard_stdout()


def discard_stdout() -> None:
    """Send what is still buffered for stdout to /dev/null: its reader is gone."""
    with open(os.devnull, "wb") as devnull:
        os.dup2(devnull.fileno(), sys.stdout.fileno())


def safe_text(text: str, limit: int = 300, style: str = "") -> Text:
    """Text that a submission chose: control characters escaped, cut to `limit` characters."""
    return Text(escape(text, limit), style=style)
