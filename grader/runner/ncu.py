"""Hardware counters of one call of the entry, measured with NVIDIA Nsight Compute (`ncu`).

`ncu` can only profile a process that it starts, so the call is made in a new process,
`python -m grader.runner.ncu JOB.json`, on a copy of the first argument set.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grader.runner.serve import Server

METRICS = {
    "dram_percent": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm_percent": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "l2_hit_percent": "lts__t_sector_hit_rate.pct",
    "occupancy_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
}
"""Field → Nsight Compute metric, as documented in its metrics reference."""
MOST_LAUNCHES = 20
TIMEOUT_S = 180.0
PERMISSION_ERROR = "ERR_NVGPUCTRPERM"


class CountersUnavailable(Exception):
    """No counters could be read; the text is one line."""


def measure(server: Server) -> list[dict[str, Any]]:
    """One dict per kernel launch of one call: `name`, and a percentage per field of `METRICS`.

    Raises `CountersUnavailable`.
    """
    if server.device == "cpu":
        raise CountersUnavailable("not run: no GPU here")
    program = shutil.which("ncu")
    if program is None:
        raise CountersUnavailable(
            "not run: Nsight Compute is not installed where the submission runs"
        )
    folder = Path(os.environ["GRADE_JIT"]) / "ncu"
    folder.mkdir(exist_ok=True)
    counters, job = folder / "counters.csv", folder / "job.json"
    job.write_text(json.dumps(_job(server)))
    command = [program, "--csv", "--page", "raw", "--metrics", ",".join(METRICS.values())]
    # Profile only the one call, and do not change the GPU's clocks.
    command += ["--profile-from-start", "off", "--clock-control", "none"]
    command += ["--launch-count", str(MOST_LAUNCHES), "--log-file", str(counters)]
    command += [sys.executable, "-s", "-m", "grader.runner.ncu", str(job)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
            pass_fds=(server.arena.fd,),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CountersUnavailable(f"did not end well: {error}") from error
    table = counters.read_text("utf-8", "replace") if counters.exists() else ""
    found = parse(table)
    if not found:
        printed = (done.stdout + done.stderr).decode("utf-8", "replace")
        raise CountersUnavailable(_reason(table + printed))
    return found


def parse(text: str) -> list[dict[str, Any]]:
    """Parse the output of ``ncu --csv --page raw``; lines before its table are skipped."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    kernels = []
    for row in csv.DictReader(lines[start:]):
        if row["ID"]:  # the row below the header holds the units
            values = {field: _number(row.get(metric)) for field, metric in METRICS.items()}
            kernels.append({"name": row["Kernel Name"][:300], **values})
    return kernels[:MOST_LAUNCHES]


def _number(text: str | None) -> float | None:
    try:
        return float((text or "").replace(",", ""))
    except ValueError:  # "n/a" where a kernel has no such counter
        return None


def _reason(output: str) -> str:
    if PERMISSION_ERROR in output:
        return (
            f"this machine permits counters to administrators only ({PERMISSION_ERROR}), and a "
            "sandbox is not one; an administrator can load the driver with "
            "NVreg_RestrictProfilingToAdminUsers=0"
        )
    lines = [line for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "==ERROR==" in line or "Error" in line]
    return f"gave no counters: {(errors or lines or ['it printed nothing'])[-1].strip()}"


def _job(server: Server) -> dict[str, Any]:
    """The new process's input: how to load the entry, and the first set of the lent block."""
    from grader.arena import Layout
    from grader.arena.layout import spec_of

    base = server.arena.buffer.data_ptr()

    def placed(value: Any) -> Any:
        if isinstance(value, list):
            return [placed(item) for item in value]
        if not hasattr(value, "data_ptr"):
            return value
        return replace(spec_of(value), offset=value.data_ptr() - base)

    one = Layout(server.arena.nbytes, 0, [[placed(value) for value in server.sets[0]]])
    return {
        "load": server.loaded,
        "case": server.case,
        "device": server.device,
        "fd": server.arena.fd,
        "layout": one.to_json().decode(),
    }


def main(job_path: str) -> None:
    """Load the submission, call it once to warm up, and once with the profiler started."""
    import torch

    folder = Path(job_path).parent
    job = json.loads(Path(job_path).read_text())
    entry = _load(folder, job["load"], job["device"])
    prepared = entry.prepare(entry.setup(_arguments(job)), job["case"])
    entry.call(prepared)
    if job["device"] == "cuda":
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
    entry.call(prepared)
    if job["device"] == "cuda":
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


def _load(folder: Path, request: dict[str, Any], device: str) -> Any:
    """Load the runner's submission again."""
    from grader.runner.load_cuda import load_cuda
    from grader.runner.load_submission import load_python

    if request["language"] == "cuda":
        return load_cuda(folder.parent, request, device)
    source = (folder.parent / "submission.py").read_bytes()
    return load_python(source, folder, request)


def _arguments(job: dict[str, Any]) -> list[Any]:
    """The arguments, in a copy of the block: `ncu` replays kernels and restores memory."""
    from grader.arena import Layout, TensorSpec, view

    layout = Layout.from_json(job["layout"].encode())
    if job["device"] == "cpu":
        from grader.arena.host_arena import HostArena as Arena
    else:
        from grader.arena.cuda_arena import CudaArena as Arena  # type: ignore[assignment]
    arena = Arena.attach(job["fd"], layout.nbytes)
    buffer = arena.buffer.clone()

    def built(value: Any) -> Any:
        if isinstance(value, list):
            return [view(buffer, spec) for spec in value]
        return view(buffer, value) if isinstance(value, TensorSpec) else value

    return [built(value) for value in layout.sets[0]]


if __name__ == "__main__":
    main(sys.argv[1])
