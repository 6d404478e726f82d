"""Name what Triton caches by Triton's version.

Triton's names depend on a hash of its own files, of which one has 400 MB: half a second in each new
process. The cache of a sandbox is its own, and has one Triton. PyTorch's compiler starts processes
that compile for this one and have the hash in their names, so it is used once that is loaded.
"""

from __future__ import annotations

import sys

TORCH_COMPILER = "torch._dynamo"
"""The module that PyTorch's compiler begins with."""


def install() -> None:
    """Use the version in this process and its forks."""
    import triton
    from triton.runtime import cache

    if cache.triton_key.__module__ == __name__:
        return
    of_files = cache.triton_key

    def key() -> str:
        is_loaded = sys.modules.get(TORCH_COMPILER) is not None
        return str(of_files() if is_loaded else triton.__version__)

    cache.triton_key = key
