"""A set's own reference as a submission, which a fair check accepts."""

from __future__ import annotations

from grader.problem.imported import SetSource
from grader.submission import Submission

_HEAD = '''\
"""The reference of this problem, as a submission."""

import sys
from pathlib import Path

import torch

FILES = {files}

folder = Path(__file__).parent / "reference_files"
for name, text in FILES.items():
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode("latin-1"))
sys.path.insert(0, str(folder))
if not torch.cuda.is_available():
    from grader.runner.sets.redirect import mean_cpu_by_cuda

    mean_cpu_by_cuda()
'''

_TAILS = {
    "leetgpu": """
from challenge import Challenge

challenge = Challenge(device="cuda" if torch.cuda.is_available() else "cpu")
names = list(challenge.get_solve_signature())


def solve(*arguments):
    challenge.reference_impl(**dict(zip(names, arguments, strict=True)))
""",
    "kernelbot": """
from reference import ref_kernel


def custom_kernel(data):
    return ref_kernel(data)
""",
    "kernelbench": """
from model import Model as ModelNew
""",
    "fib": """
from reference import run
""",
    "sol": """
from reference import run
""",
    "tensara": """
from grader.runner.sets.tensara import Tensara

problem = Tensara(folder, {}, "cuda" if torch.cuda.is_available() else "cpu")


def solution(*arguments):
    problem.solve(list(arguments))
""",
}
"""Set → how its reference becomes what its users submit."""

_FUNCTION = """
from reference import reference_{kind} as {name}
"""


def reference_submission(source: SetSource) -> Submission:
    """The reference of a problem, wrapped as its set's users would."""
    files = {name: content.decode("latin-1") for name, content in source.files.items()}
    tail = "".join(_FUNCTION.format(name=n, kind=n.rpartition("_")[2]) for n in source.functions)
    text = _HEAD.format(files=repr(files)) + (tail or _TAILS[source.set])
    return Submission("reference.py", "python", text.encode())
