"""The GPU's state by NVML: clocks, temperature, power, and throttling."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

THROTTLE_REASONS = {
    0x8: "hardware slowdown",
    0x20: "thermal limit",
    0x40: "thermal limit of the hardware",
    0x80: "power brake",
}
"""Bit of NVML's clocks event reasons → a reason for which a round is discarded. The software power
cap (0x4) is not among them: heavy kernels usually run at it."""


def throttle_reason() -> str | None:
    """Why the GPU is throttled now, so that the round that just ended does not count; else None.

    Without NVML nothing is known, and every round counts.
    """
    handle = _handle()
    if handle is None:
        return None
    import pynvml

    try:
        reasons = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    except pynvml.NVMLError:
        return None
    return next((words for bit, words in THROTTLE_REASONS.items() if reasons & bit), None)


def sm_clock_mhz() -> float | None:
    """The SM clock by NVML in MHz, in steps of 15; None if NVML fails."""
    handle = _handle()
    if handle is None:
        return None
    import pynvml

    try:
        return float(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))
    except pynvml.NVMLError:
        return None


def gpu_state() -> dict[str, Any]:
    """Driver version, clocks in MHz, temperature, power and throttle reasons, at this moment.

    Empty if the package `nvidia-ml-py` is missing or NVML fails; a result is valid without them.
    """
    handle = _handle()
    if handle is None:
        return {}
    import pynvml

    try:
        return {
            "driver": pynvml.nvmlSystemGetDriverVersion(),
            "sm_clock_mhz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
            "memory_clock_mhz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM),
            "temperature_c": pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
            "power_w": pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
            "throttle_reasons": pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
        }
    except pynvml.NVMLError:
        return {}


def gpu_uuid() -> str:
    """The UUID of the GPU in use, as `nvidia-smi -L` prints it."""
    text = str(torch.cuda.get_device_properties().uuid)
    return text if text.startswith("GPU-") else f"GPU-{text}"


@cache
def _handle() -> Any:
    """NVML's handle of the GPU in use; None without NVML."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetHandleByUUID(gpu_uuid())
    except pynvml.NVMLError:
        return None
