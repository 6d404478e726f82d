"""Starter files in CUDA C++, compiled together: nvcc spends most of its time on their headers."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

from grader.problem import Problem, prototypes
from grader.runner.prototype_check import assertions


def check_starters(starters: dict[str, tuple[Problem, str]], folder: Path) -> None:
    """Compile each problem's starter file, by name, with the problem's prototypes, which the
    assertions behind it compare. Files with the same headers are one for nvcc, which names each of
    them in its errors."""
    by_headers: dict[tuple[str, ...], list[str]] = {}
    for name, (_, source) in starters.items():
        headers = tuple(re.findall(r"^#include .*$", source, re.MULTILINE))
        by_headers.setdefault(headers, []).append(name)
    for number, names in enumerate(by_headers.values()):
        wanted = {name: prototypes(starters[name][0].spec) for name in names}
        parts = [f'#line 1 "{name}.cu"\n{starters[name][1]}' for name in names]
        every = {symbol: text for group in wanted.values() for symbol, text in group.items()}
        assert len(every) == sum(map(len, wanted.values())), "two problems have one entry"
        file = folder / f"starters_{number}.cu"
        file.write_text("\n".join(parts) + assertions(every))
        found = exported(file)
        for name in names:
            spec = starters[name][0].spec
            symbols = {spec.entry, *(f"{spec.entry}_{dtype}" for dtype in spec.cuda_dtypes[1:])}
            assert symbols == set(wanted[name]), name
            assert symbols <= found, name


def exported(file: Path) -> set[str]:
    """The functions of the library that nvcc makes of a file."""
    library = file.with_suffix(".so")
    command = ["nvcc", "-shared", "-Xcompiler", "-fPIC", "-Werror", "all-warnings"]
    options: dict[str, Any] = {"capture_output": True, "text": True, "check": False}
    done = subprocess.run([*command, "-o", str(library), str(file)], **options)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    listed = subprocess.run(["nm", "-D", str(library)], **options).stdout
    return set(re.findall(r"^\w+ T (\w+)$", listed, re.MULTILINE))
