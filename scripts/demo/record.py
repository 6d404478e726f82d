"""Record the gradings that the demo server shows: `python -m scripts.demo.record [--out FILE]`.

Needs a GPU and Docker, and takes about 3 minutes. Grades each file of `GRADED` in full and writes
one JSON line for each: `user` (made up), `file`, and `report` without seed and log. Lines of other
GPUs in the file are kept. Exit status 1 when a file was not accepted and ranked.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from benchmarks.gpu import require_gpu
from grader.judge import grade
from grader.problem import Problem
from grader.sandbox import make_sandbox
from grader.submission import Submission

ROOT = Path(__file__).resolve().parents[2]
RECORDED = ROOT / "scripts" / "demo" / "recorded.jsonl"
GRADED = (
    ("tristan", "submissions/softmax/accepted/triton_softmax.py"),
    ("theo", "submissions/softmax/accepted/torch_softmax.py"),
    ("cleo", "submissions/softmax/accepted/cuda_softmax.cu"),
    ("expert", "reference/softmax/cluster_softmax.cu"),
    ("tristan", "submissions/int4_matmul/accepted/triton_int4_matmul.py"),
    ("expert", "reference/int4_matmul/wgmma_int4_matmul.cu"),
    ("tristan", "submissions/multi_tensor_adamw/accepted/triton_adamw.py"),
    ("cleo", "submissions/multi_tensor_adamw/accepted/cuda_adamw.cu"),
    ("tristan", "submissions/flash_attention/accepted/triton_attention.py"),
    ("expert", "reference/flash_attention/hopper_attention.cu"),
)


def record(user: str, file: str) -> dict[str, Any]:
    """The line of one grading."""
    folder = Path(file).parts[1]
    problem = Problem.load(ROOT / "problems" / folder)
    submission = Submission.read(ROOT / file, problem.spec.limits.source_bytes)
    report = grade(problem, submission, sandbox=make_sandbox("docker"), device="cuda")
    shown = report.model_copy(update={"seed": None, "log": ""})
    return {"user": user, "file": file, "report": shown.model_dump(mode="json")}


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=RECORDED, show_default=True)
def main(out: Path) -> None:
    """Grade the demo's files on this GPU."""
    require_gpu()
    kept = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    made = []
    for user, file in GRADED:
        line = record(user, file)
        report = line["report"]
        print(file, report["verdict"], report["score_us"], report["ranked"], flush=True)
        made.append(line)
        gpu = report["gpu"]
        lines = [*(one for one in kept if one["report"]["gpu"] != gpu), *made]
        out.write_text("".join(f"{json.dumps(one)}\n" for one in lines))
    sys.exit(0 if all(one["report"]["ranked"] for one in made) else 1)


if __name__ == "__main__":
    main()
