"""`python -m grader.cli`, the same as `grade`."""

import sys

from grader.cli.app import main

sys.exit(main())
