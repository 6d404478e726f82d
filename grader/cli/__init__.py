"""The command line: one module per command, each imported only when it is called."""

from grader.cli.app import main

__all__ = ["main"]
