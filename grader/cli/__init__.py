"""The command line: one module per command, each imported only when it is called."""

import sys

try:
    from grader.cli.app import main
except KeyboardInterrupt:  # as early as this; later ones are the business of `main`
    print("grade: interrupted", file=sys.stderr)
    sys.exit(130)

__all__ = ["main"]
