# grade: device=cuda rule=work_outside_call
"""Starts each call on a separate stream; only the last call of a round joins them all.

State that is updated in place is not poisoned before a call, but the judge sees it change.
"""

import torch
from grader.runner import serve

streams = [torch.cuda.Stream() for _ in range(8)]
receive_request = serve.receive_request
calls = 1
turn = 0


def watching(sock):
    global calls, turn
    request, fds = receive_request(sock)
    if request["kind"] in ("call", "ready", "capture"):
        calls, turn = len(request.get("order", [0])), 0
    return request, fds


serve.receive_request = watching


def multi_tensor_adamw(
    params, grads, exp_avgs, exp_avg_sqs, lr, beta1, beta2, eps, weight_decay, step
):
    global turn
    current = torch.cuda.current_stream()
    stream = streams[turn % len(streams)]
    turn += 1
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        torch._foreach_mul_(params, 1 - lr * weight_decay)
        torch._foreach_lerp_(exp_avgs, grads, 1 - beta1)
        torch._foreach_mul_(exp_avg_sqs, beta2)
        torch._foreach_addcmul_(exp_avg_sqs, grads, grads, 1 - beta2)
        denominators = torch._foreach_sqrt(exp_avg_sqs)
        torch._foreach_div_(denominators, (1 - beta2**step) ** 0.5)
        torch._foreach_add_(denominators, eps)
        torch._foreach_addcdiv_(params, exp_avgs, denominators, -lr / (1 - beta1**step))
    if turn % calls == 0:
        for stream in streams:
            current.wait_stream(stream)
