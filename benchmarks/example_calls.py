"""Calls a Python submission in this process, and checks its outputs as a grading does.

For submissions that are trusted: nothing is isolated, and nothing is timed.
"""

from __future__ import annotations

from pathlib import Path

from grader.arena import TensorSpec, tensor_like
from grader.judge.correctness.check import (
    CheckResult,
    ExpectedOutputs,
    check_outputs,
    combine_results,
)
from grader.judge.correctness.error_bound import error_bounds
from grader.judge.memory.shared_block import poison
from grader.judge.problem_code import ProblemCode, Values, map_tensors, seed_for
from grader.problem.spec import Case
from grader.runner.load_submission import load_python


class LoadedExample:
    """A submission, imported."""

    def __init__(self, code: ProblemCode, source: Path, folder: Path) -> None:
        """`folder` gets a copy, which must stay: Triton reads a kernel's source from its file."""
        self._code = code
        args = code.problem.spec.args
        request = {
            "entry": code.problem.spec.entry,
            "names": [a.name for a in args],
            "roles": [a.role for a in args],
            "parameters": code.problem.spec.parameters,
            "weights": [a.name for a in args if a.weight],
        }
        self._entry = load_python(source.read_bytes(), folder, request)

    def check(self, case: Case, seed: int) -> CheckResult:
        """Check all calls of a case, whose inputs are those of a master seed. Raises what the
        submission raises."""
        code = self._code
        first = code.inputs(case, seed_for(seed, case.name, 0))
        carried: Values = {}  # the state as the submission left it,
        truth: Values = {}  # as float64 has it,
        eager: Values = {}  # and as PyTorch has it
        results = []
        for call in range(case.calls):
            fresh = code.inputs(case, seed_for(seed, case.name, call), call)
            inputs = fresh | carried | code.weights(first)
            outputs = self._call(case, inputs)
            exact = inputs | self._state(truth)
            truth = code.run_reference(case, exact)
            eager = code.run_eager(case, inputs | self._state(eager))
            bounds = error_bounds(code, case, exact, truth, call + 1)
            expected = ExpectedOutputs(truth, first, eager, bounds)
            results.append(check_outputs(code, case, outputs, expected))
            carried = self._state(outputs)
        return combine_results(results)

    def _call(self, case: Case, inputs: Values) -> Values:
        """The outputs of one call on copies of the inputs."""
        values = map_tensors(inputs, lambda tensor: tensor.clone())
        problem = self._code.problem
        for argument in problem.spec.args:
            if argument.role == "out":
                shape, strides = problem.shape(argument, case), problem.strides(argument, case)
                spec = TensorSpec(0, problem.dtype(argument, case), shape, strides)
                values[argument.name] = tensor_like(spec, self._code.device)
                poison(values[argument.name])
        in_order = [values[argument.name] for argument in problem.spec.args]
        self._entry.call(self._entry.prepare(self._entry.setup(in_order), {}))
        return {argument.name: values[argument.name] for argument in self._code.written}

    def _state(self, values: Values) -> Values:
        names = [a.name for a in self._code.written if a.role == "inout"]
        return {name: values[name] for name in names if name in values}
