"""The command line: one module per command, imported when the command is called."""

import sys

try:
    from grader.cli.app import main
except KeyboardInterrupt:  # during the import; `main` handles later ones
    print("grade: interrupted", file=sys.stderr)
    sys.exit(130)

__all__ = ["main"]
