"""A loaded entry, and the error of one that does not load."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class LoadError(Exception):
    """The submission cannot be loaded; the text is one line."""


@dataclass(frozen=True)
class EntryPoint:
    """The loaded entry function: `call(prepare(setup(values), case))` is one call.

    values: the arguments of one set, in spec order.
    case: what the judge says of the case. For a `.cu` file `dims`, a list of int, and `symbol`, its
        function for the case's dtype; of another set `data` and `result`, the trees of what is
        passed and returned, and `own`, the shape and dtype of each argument there.
    """

    call: Callable[[Any], None]
    prepare: Callable[[list[Any], dict[str, Any]], Any] = lambda values, case: values
    setup: Callable[[list[Any]], list[Any]] = lambda values: values
    """Adds to the arguments of one set what the submission's setup made of its weights; `prepare`
    needs it."""
    on_default_stream: bool = False
    """Whether its kernels run on the calling thread's default stream, since it is told no other."""
    returns: bool = False
    """Whether the function returns its outputs, which each call then copies into the `out`s."""


def expect_function(function: Any, name: str) -> None:
    """Raise `LoadError` for a class, a generator or an async function, and for what is no
    function."""
    if inspect.isclass(function) or not callable(function):
        kind = "class" if inspect.isclass(function) else type(function).__name__
        raise LoadError(f"'{name}' is not a function but a {kind}")
    if (
        inspect.iscoroutinefunction(function)
        or inspect.isgeneratorfunction(function)
        or inspect.isasyncgenfunction(function)
    ):
        raise LoadError(f"'{name}' is an async or generator function; a plain one is needed")


def accepts(function: Any, count: int) -> bool:
    """Whether a function may be called with `count` positional arguments."""
    try:
        inspect.signature(function).bind(*[None] * count)
    except ValueError:  # no signature, as for some builtins: a wrong call raises later
        return True
    except TypeError:
        return False
    return True
