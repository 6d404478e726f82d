"""The process that compiles and times one benchmark case for `compiled_cases`.

It compiles at once, writes a line of JSON, and waits. After a line on stdin it times the case,
writes the time, and ends. It also ends when stdin is closed, which the judge's end does.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

import torch

from grader.judge.problem_code import ProblemCode
from grader.judge.timing.baseline_store import COMPILED
from grader.judge.timing.baselines import SEED, time_baselines
from grader.problem import Problem, ProblemError


def main(folder: str, digest: str, name: str, device: str) -> None:
    """Compile the case `name` of the problem, and time it when asked to."""
    replies = os.dup(1)
    os.dup2(2, 1)  # whatever is printed goes to the log
    asked = threading.Event()
    threading.Thread(target=_listen, args=(asked,), daemon=True).start()

    def reply(**fields: object) -> None:
        os.write(replies, json.dumps(fields).encode() + b"\n")

    try:
        problem = Problem.load(Path(folder))
        if problem.digest != digest:
            raise ProblemError(f"{folder} was changed meanwhile; run grade baseline again")
        code = ProblemCode(problem, device)
        case = next(case for case in problem.cases("benchmark", device) if case.name == name)
        compiled = torch.compile(code.eager, dynamic=False)
        code.run(compiled, f"{COMPILED}()", case, code.inputs(case, SEED))
        if device == "cuda":
            torch.cuda.synchronize()  # nothing of this process may disturb other cases' times,
            torch.cuda.empty_cache()  # and they need the memory
        reply(compiled=True)
        asked.wait()
        reply(time_us=time_baselines(code, case, functions={COMPILED: compiled})[COMPILED])
    except ProblemError as error:
        reply(error=str(error))


def _listen(asked: threading.Event) -> None:
    for _ in sys.stdin:
        asked.set()
    os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
