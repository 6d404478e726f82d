"""What a report says of the machine and its versions."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

import pytest
import torch

from grader import __version__
from grader.judge.gpu import environment
from grader.judge.gpu.environment import Ceilings, describe, describe_language, package_version
from grader.submission import Submission


def test_a_report_names_the_versions_that_decide_a_time() -> None:
    found = describe("cpu")
    assert (found["grade"], found["torch"]) == (__version__, torch.__version__)
    assert found["triton"] == package_version("triton")
    assert "gpu_uuid" not in found
    assert package_version("no-such-package") is None


def test_a_report_names_the_language_of_the_kernels_and_its_version() -> None:
    def described(source: bytes) -> dict[str, str | None]:
        return describe_language(Submission("kernel.py", "python", source))

    triton = package_version("triton")
    assert described(b"import triton") == {"kernel_language": "triton", "triton": triton}
    gluon = b"from triton.experimental import gluon"
    assert described(gluon) == {"kernel_language": "gluon", "triton": triton}
    assert described(b"import tilelang")["kernel_language"] == "tilelang"
    assert described(b"import torch") == {}


def test_a_report_names_the_gpu_and_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(
        name="NVIDIA H100", major=9, minor=0, multi_processor_count=132, L2_cache_size=1,
        total_memory=2,
    )  # fmt: skip
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: properties)
    monkeypatch.setattr(environment, "measure_ceilings", lambda: Ceilings(1.0, 1.0, 1.0))
    monkeypatch.setattr(environment, "gpu_uuid", lambda: "GPU-1")
    monkeypatch.setattr(environment, "gpu_state", lambda: {"driver": "570.86"})
    found = describe("cuda")
    assert (found["gpu_uuid"], found["driver"]) == ("GPU-1", "570.86")


@pytest.mark.cuda
def test_the_uuid_is_the_one_of_nvidia_smi() -> None:
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True)
    assert describe("cuda")["gpu_uuid"] in listed.stdout
