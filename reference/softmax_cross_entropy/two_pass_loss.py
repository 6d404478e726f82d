"""Cross-entropy with gradient in Triton. A program has a row at a time: one pass keeps a maximum
and a sum for each column of a block, a second one writes the gradient. As many rows are under way
as fit into L2, so that memory is read once: the first pass leaves the row there, the second drops
it, and gradients are written past it.
"""

import torch
import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LOG_2 = tl.constexpr(0.6931471805599453)
BLOCK = 8192
WARPS = 16
L2_BYTES = 32 << 20
"""Of the rows under way."""


@triton.jit
def _loss(
    logits,
    labels,
    scale,
    loss,
    grad,
    rows,
    classes,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    index = tl.arange(0, BLOCK)
    nothing = float("-inf")
    for turn in range(tl.cdiv(rows - tl.program_id(0), tl.num_programs(0))):
        row = tl.program_id(0).to(tl.int64) + turn * tl.num_programs(0)
        start = row * classes
        largest = tl.full([BLOCK], nothing, tl.float32)
        total = tl.zeros([BLOCK], tl.float32)
        for first in tl.range(0, classes, BLOCK, num_stages=STAGES):
            at = first + index
            x = tl.load(
                logits + start + at, mask=at < classes, other=nothing, eviction_policy="evict_last"
            ).to(tl.float32)
            grown = tl.maximum(largest, x)
            # A column of only -inf has sum 0, not NaN; other columns may be finite.
            base = tl.where(grown == nothing, 0.0, grown)
            total = total * tl.exp2((largest - base) * LOG2_E) + tl.exp2((x - base) * LOG2_E)
            largest = grown
        highest = tl.max(largest, axis=0)
        all_of_row = tl.sum(total * tl.exp2((largest - highest) * LOG2_E), axis=0)
        label = tl.load(labels + row)
        mine = tl.load(logits + start + label).to(tl.float32)
        tl.store(loss + row, tl.log2(all_of_row) * LOG_2 + (highest - mine))
        factor = scale / all_of_row
        for first in tl.range(0, classes, BLOCK, num_stages=STAGES):
            at = first + index
            inside = at < classes
            x = tl.load(
                logits + start + at, mask=inside, other=nothing, eviction_policy="evict_first"
            ).to(tl.float32)
            result = tl.exp2((x - highest) * LOG2_E) * factor
            result = tl.where(at == label, result - scale, result)
            tl.store(
                grad + start + at,
                result.to(grad.dtype.element_ty),
                mask=inside,
                cache_modifier=".cs",
            )


def launch(logits, labels, scale, loss, grad, block=BLOCK, warps=WARPS, stages=2):
    rows, classes = logits.shape
    if logits.device.type == "cpu":  # the interpreter pays per program, not per element
        block, programs = min(triton.next_power_of_2(classes), 1 << 18), 1
    else:
        block = min(triton.next_power_of_2(classes), block)
        warps = min(max(block // 512, 1), warps)
        sms = torch.cuda.get_device_properties(logits.device).multi_processor_count
        fits = max(L2_BYTES // (classes * logits.element_size()), 1)
        programs = min(rows, max(fits, sms), sms * (64 // warps))
    _loss[(programs,)](
        logits,
        labels,
        scale,
        loss,
        grad,
        rows,
        classes,
        BLOCK=block,
        STAGES=stages,
        num_warps=warps,
    )


def softmax_cross_entropy(logits, labels, scale, loss, grad):
    launch(logits, labels, scale, loss, grad)
