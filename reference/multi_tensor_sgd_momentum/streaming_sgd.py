"""SGD with momentum in Triton: one launch for all tensors, whose addresses are in a table.

The table depends only on addresses and lengths. It is built once per set of tensors and kept. A
single tensor needs none, and a thread updates two elements of it, which was the fastest of one to
eight on an H100.
"""

from itertools import accumulate, chain

import torch
import triton
import triton.language as tl

CHUNK = 4096
WARPS = 8
BLOCK = 256
BLOCK_WARPS = 4
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

    def find(self, lists, chunk):
        """The table of these tensors, int64 on their device: three addresses, the length and the
        first chunk of each tensor, then the tensor of each chunk. Also the number of tensors, the
        number of chunks, and whether every address suits 16-byte loads.
        """
        addresses = [[tensor.data_ptr() for tensor in tensors] for tensors in lists]
        lengths = [tensor.numel() for tensor in lists[0]]
        key = (chunk, tuple(map(tuple, addresses)), tuple(lengths))
        if key not in self.known:
            chunks = [-(-length // chunk) for length in lengths]
            *starts, total = accumulate(chunks, initial=0)
            owners = [index for index, count in enumerate(chunks) for _ in range(count)]
            aligned = all(address % 16 == 0 for row in addresses for address in row)
            words = [*chain.from_iterable(addresses), *lengths, *starts, *owners]
            self.known[key] = self._place(words), len(lengths), total, aligned
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
def _step(param, grad, buffer, lr, momentum, decay, NESTEROV: tl.constexpr):
    slope = grad + decay * param
    buffer = momentum * buffer + slope
    update = slope + momentum * buffer if NESTEROV else buffer
    return param - lr * update, buffer


@triton.jit
def _sgd(
    table,
    tensors,
    lr,
    momentum,
    decay,
    NESTEROV: tl.constexpr,
    CHUNK: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    owner = tl.load(table + 5 * tensors + tl.program_id(0))
    length = tl.load(table + 3 * tensors + owner)
    first = (tl.program_id(0) - tl.load(table + 4 * tensors + owner)) * CHUNK
    at = first + tl.arange(0, CHUNK)
    f32 = tl.pointer_type(tl.float32)
    params = tl.load(table + owner).to(f32) + at
    grads = tl.load(table + tensors + owner).to(f32) + at
    buffers = tl.load(table + 2 * tensors + owner).to(f32) + at
    if ALIGNED:
        params = tl.multiple_of(params, 16)
        grads = tl.multiple_of(grads, 16)
        buffers = tl.multiple_of(buffers, 16)
    # A mask of unknown length would forbid wide loads, so whole chunks go without one.
    if first + CHUNK <= length:
        p, g, b = tl.load(params), tl.load(grads), tl.load(buffers)
        p, b = _step(p, g, b, lr, momentum, decay, NESTEROV)
        tl.store(params, p)
        tl.store(buffers, b)
    else:
        inside = at < length
        p, g = tl.load(params, mask=inside), tl.load(grads, mask=inside)
        b = tl.load(buffers, mask=inside)
        p, b = _step(p, g, b, lr, momentum, decay, NESTEROV)
        tl.store(params, p, mask=inside)
        tl.store(buffers, b, mask=inside)


@triton.jit
def _sgd_of_one(
    param_at,
    grad_at,
    buffer_at,
    length,
    lr,
    momentum,
    decay,
    NESTEROV: tl.constexpr,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < length
    p, g = tl.load(param_at + at, mask=inside), tl.load(grad_at + at, mask=inside)
    b = tl.load(buffer_at + at, mask=inside)
    p, b = _step(p, g, b, lr, momentum, decay, NESTEROV)
    tl.store(param_at + at, p, mask=inside)
    tl.store(buffer_at + at, b, mask=inside)


_tables = {}


def launch(lists, lr, momentum, weight_decay, nesterov, chunk=CHUNK, warps=WARPS):
    """One step on lists of parameters, gradients and buffers."""
    device = lists[0][0].device
    factors = lr, momentum, weight_decay
    if device.type == "cuda" and len(lists[0]) == 1:
        tensors = [tensors[0] for tensors in lists]
        length = tensors[0].numel()
        sizes = {"NESTEROV": nesterov, "BLOCK": BLOCK, "num_warps": BLOCK_WARPS}
        _sgd_of_one[(triton.cdiv(length, BLOCK),)](*tensors, length, *factors, **sizes)
        return
    if device.type == "cpu":  # the interpreter pays per program as well as per element
        mean_length = sum(param.numel() for param in lists[0]) // len(lists[0])
        chunk = min(max(triton.next_power_of_2(mean_length), 1024), 1 << 18)
    if device not in _tables:
        _tables[device] = Tables(device)
    table, tensors, chunks, aligned = _tables[device].find(lists, chunk)
    _sgd[(chunks,)](
        table,
        tensors,
        *factors,
        NESTEROV=nesterov,
        CHUNK=chunk,
        ALIGNED=aligned,
        num_warps=warps,
    )


def multi_tensor_sgd_momentum(params, grads, buffers, lr, momentum, weight_decay, nesterov):
    launch((params, grads, buffers), lr, momentum, weight_decay, nesterov)
