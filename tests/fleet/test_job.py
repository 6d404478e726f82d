from __future__ import annotations

from dataclasses import replace

import pytest

from grader.fleet import Ledger, Worker
from grader.fleet.job import unschedulable_reason
from grader.submission import Submission
from tests.fleet.conftest import DIGEST, enqueue

CPU = Worker("cpu", "http", "cpu", None, 1, problems={"softmax": DIGEST})
GPU = replace(CPU, name="gpu", device="cuda", gpu="NVIDIA H100 80GB HBM3")
OTHER = {"softmax": "0" * 64, "int4_matmul": DIGEST}


@pytest.mark.parametrize(
    ("gpu", "workers", "why"),
    [
        (None, [], "no worker is connected"),
        (None, [replace(CPU, slots=0)], "no worker is connected"),
        (None, [CPU], None),
        (None, [GPU], None),
        (None, [replace(CPU, problems=None)], None),
        (None, [replace(CPU, problems={})], "no worker has this version of softmax"),
        (None, [replace(CPU, problems=OTHER)], "no worker has this version of softmax"),
        (None, [replace(GPU, problems=OTHER), CPU], None),
        ("H100", [CPU], "no worker has a GPU of the type H100"),
        ("H100", [GPU], None),
        ("A100", [GPU, CPU], "no worker has a GPU of the type A100"),
        ("H100", [replace(GPU, problems=OTHER), CPU], "no H100 worker has this version of softmax"),
    ],
)
def test_why_no_worker_can_take_a_job(
    ledger: Ledger, gpu: str | None, workers: list[Worker], why: str | None
) -> None:
    enqueue(ledger, gpu=gpu)
    (job,) = ledger.queue()
    assert unschedulable_reason(job, workers) == why
    for worker in workers:
        ledger.announce(worker)
    assert unschedulable_reason(job, ledger.workers(60)) == why
    versions = {"softmax": DIGEST}
    claims = [
        ledger.claim(one.name, lease_s=60, problems=one.problems or versions, gpu=one.gpu)
        for one in workers
        if one.slots and one.problems != {}
    ]
    assert any(claims) == (why is None), "the ledger agrees"


def test_a_cuda_file_needs_a_gpu(ledger: Ledger) -> None:
    ledger.submit("ada", "softmax", DIGEST, Submission("k.cu", "cuda", b""))
    (job,) = ledger.queue()
    assert unschedulable_reason(job, [CPU]) == "no worker has a GPU, which a .cu file needs"
    assert unschedulable_reason(job, [CPU, GPU]) is None
