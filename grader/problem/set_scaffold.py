"""The starter files of `grade new` for a problem of another set, in that set's own convention."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from grader.problem.imported import CaseForm, ImportedProblem, TensorForm, ValueForm
from grader.problem.load import Problem
from grader.problem.spec import Argument

_TORCH = {
    "fp64": "float64",
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
}
"""Dtypes whose name in torch is another."""


def set_scaffold(problem: Problem) -> str:
    """Source of a starter file in Python. It runs, and is a wrong answer."""
    imported = problem.imported
    assert imported is not None
    form = imported.forms[problem.spec.tests[0].name]
    writers = {
        "leetgpu": _plain,
        "kernelbot": _custom_kernel,
        "kernelbench": _model,
        "fib": _run,
        "sol": _run,
        "tensara": _plain,
    }
    head = f'"""{problem.spec.title}, of {imported.source.set_title}.\n\n'
    head += "This starter file runs, and is a wrong answer until you write the kernel.\n"
    return head + writers[imported.source.set](problem, imported, form)


def _plain(problem: Problem, imported: ImportedProblem, form: CaseForm) -> str:
    names = [argument.name for argument in problem.spec.args]
    zeros = [f"    {a.name}.zero_()" for a in problem.spec.args if a.role != "in"]
    lines = ['"""', "", "", f"def {problem.spec.entry}({', '.join(names)}):"]
    lines += [*_described(problem.spec.args), *zeros]
    return "\n".join(lines) + "\n"


def _custom_kernel(problem: Problem, imported: ImportedProblem, form: CaseForm) -> str:
    if imported.source.functions:
        return _functions(problem, imported, form)
    names = [argument.name for argument in problem.spec.args]
    lines = [
        '"""',
        "",
        "import torch",
        "",
        "",
        "def custom_kernel(data):",
        *_described(problem.spec.args),
    ]
    everywhere = _everywhere(imported)
    given = {i: place for place, i in _leaves("data", form.data) if i in everywhere}
    lines += [f"    {names[i]} = {place}" for i, place in given.items()]
    for i, argument in enumerate(problem.spec.args):
        if argument.role == "in":
            continue
        if i in given:
            lines.append(f"    {argument.name}.zero_()")
        else:
            lines.append(f"    {argument.name} = {_like_inputs(problem, argument, form.values[i])}")
    return "\n".join([*lines, f"    return {_expression(form.result, names)}"]) + "\n"


def _functions(problem: Problem, imported: ImportedProblem, form: CaseForm) -> str:
    lines = ['"""', "", "import torch"]
    places, results = (dict(_leaves("", tree)) for tree in (form.data, form.result))
    for name, arguments in imported.source.functions.items():
        i = results[f"[{name!r}]"]
        used = [places[f"[{argument!r}]"] for argument in arguments]
        described = _described([problem.spec.args[place] for place in (*used, i)])
        lines += ["", "", f"def {name}({', '.join(arguments)}):", *described]
        lines.append(f"    return {_like_inputs(problem, problem.spec.args[i], form.values[i])}")
    return "\n".join(lines) + "\n"


def _run(problem: Problem, imported: ImportedProblem, form: CaseForm) -> str:
    names = [argument.name for argument in problem.spec.args]
    inputs = [names[i] for _, i in _leaves("", form.data)]
    lines = ['"""', "", "import torch", "", "", f"def run({', '.join(inputs)}):"]
    lines += _described(problem.spec.args)
    outputs = []
    for argument, value in zip(problem.spec.args, form.values, strict=True):
        if argument.role != "in":
            outputs.append(argument.name)
            lines.append(f"    {argument.name} = {_like_inputs(problem, argument, value)}")
    return "\n".join([*lines, f"    return {', '.join(outputs)}"]) + "\n"


def _everywhere(imported: ImportedProblem) -> list[int]:
    """The places of the arguments that each case has."""
    columns = zip(*(form.values for form in imported.forms.values()), strict=True)
    return [i for i, values in enumerate(columns) if not any(value.absent for value in values)]


def _like_inputs(problem: Problem, argument: Argument, value: ValueForm) -> str:
    """An expression for an output, whose sizes are those of inputs."""
    args = problem.spec.args
    assert problem.imported is not None
    everywhere = [args[i] for i in _everywhere(problem.imported)]
    inputs = [a for a in everywhere if a.role != "out" and a.kind == "tensor" and not a.weight]
    sizes = {
        size: f"{a.name}.shape[{axis}]"
        for a in inputs
        for axis, size in enumerate(a.shape)
        if not size.isdigit()
    }
    form = value.form
    assert isinstance(form, TensorForm)
    shape = [sizes.get(size, size) for size in argument.shape] if form.shape else []
    made = f"torch.zeros([{', '.join(shape)}], dtype={_dtype(form)}"
    return made + (f", device={inputs[0].name}.device)" if inputs else ")")


_MODEL = '''

class ModelNew(nn.Module):
    """The judge loads the weights by name; make better use of them than a list."""

    def __init__(self, *init_inputs):
        super().__init__()
        for name, (shape, dtype) in STATE.items():
            *path, last = name.split(".")
            module = self
            for part in path:
                if part not in module._modules:
                    module.add_module(part, nn.Module())
                module = module._modules[part]
            module.register_buffer(last, torch.zeros(shape, dtype=dtype))

'''


def _model(problem: Problem, imported: ImportedProblem, form: CaseForm) -> str:
    inputs = [a.name for a in problem.spec.args if a.role == "in" and not a.weight]
    number, output = next((i, v) for i, v in enumerate(form.values) if v.role == "out")
    state = [
        f'    "{v.name}": ({v.form.shape}, {_dtype(v.form)}),'
        for v in form.values
        if v.weight and isinstance(v.form, TensorForm)
    ]
    lines = ['"""', "", "import torch", "from torch import nn", "", "STATE = {", *state, "}"]
    lines += ['"""Name of a weight → its shape and dtype."""', ""]
    forward = f"    def forward(self, {', '.join(inputs)}):\n"
    forward += f"        return {_like_inputs(problem, problem.spec.args[number], output)}\n"
    return "\n".join(lines) + _MODEL + forward


def _described(arguments: Iterable[Argument]) -> list[str]:
    """A docstring that lists arguments."""
    lines = ['    """']
    for argument in arguments:
        shape = f"[{', '.join(argument.shape)}] " if argument.shape else ""
        lines.append(f"    {argument.name}: {shape}{argument.dtype}, {argument.role}")
    return [*lines, '    """']


def _leaves(place: str, tree: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Each value of a tree: the expression for it, and its number."""
    ((kind, part),) = tree.items()
    if kind == "value":
        yield place, part
    elif kind in ("tuple", "list"):
        for i, one in enumerate(part):
            yield from _leaves(f"{place}[{i}]", one)
    elif kind == "dict":
        for key, one in part.items():
            yield from _leaves(f"{place}[{key!r}]", one)
    elif kind == "object":
        for key, one in part[1]["dict"].items():
            yield from _leaves(f"{place}.{key}", one)


def _expression(tree: dict[str, Any], names: list[str]) -> str:
    ((kind, part),) = tree.items()
    if kind == "value":
        return names[int(part)]
    if kind in ("tuple", "list"):
        inside = ", ".join(_expression(one, names) for one in part)
        return f"[{inside}]" if kind == "list" else f"({inside},)"
    if kind == "dict":
        return "{" + ", ".join(f"{k!r}: {_expression(v, names)}" for k, v in part.items()) + "}"
    return repr(part)


def _dtype(form: TensorForm) -> str:
    return f"torch.{_TORCH.get(form.dtype, form.dtype)}"
