"""A small valid problem folder, with replacements in its YAML."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

YAML = """\
format: 1
title: Scale
summary: Every element times two.
entry: scale
args:
  - {name: x, role: in, dtype: dtype, shape: [rows, cols]}
  - {name: out, role: out, dtype: dtype, shape: [rows, cols]}
cuda_dtypes: [fp32]
tolerances:
  fp32: {atol: 1e-6, rtol: 1.0e-6, rel_l2: 1.0e-6}
cost:
  bytes: 2 * rows * cols * itemsize
  flops: rows * cols
tests:
  - {name: tiny, params: {rows: 1, cols: 3, dtype: fp32}}
  - {name: wide, params: {rows: 2, cols: 99, dtype: fp32}}
benchmarks:
  - {name: large, device: cuda, params: {rows: 4096, cols: 4096, dtype: fp32}}
"""

MakeFolder = Callable[..., Path]


@pytest.fixture
def make_folder(tmp_path: Path) -> MakeFolder:
    """Writes a problem named ``scale``, with `old` replaced by `new` in its YAML."""

    def make(old: str = "", new: str = "") -> Path:
        assert old in YAML
        folder = tmp_path / "scale"
        folder.mkdir()
        (folder / "problem.yaml").write_text(YAML.replace(old, new, 1) if old else YAML)
        (folder / "reference.py").write_text("def reference(x):\n    return x * 2\n")
        (folder / "inputs.py").write_text("def generate(generator, call, **params): ...\n")
        (folder / "statement.md").write_text("# Scale\n")
        return folder

    return make
