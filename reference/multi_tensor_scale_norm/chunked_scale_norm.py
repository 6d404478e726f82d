"""Unscaling and norm in Triton: one launch for all tensors, whose addresses are in a table, and a
second one that adds the chunks' sums of squares. A norm that is not finite proves an overflow.

The table depends only on addresses and lengths. It is built once per set of tensors and kept.
"""

from itertools import accumulate

import torch
import triton
import triton.language as tl

CHUNK = 8192
WARPS = 8
SUMS = 8192
"""Sums of chunks that the second launch adds at a time."""
TABLES_BYTES = 32 << 20


class Tables:
    """Tables of addresses: pinned copies on the host, and what the kernel reads on the device.

    Pinned memory is taken once, on the first call, and a table is never moved or reused for other
    tensors: a copy that was captured into a CUDA graph stays valid when the graph is replayed.
    """

    def __init__(self, device):
        self.known = {}
        self.pinned = None
        self.used = 0
        if device.type == "cuda":
            self.pinned = torch.empty(TABLES_BYTES // 8, dtype=torch.int64, pin_memory=True)
            self.on_device = torch.empty(TABLES_BYTES // 8, dtype=torch.int64, device=device)

    def find(self, tensors, chunk):
        """The table of these tensors, int64 on their device: address, length and first chunk of
        each tensor, then the tensor of each chunk. Also the number of chunks, and whether every
        address suits 16-byte loads.
        """
        addresses = [tensor.data_ptr() for tensor in tensors]
        lengths = [tensor.numel() for tensor in tensors]
        key = (chunk, tuple(addresses), tuple(lengths))
        if key not in self.known:
            chunks = [-(-length // chunk) for length in lengths]
            *starts, total = accumulate(chunks, initial=0)
            owners = [index for index, count in enumerate(chunks) for _ in range(count)]
            aligned = all(address % 16 == 0 for address in addresses)
            words = [*addresses, *lengths, *starts, *owners]
            self.known[key] = self._place(words), total, aligned
        return self.known[key]

    def _place(self, words):
        words = torch.tensor(words, dtype=torch.int64)
        if self.pinned is None:
            return words
        start, self.used = self.used, self.used + words.numel()
        if self.used > self.pinned.numel():
            raise RuntimeError("too many sets of tensors for the tables")
        self.pinned[start : self.used].copy_(words)
        table = self.on_device[start : self.used]
        table.copy_(self.pinned[start : self.used], non_blocking=True)
        return table


@triton.jit
def _scale(table, sums, tensors, inv_scale, CHUNK: tl.constexpr, ALIGNED: tl.constexpr):
    owner = tl.load(table + 3 * tensors + tl.program_id(0))
    length = tl.load(table + tensors + owner)
    first = (tl.program_id(0) - tl.load(table + 2 * tensors + owner)) * CHUNK
    at = first + tl.arange(0, CHUNK)
    grads = tl.load(table + owner).to(tl.pointer_type(tl.float32)) + at
    if ALIGNED:
        grads = tl.multiple_of(grads, 16)
    # A mask of unknown length would forbid wide loads, so whole chunks go without one.
    if first + CHUNK <= length:
        values = tl.load(grads) * inv_scale
        tl.store(grads, values)
        tl.store(sums + tl.program_id(0), tl.sum(values * values, axis=0))
    else:
        values = tl.load(grads, mask=at < length, other=0.0) * inv_scale
        tl.store(grads, values, mask=at < length)
        tl.store(sums + tl.program_id(0), tl.sum(values * values, axis=0))


@triton.jit
def _finish(sums, norm, overflow, count, SUMS: tl.constexpr):
    total = tl.zeros([SUMS], tl.float32)
    for first in range(0, count, SUMS):
        at = first + tl.arange(0, SUMS)
        total += tl.load(sums + at, mask=at < count, other=0.0)
    result = tl.sqrt(tl.sum(total, axis=0))
    tl.store(norm, result)
    # False for NaN too.
    tl.store(overflow, tl.where(result < float("inf"), 0, 1))


_tables = {}


def launch(grads, inv_scale, norm, overflow, chunk=CHUNK, warps=WARPS):
    device = grads[0].device
    if device.type == "cpu":  # the interpreter pays per program as well as per element
        mean_length = sum(grad.numel() for grad in grads) // len(grads)
        chunk = min(max(triton.next_power_of_2(mean_length), 1024), 1 << 16)
    if device not in _tables:
        _tables[device] = Tables(device)
    table, chunks, aligned = _tables[device].find(grads, chunk)
    sums = torch.empty(chunks, dtype=torch.float32, device=device)
    _scale[(chunks,)](
        table, sums, len(grads), inv_scale, CHUNK=chunk, ALIGNED=aligned, num_warps=warps
    )
    some = min(triton.next_power_of_2(chunks), SUMS)
    _finish[(1,)](sums, norm, overflow, chunks, SUMS=some, num_warps=8)


def multi_tensor_scale_norm(grads, inv_scale, norm, overflow):
    launch(grads, inv_scale, norm, overflow)
