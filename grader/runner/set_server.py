"""Serves the judge's requests for one problem of another set: its cases, inputs and answers.

It runs in a sandbox of its own. Tensors travel in memory that the judge lends, and everything else
as JSON in a file that the judge lends.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from grader.arena.layout import dtype_of, overlaps
from grader.runner.load_submission import write_files, write_lent
from grader.runner.sets import redirect
from grader.runner.sets.driver import (
    Driver,
    Inputs,
    SetCase,
    Tree,
    UnsupportedError,
    Value,
    cpu_limit,
    is_near,
    pieces,
    seed_all,
    to_carried,
    to_own,
    unflatten,
)

if TYPE_CHECKING:
    from grader.runner.serve import Server


def drivers(options: dict[str, Any]) -> dict[str, Any]:
    """Prefix of a set → the driver of a problem with these options."""
    from grader.runner.sets.kernelbench import KernelBench
    from grader.runner.sets.kernelbot import KernelBot
    from grader.runner.sets.leetgpu import LeetGpu
    from grader.runner.sets.several_functions import SeveralFunctions
    from grader.runner.sets.tensara import Tensara
    from grader.runner.sets.traces import FlashInferTrace, SolExecBench

    return {
        "leetgpu": LeetGpu,
        "kernelbot": SeveralFunctions if options.get("functions") else KernelBot,
        "kernelbench": KernelBench,
        "fib": FlashInferTrace,
        "sol": SolExecBench,
        "tensara": Tensara,
    }


class SetServer:
    """The state of one problem."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._driver: Driver
        self._answer = -1
        self._cases: list[SetCase] = []
        self._forms: dict[int, tuple[Inputs, Tree]] = {}
        self._buffer_shapes: dict[str, list[int]] = {}
        """Case → the shape in which its reference returns what belongs into the last input."""
        self._pinned: set[int] = set()
        """The cases of which a seed changes more than values. They have the inputs of one seed."""
        self._outputs: list[tuple[str, torch.Tensor]] = []
        """What the reference has computed, by name, until it is collected."""
        self._has_lost_device = False
        """Whether CUDA fails from now on, as after an index outside of a tensor."""

    def handle(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Answer one request; the reply's `calls` is the length of the JSON in the lent file."""
        text = json.dumps(self.answer(request, fds)).encode()
        if not self._has_lost_device:
            if request.get("release"):
                self._server.release()
            self._server.free_cache()
        if len(text) > os.fstat(self._answer).st_size:
            raise ValueError(f"an answer of {len(text)} bytes")
        write_lent(self._answer, text)
        return {"calls": len(text)}

    def answer(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """The answer to a request, or why the problem or the case is unsupported, or that memory
        ran out."""
        with torch.no_grad():
            try:
                return {"answer": getattr(self, f"_{request['do']}")(request, fds)}
            except UnsupportedError as error:
                return {"unsupported": str(error)}
            except torch.OutOfMemoryError as error:
                return {"out_of_memory": str(error)[:300]}

    def _open(self, request: dict[str, Any], fds: list[int]) -> list[dict[str, Any]]:
        """Import the problem. The answer lists its cases."""
        folder = Path(os.environ["GRADE_JIT"]) / "problem"
        self._answer = os.dup(fds[1])
        write_files(folder, fds[0], request["files"])
        device = self._server.device
        if device == "cpu":
            redirect.mean_cpu_by_cuda()
        elif not self._server.has_device:
            self._server.init_device(triton=False)
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        seed_all(0)
        options = request["options"]
        driver = drivers(options)[request["set"]](folder, options, device)
        return self.hold(driver, device)

    def hold(self, driver: Driver, device: str) -> list[dict[str, Any]]:
        """Serve this problem from now on. The answer lists its cases."""
        self._driver = driver
        self._cases = driver.cases(device)
        return [{"name": c.name, "kind": c.kind, "params": c.params} for c in self._cases]

    def _describe(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Make a case's inputs and its answer once, and say what they are made of."""
        number = request["case"]
        case = self._cases[number]
        try:
            with cpu_limit(self._server.device):
                made = self._made(number, 1)
                inputs, tree, first = self._answered(case, made)
        except (UnsupportedError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise UnsupportedError(f"{type(error).__name__}: {error}"[:300]) from error
        if not all(map(_same_but_rounding, first, self._answered(case, made)[2])):
            raise UnsupportedError("its reference gives another answer each time")
        inputs = self._with_state(case, made, inputs, first)
        values = [_description(value) for value in inputs.values]
        form = _emptied(inputs)
        # The answers are needed no more, and may be large.
        inputs = replace(inputs, values=inputs.values[: len(made.values)])
        del first
        other = self._pin(number, made)
        self._forms[number] = form, tree
        pairs = zip(inputs.values, other.values, strict=False)
        fixed = [
            a.name
            for a, b in pairs
            if a.role != "out" and not a.is_fixed and _is_tensor(a) and _equal(a, b)
        ]
        return {
            "values": values,
            "data": inputs.data,
            "result": tree,
            "fixed": fixed,
            "unique": self._driver.has_one_answer,
            "init": getattr(self._driver, "init_inputs", list)(),
        }

    def _memory(self, request: dict[str, Any], fds: list[int]) -> int:
        """About what the tensors of the largest case take, in bytes."""
        return max(map(self._driver.memory_bytes, self._cases), default=0)

    def _generate(self, request: dict[str, Any], fds: list[int]) -> None:
        """Make a case's inputs, in the lent block."""
        number = request["case"]
        form = self._form(number)[0]
        made = self._made(number, request["seed"])
        pairs = zip(made.values, form.values, strict=False)
        wanted = [v for v, f in pairs if f.role != "out" and isinstance(v.value, torch.Tensor)]
        for target, value in zip(self._server.sets[0], wanted, strict=True):
            tensor = _shaped(value.value, target)
            _expect_same(target, tensor, value.name)
            target.copy_(tensor)
        self._wait()

    def _reference(self, request: dict[str, Any], fds: list[int]) -> dict[str, int]:
        """Compute a case's outputs for the inputs in the lent block, and keep them for `collect`.
        The answer says how much device memory that took at most."""
        number, wide = request["case"], request["wide"]
        self._outputs = []
        self._begin_peak()
        inputs, _ = self._lent_inputs(request, wide)
        given = to_own(inputs)
        with redirect.Float64() if wide else nullcontext():
            result = self._driver.reference(self._cases[number], given)
        found, _ = self._driver.outputs(inputs, result)
        form, tree = self._form(number)
        by_place = dict(zip(_leaves(tree), map(to_carried, found), strict=True))
        outputs = [by_place[i] for i, value in enumerate(form.values) if value.role != "in"]
        lent = {tensor.untyped_storage().data_ptr() for tensor in self._server.sets[0]}
        for output in outputs:
            tensor = output.value
            is_lent = tensor.untyped_storage().data_ptr() in lent
            self._outputs.append((output.name, tensor.clone() if is_lent else tensor))
        self._wait()
        return {"peak_bytes": self._peak_bytes()}

    def _collect(self, request: dict[str, Any], fds: list[int]) -> None:
        """Write the outputs of the last reference into the lent block, and forget them."""
        outputs, self._outputs = self._outputs, []
        for target, (name, output) in zip(self._server.sets[0], outputs, strict=True):
            value = _shaped(output, target)
            if value.is_floating_point() != target.is_floating_point():
                raise UnsupportedError(f"'{name}' is {value.dtype}, not {target.dtype}")
            if request["wide"] and value.is_floating_point() and value.dtype != torch.float64:
                raise UnsupportedError(f"its reference gives {value.dtype} for inputs in float64")
            _expect_same(target, value, name, any_dtype=True)
            target.copy_(value)
        self._wait()

    def _check(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """The set's own check of the outputs behind the inputs in the lent block."""
        number = request["case"]
        inputs, outputs = self._lent_inputs(request, False)
        form, tree = self._form(number)
        places = [i for i, v in enumerate(form.values) if v.role != "in"]
        values = [v.value for v in inputs.values]
        complete = values + [None] * (len(form.values) - len(values))
        for place, output in zip(places, outputs, strict=True):
            shape = self._buffer_shapes.get(self._cases[number].name)
            own = _like(form.values[place].value, _own(output, request))
            complete[place] = own if shape is None else own.reshape(shape)
        pairs = zip(form.values, complete, strict=True)
        given = to_own(Inputs([replace(v, value=x) for v, x in pairs], form.data))
        output = unflatten(tree, [value.value for value in given.values])
        try:
            right, message = self._driver.check(self._cases[number], to_own(inputs), output)
        except (UnsupportedError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - what an output may do to it, as NaN or an index
            self._has_lost_device = not self._device_works()
            right, message = False, f"it raised {type(error).__name__}: {error}"
        answer = {"right": right, "message": message[:2000]}
        return answer | {"lost": True} if self._has_lost_device else answer

    def _device_works(self) -> bool:
        if self._server.device == "cuda":
            try:
                torch.cuda.synchronize()
            except RuntimeError:
                return False
        return True

    def _made(self, number: int, seed: int) -> Inputs:
        seed = 1 if number in self._pinned else seed
        seed_all(seed)
        made = self._driver.generate(self._cases[number], seed)
        inputs = replace(made, values=list(map(to_carried, made.values)))
        for value in inputs.values:
            if isinstance(value.value, torch.Tensor):
                if dtype_of(value.value) is None:
                    raise UnsupportedError(f"'{value.name}' is {value.value.dtype}")
                if value.value.numel() == 0:
                    raise UnsupportedError(f"'{value.name}' has no elements")
        return inputs

    def _pin(self, number: int, made: Inputs) -> Inputs:
        """The inputs of a case for another seed, unless the seed changes their shapes, or numbers
        and settings, as where these count what is in the tensors: then the case is pinned."""
        other = self._made(number, 2)
        if other.data == made.data and _forms(other) == _forms(made):
            return other
        self._pinned.add(number)
        return made

    def _form(self, number: int) -> tuple[Inputs, Tree]:
        """The values of a case with its outputs, without tensors, and how they lie in an answer."""
        if number not in self._forms:
            made = self._made(number, 1)
            case = self._cases[number]
            inputs, tree, outputs = self._answered(case, made)
            form = _emptied(self._with_state(case, made, inputs, outputs))
            del inputs, outputs  # other inputs are made now
            self._pin(number, made)
            self._forms[number] = form, tree
        return self._forms[number]

    def _answered(self, case: SetCase, inputs: Inputs) -> tuple[Inputs, Tree, list[Value]]:
        """The inputs with the outputs behind them, unless these lie in an input, which is then one
        that is written; how they lie in the answer; and the outputs."""
        written = _copied(inputs)
        answer = self._driver.reference(case, to_own(written))
        found, tree = self._driver.outputs(written, answer)
        outputs = list(map(to_carried, found))
        values, places = list(inputs.values), []
        for output in outputs:
            if dtype_of(output.value) is None:
                raise UnsupportedError(f"an output is {output.value.dtype}")
            place = next(
                (i for i, v in enumerate(written.values) if _is_same_memory(v.value, output.value)),
                None,
            )
            if place is None and self._is_output_buffer(case, inputs, output, outputs):
                place = len(inputs.values) - 1
                self._buffer_shapes[case.name] = list(output.value.shape)
            if place is None:
                place = len(values)
                values.append(replace(output, role="out"))
            elif values[place].role == "in":
                values[place] = replace(values[place], role="out")
            places.append(place)
        if not outputs:
            raise UnsupportedError("its reference returns no tensor")
        for place, (before, after) in enumerate(zip(inputs.values, written.values, strict=True)):
            if values[place].role == "in" and not _equal(before, after):
                values[place] = replace(values[place], is_scratch=True)
        return replace(inputs, values=values), _remap_leaves(tree, places), outputs

    def _with_state(
        self, case: SetCase, made: Inputs, inputs: Inputs, outputs: list[Value]
    ) -> Inputs:
        """The values of `_answered`, with the role ``inout`` where the answer to the inputs `made`
        depends on what an input held that the reference writes, such as a cache."""
        values = list(inputs.values)
        for place, (before, after) in enumerate(zip(made.values, values, strict=False)):
            is_buffer = case.name in self._buffer_shapes and place == len(made.values) - 1
            if before.role != "in" or after.role != "out" or is_buffer:
                continue
            spoilt = _copied(made)
            other = spoilt.values[place].value
            if other.is_floating_point():
                other.fill_(float("nan"))
            else:  # something else than it holds
                other.fill_(0 if bool(other.any()) else 1)
            try:
                answer = self._driver.reference(case, to_own(spoilt))
                again = map(to_carried, self._driver.outputs(spoilt, answer)[0])
                is_read = not all(map(_same_but_rounding, outputs, again))
            except torch.OutOfMemoryError:
                raise
            except Exception:  # noqa: BLE001 - the set's own code, which the spoilt values misled
                is_read = True
            if is_read:
                values[place] = replace(after, role="inout")
        return replace(inputs, values=values)

    def _is_output_buffer(
        self, case: SetCase, inputs: Inputs, output: Value, outputs: list[Value]
    ) -> bool:
        """Whether the last input is an output buffer, which the reference does not use."""
        if not self._driver.has_output_buffer:
            return False
        last = inputs.values[-1]
        if len(outputs) > 1 or not _is_tensor(last) or not last.value.is_floating_point():
            return False
        kind = last.value.dtype, last.value.numel()
        if last.weight or kind != (output.value.dtype, output.value.numel()):
            return False
        spoilt = _copied(inputs)
        spoilt.values[-1].value.fill_(float("nan"))
        again, _ = self._driver.outputs(spoilt, self._driver.reference(case, to_own(spoilt)))
        return _equal(output, to_carried(again[0]))

    def _lent_inputs(
        self, request: dict[str, Any], wide: bool
    ) -> tuple[Inputs, list[torch.Tensor]]:
        """The inputs in the lent block, for code that may write them, and what lies behind them
        there."""
        form, _ = self._form(request["case"])
        lent = iter(self._server.sets[0])
        values: list[Any] = []
        kept: list[Value] = []
        for value in form.values:
            if not isinstance(value.value, dict):
                values.append(value.value)
            elif value.role != "out":
                values.append(_like(value.value, _own(next(lent), request, wide)))
            elif value.value["given"]:
                values.append(_empty(value.value, self._server.device, wide))
            else:
                continue
            kept.append(value)
        made = Inputs([replace(v, value=x) for v, x in zip(kept, values, strict=True)], form.data)
        return made, list(lent)

    def _begin_peak(self) -> None:
        if self._server.device == "cuda":
            torch.cuda.reset_peak_memory_stats()

    def _peak_bytes(self) -> int:
        """Most device memory of this process since `_begin_peak`, without lent memory."""
        return torch.cuda.max_memory_allocated() if self._server.device == "cuda" else 0

    def _wait(self) -> None:
        if self._server.device == "cuda":
            torch.cuda.synchronize()


def _description(value: Value) -> dict[str, Any]:
    if not isinstance(value.value, torch.Tensor):
        if not isinstance(value.value, int | float | bool):
            raise UnsupportedError(f"'{value.name}' is a {type(value.value).__name__}")
        form: dict[str, Any] = {"scalar": value.value}
        if value.c_type:
            form["c_type"] = value.c_type
    else:
        tensor = value.value
        if overlaps(tensor.shape, tensor.stride()):
            tensor = tensor.contiguous()
        form = {
            "dtype": dtype_of(tensor),
            "shape": list(tensor.shape),
            "strides": list(tensor.stride()),
            "view": value.view,
        }
    return {
        "name": value.name,
        "role": value.role,
        "weight": value.weight,
        "scratch": value.is_scratch,
        "form": form,
    }


def _forms(inputs: Inputs) -> list[Any]:
    return [_description(value)["form"] for value in inputs.values]


def _shaped(tensor: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """A tensor with the number of dimensions in which the judge lends it."""
    return tensor.reshape(target.shape) if tensor.dim() != target.dim() else tensor


def _own(lent: torch.Tensor, request: dict[str, Any], wide: bool = False) -> torch.Tensor:
    """A lent tensor for code that may write or keep it: a copy, unless the judge leaves the block
    to this request; with `wide`, floating-point numbers in float64."""
    if wide and lent.is_floating_point():
        return lent.to(torch.float64, copy=True)
    return lent if request.get("release") else lent.clone()


def _like(form: dict[str, Any], tensor: torch.Tensor) -> torch.Tensor:
    """A lent tensor with its own number of dimensions."""
    shape = form["shape"]
    return tensor.reshape(shape) if tensor.dim() != len(shape) else tensor


def _emptied(inputs: Inputs) -> Inputs:
    """The same without its tensors: a description of each in its place."""
    leaves = set(_leaves(inputs.data))
    values = [
        replace(v, value=_description(v)["form"] | {"given": v.weight or i in leaves})
        if isinstance(v.value, torch.Tensor)
        else v
        for i, v in enumerate(inputs.values)
    ]
    return replace(inputs, values=values)


def _leaves(tree: Any) -> list[int]:
    """The numbers of the values in a tree, in order."""
    ((kind, part),) = tree.items()
    if kind == "value":
        return [part]
    if kind == "object":
        return _leaves(part[1])
    parts = part.values() if kind == "dict" else part if kind in ("tuple", "list") else []
    return [number for one in parts for number in _leaves(one)]


def _remap_leaves(tree: Tree, places: list[int]) -> Tree:
    ((kind, part),) = tree.items()
    if kind == "value":
        return {"value": places[part]}
    if kind == "dict":
        return {kind: {key: _remap_leaves(one, places) for key, one in part.items()}}
    if kind in ("tuple", "list"):
        return {kind: [_remap_leaves(one, places) for one in part]}
    return tree


def _empty(form: dict[str, Any], device: str, wide: bool) -> torch.Tensor:
    from grader.arena.layout import TensorSpec, tensor_like

    spec = TensorSpec(0, form["dtype"], tuple(form["shape"]), tuple(form["strides"]))
    made = tensor_like(spec, device)
    return made.double() if wide and made.is_floating_point() else made


def _copied(inputs: Inputs) -> Inputs:
    return inputs.with_values(
        [v.value.clone() if isinstance(v.value, torch.Tensor) else v.value for v in inputs.values]
    )


def _is_tensor(value: Value) -> bool:
    return isinstance(value.value, torch.Tensor)


def _is_same_memory(value: Any, output: torch.Tensor) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.data_ptr() == output.data_ptr()
        and value.shape == output.shape
        and value.dtype == output.dtype
    )


def _equal(first: Value, second: Value) -> bool:
    a, b = first.value, second.value
    if not isinstance(a, torch.Tensor):
        return bool(a == b)
    return a.shape == b.shape and all(map(_equal_pieces, pieces(a), pieces(b)))


def _equal_pieces(a: torch.Tensor, b: torch.Tensor) -> bool:
    if not a.is_floating_point():
        return torch.equal(a, b)
    a, b = a.double(), b.double()
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


def _same_but_rounding(first: Value, second: Value) -> bool:
    """Whether two answers of a reference differ by no more than its sums do that are added in
    another order each time, such as a prefix sum of PyTorch on a GPU."""
    a, b = first.value, second.value
    if _equal(first, second) or not a.is_floating_point() or a.shape != b.shape:
        return _equal(first, second)
    return is_near(a, b)


def _expect_same(
    target: torch.Tensor, value: torch.Tensor, name: str, any_dtype: bool = False
) -> None:
    shape = value.shape if value.dim() else target.shape
    if target.shape != shape or not (any_dtype or target.dtype == value.dtype):
        raise UnsupportedError(
            f"'{name}' is {tuple(value.shape)} {value.dtype} now, and was {tuple(target.shape)} "
            f"{target.dtype}"
        )
