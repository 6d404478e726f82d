"""What NVML says of the chip: throttling, the SM clock and its state; with a fake NVML."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from grader.judge.gpu import state
from grader.judge.gpu.state import THROTTLE_REASONS, gpu_state, sm_clock_mhz, throttle_reason

POWER_CAP, SYNC_BOOST = 0x4, 0x10


class NVMLError(Exception):
    pass


class FakeNvml(ModuleType):
    """As much of `pynvml` as is used."""

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.reasons = 0
        self.fails: set[str] = set()
        self.sm_mhz = 1980
        self.asked_for: list[str] = []

    def _answer(self, name: str, value: Any) -> Any:
        if name in self.fails:
            raise NVMLError(name)
        return value

    def nvmlInit(self) -> None:
        self._answer("init", None)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self.asked_for.append(uuid)
        return str(self._answer("handle", "the handle"))

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        assert handle == "the handle"
        return int(self._answer("reasons", self.reasons))

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:
        assert handle == "the handle"
        return int(self._answer("clock", self.sm_mhz if kind == self.NVML_CLOCK_SM else 2619))

    def nvmlSystemGetDriverVersion(self) -> str:
        return str(self._answer("driver", "580.1"))

    def nvmlDeviceGetTemperature(self, handle: str, kind: int) -> int:
        return int(self._answer("temperature", 41))

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return int(self._answer("power", 312_500))


@pytest.fixture
def uuid() -> str:
    return "c0ffee00-0000-0000-0000-000000000000"


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch, uuid: str) -> Iterator[FakeNvml]:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    properties = SimpleNamespace(uuid=uuid)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: properties)
    state._handle.cache_clear()
    yield fake
    state._handle.cache_clear()


@pytest.mark.parametrize(("bit", "words"), THROTTLE_REASONS.items())
def test_each_slowdown_is_a_reason_to_discard_the_round(
    nvml: FakeNvml, bit: int, words: str
) -> None:
    nvml.reasons = bit | POWER_CAP
    assert throttle_reason() == words


@pytest.mark.parametrize("reasons", [0, 0x1, 0x2, POWER_CAP, SYNC_BOOST, 0x100])
def test_a_power_cap_and_the_like_discard_nothing(nvml: FakeNvml, reasons: int) -> None:
    nvml.reasons = reasons
    assert throttle_reason() is None


def test_a_round_counts_again_once_the_chip_has_cooled(nvml: FakeNvml) -> None:
    nvml.reasons = 0x20
    assert throttle_reason() == "thermal limit"
    nvml.reasons = 0
    assert throttle_reason() is None


@pytest.mark.parametrize("prefix", ["", "GPU-"])
def test_the_gpu_is_found_by_its_uuid(nvml: FakeNvml, uuid: str, prefix: str) -> None:
    """NVML's indices ignore CUDA_VISIBLE_DEVICES."""
    torch.cuda.get_device_properties().uuid = prefix + uuid
    throttle_reason()
    throttle_reason()
    assert nvml.asked_for == [f"GPU-{uuid}"]


def test_the_sm_clock_is_read_anew_each_time(nvml: FakeNvml) -> None:
    assert sm_clock_mhz() == 1980.0
    nvml.sm_mhz = 1755
    assert sm_clock_mhz() == 1755.0
    assert isinstance(sm_clock_mhz(), float)


@pytest.mark.parametrize("failing", ["init", "handle", "clock"])
def test_without_an_answer_there_is_no_sm_clock(nvml: FakeNvml, failing: str) -> None:
    nvml.fails = {failing}
    assert sm_clock_mhz() is None


def test_the_state_has_its_units(nvml: FakeNvml) -> None:
    nvml.reasons = POWER_CAP
    assert gpu_state() == {
        "driver": "580.1",
        "sm_clock_mhz": 1980,
        "memory_clock_mhz": 2619,
        "temperature_c": 41,
        "power_w": 312.5,
        "throttle_reasons": POWER_CAP,
    }


@pytest.mark.parametrize("failing", ["init", "handle", "reasons"])
def test_where_nvml_does_not_answer_every_round_counts(nvml: FakeNvml, failing: str) -> None:
    nvml.reasons = 0x8
    nvml.fails = {failing}
    assert throttle_reason() is None
    assert gpu_state() == {}


@pytest.mark.parametrize("failing", ["driver", "clock", "temperature", "power"])
def test_an_incomplete_state_is_left_out(nvml: FakeNvml, failing: str) -> None:
    nvml.fails = {failing}
    assert gpu_state() == {}


def test_without_nvmls_package_nothing_is_known(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert throttle_reason() is None
    assert sm_clock_mhz() is None
    assert gpu_state() == {}
