"""The loss in Triton: one program a row, three passes: maximum, sum, gradient."""

import triton
import triton.language as tl


@triton.jit
def _row(logits, labels, scale, loss, grad, classes, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    start = row.to(tl.int64) * classes
    index = tl.arange(0, BLOCK)
    largest = float("-inf")
    for first in range(0, classes, BLOCK):
        at = first + index
        x = tl.load(logits + start + at, mask=at < classes, other=float("-inf"))
        largest = tl.maximum(largest, tl.max(x.to(tl.float32), axis=0))
    total = 0.0
    for first in range(0, classes, BLOCK):
        at = first + index
        x = tl.load(logits + start + at, mask=at < classes, other=float("-inf")).to(tl.float32)
        total += tl.sum(tl.exp(x - largest), axis=0)
    label = tl.load(labels + row)
    mine = tl.load(logits + start + label).to(tl.float32)
    tl.store(loss + row, tl.log(total) + (largest - mine))
    for first in range(0, classes, BLOCK):
        at = first + index
        x = tl.load(logits + start + at, mask=at < classes, other=0.0).to(tl.float32)
        probability = tl.exp(x - largest) / total
        result = tl.where(at == label, probability - 1, probability) * scale
        tl.store(grad + start + at, result.to(grad.dtype.element_ty), mask=at < classes)


def softmax_cross_entropy(logits, labels, scale, loss, grad):
    rows, classes = logits.shape
    # The interpreter pays per program, not per element.
    most = 1 << 18 if logits.device.type == "cpu" else 4096
    block = min(triton.next_power_of_2(classes), most)
    _row[(rows,)](logits, labels, scale, loss, grad, classes, BLOCK=block, num_warps=8)
