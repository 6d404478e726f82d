"""KernelBot's boards for several functions, such as a forward and a backward pass.

Their `reference.py` has `generate_inputs()` and a `reference_…()` for each function, and their
`eval.py` has the sizes and `check_correctness(submission, …)`, which makes inputs and calls the
functions. `grader.problem_sets.kernelbot` reads there what they are called.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from grader.runner.sets.driver import (
    CHECK_FUNCTIONS,
    Inputs,
    SetCase,
    UnsupportedError,
    flatten,
    function_of,
    import_file,
    unflatten,
)
from grader.runner.sets.kernelbot import MOST_SEED, KernelBot

GENERATE = "generate_inputs"


class _Asked(Exception):
    """The check has asked for inputs."""


class SeveralFunctions(KernelBot):
    """A submission defines every function. Their results are one output each."""

    has_output_buffer = False

    def __init__(self, folder: Path, options: dict[str, Any], device: str) -> None:
        reference = import_file(folder, "reference.py")
        self._evaluation = import_file(folder, "eval.py")
        self._generate = function_of(reference, GENERATE)
        self._check = function_of(self._evaluation, CHECK_FUNCTIONS)
        self._names: list[str] = options["inputs"]
        self._functions: dict[str, list[str]] = options["functions"]
        self._references = {
            name: function_of(reference, f"reference_{name.rpartition('_')[2]}")
            for name in self._functions
        }
        self._modules = {path.stem for path in folder.glob("*.py")}
        self._options = options
        self._most_seed = MOST_SEED

    def generate(self, case: SetCase, seed: int) -> Inputs:
        """Inputs of the sizes that the check asks for."""
        positional, named = self._asked(case)
        if "seed" in inspect.signature(self._generate).parameters:
            named = named | {"seed": 1 + seed % self._most_seed}
        made = self._generate(*positional, **named)
        data = dict(zip(self._names, made, strict=True))
        return Inputs(*flatten(data, "", self._modules))

    def reference(self, case: SetCase, inputs: Inputs) -> Any:
        data = self._data(inputs)
        return {
            name: self._references[name](*(data[one] for one in names))
            for name, names in self._functions.items()
        }

    def check(self, case: SetCase, inputs: Inputs, output: Any) -> tuple[bool, str]:
        data = self._data(inputs)
        vars(self._evaluation)[GENERATE] = lambda *_, **__: tuple(data.values())
        submission = SimpleNamespace(
            **{name: lambda *_, of=name: output[of] for name in self._functions}
        )
        result = self._check(submission, **case.params)
        parts = result if isinstance(result, tuple) else (result,)
        verdicts = [part for part in parts if isinstance(part, bool)]
        return bool(verdicts) and all(verdicts), f"{CHECK_FUNCTIONS}() gives {result}"

    @property
    def has_one_answer(self) -> bool:
        return True

    def _data(self, inputs: Inputs) -> dict[str, Any]:
        found: dict[str, Any] = unflatten(inputs.data, [v.value for v in inputs.values])
        return found

    def _asked(self, case: SetCase) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with which the check makes the inputs of a case."""

        def asked(*positional: Any, **named: Any) -> None:
            raise _Asked(positional, named)

        vars(self._evaluation)[GENERATE] = asked
        try:
            self._check(None, **case.params)
        except _Asked as call:
            positional, named = call.args
            return positional, named
        raise UnsupportedError(f"{CHECK_FUNCTIONS}() makes no inputs by {GENERATE}()")
