"""The languages that kernels in a Python file are written in, recognized by what the file imports.

A source is only searched, never parsed or run, and a wrong guess changes no verdict.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class KernelLanguage:
    """A Python package that kernels are written with."""

    key: str
    """Short name, as in an address or a report's environment."""
    label: str
    module: str
    """What a file imports to use it, with dots."""
    distribution: str
    """The name under which its version is found."""
    extra: str = ""
    """What pip installs beside it, in brackets."""

    @cached_property
    def imported(self) -> re.Pattern[bytes]:
        """A line that imports the module, or something of it."""
        parent, _, name = self.module.rpartition(".")
        module = re.escape(self.module)
        forms = [rf"(?:import|from)[ \t]+{module}\b"]
        if parent:
            forms.append(rf"from[ \t]+{re.escape(parent)}[ \t]+import\b[^\n#]*?\b{name}\b")
        return re.compile(rf"^[ \t]*(?:{'|'.join(forms)})".encode(), re.MULTILINE)


KERNEL_LANGUAGES = (
    KernelLanguage("tilelang", "TileLang", "tilelang", "tilelang"),
    KernelLanguage("cute", "CuTe DSL", "cutlass", "nvidia-cutlass-dsl"),
    KernelLanguage("cutile", "cuTile", "cuda.tile", "cuda-tile", "[tileiras]"),
    KernelLanguage("helion", "Helion", "helion", "helion"),
    KernelLanguage("gluon", "Gluon", "triton.experimental.gluon", "triton"),
    KernelLanguage("triton", "Triton", "triton", "triton"),
)
"""In the order of recognition: a Helion file may import Triton too, and a Gluon file does."""

BY_KEY = {language.key: language for language in KERNEL_LANGUAGES}


def kernel_language(source: bytes) -> KernelLanguage | None:
    """The language that a Python source imports; None if it imports none of them."""
    return next((one for one in KERNEL_LANGUAGES if one.imported.search(source)), None)


def reported_language(environment: Mapping[str, object]) -> KernelLanguage | None:
    """The language that a report's environment names; None if it names none that is known, as an
    older report or one that a worker made up."""
    key = environment.get("kernel_language")
    return BY_KEY.get(key) if isinstance(key, str) else None
