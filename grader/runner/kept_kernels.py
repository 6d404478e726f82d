"""Hand on what Triton compiled: from the runner that tests a submission to the one that is timed.

The judge carries the bytes from one sandbox of a submission to the next, and never looks at them.
"""

from __future__ import annotations

import io
import os
from contextlib import suppress
from pathlib import Path
from zipfile import ZipFile

from grader.runner.load_submission import read_lent, write_lent


def keep_kernels(fd: int) -> int:
    """Write Triton's cache into lent memory. Returns the number of bytes; 0 where that fails, such
    as without room: the next runner compiles again."""
    with suppress(Exception):
        packed = io.BytesIO()
        with ZipFile(packed, "w", strict_timestamps=False) as archive:
            for path in filter(Path.is_file, _cache().rglob("*")):
                archive.write(path, path.relative_to(_cache()))
        content = packed.getvalue()
        if archive.namelist() and len(content) <= os.fstat(fd).st_size:
            write_lent(fd, content)
            return len(content)
    return 0


def restore_kernels(fd: int, nbytes: int) -> None:
    """Put what `keep_kernels` wrote into Triton's cache, beside what is there. What is broken is
    left out: the runner then compiles it."""
    # A hostile archive may raise anything.
    with suppress(Exception), ZipFile(io.BytesIO(read_lent(fd, nbytes))) as archive:
        for name in archive.namelist():
            # This process has loaded Triton's own libraries from there: writing to one ends it.
            if not (_cache() / name).exists():
                archive.extract(name, _cache())  # an outside name is changed, a link becomes a file


def _cache() -> Path:
    return Path(os.environ["TRITON_CACHE_DIR"])
