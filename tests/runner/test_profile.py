from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from grader.arena import Layout, arrange, view
from grader.arena.host_arena import HostArena
from grader.arena.layout import spec_of
from grader.runner import disassembly, ncu
from grader.runner.disassembly import (
    CompiledKernel,
    compiled_kernels,
    demangle,
    resource_usage,
    split_sass,
)
from grader.runner.profile import (
    _add_compiled,
    _compiled_code,
    _launched,
    _write_capped,
    busy_us,
    kernels,
)

# Trace events of PyTorch's profiler.
EVENTS: list[dict[str, Any]] = [
    {
        "ph": "X",
        "cat": "kernel",
        "name": "softmax_kernel",
        "ts": start,
        "dur": 10.0,
        "args": {
            "registers per thread": 40,
            "shared memory": 1024,
            "grid": [64, 1, 1],
            "block": [128, 1, 1],
            "est. achieved occupancy %": 75,
        },
    }
    for start in (0.0, 20.0)
] + [{"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoD", "ts": 5.0, "dur": 30.0, "args": {}}]

RESOURCES = """
Fatbin elf code:
================
arch = sm_90a

Resource usage:
 Common:
  GLOBAL:0
 Function _Z6scaledIfEvPKT_PS0_l:
  REG:58 STACK:96 SHARED:1280 LOCAL:8 CONSTANT[0]:552 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function add:
  REG:22 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:568 TEXTURE:0 SURFACE:0 SAMPLER:0
"""

COUNTED = """\
==PROF== Connected to process 7 (/usr/bin/python3.12)
==PROF== Profiling "softmax_kernel" - 0: 0%....50%....100% - 1 pass
"ID","Process ID","Kernel Name","Block Size",\
"dram__throughput.avg.pct_of_peak_sustained_elapsed","lts__t_sector_hit_rate.pct",\
"sm__throughput.avg.pct_of_peak_sustained_elapsed",\
"sm__warps_active.avg.pct_of_peak_sustained_active"
"","","","","%","%","%","%"
"0","7","softmax_kernel(float *, float *)","(128, 1, 1)","91.5","1,050.25","n/a","70"
"""


def test_kernels_are_grouped_and_sorted() -> None:
    copy, kernel = kernels(EVENTS)
    assert (copy["name"], copy["launches"], copy["total_us"]) == ("Memcpy DtoD", 1, 30.0)
    assert copy["registers"] is None
    assert kernel == {
        "name": "softmax_kernel",
        "grid": [64, 1, 1],
        "block": [128, 1, 1],
        "registers": 40,
        "shared_bytes": 1024,
        "launches": 2,
        "total_us": 20.0,
    }


def test_unexpected_values_of_a_trace_are_dropped() -> None:
    odd = {"grid": "64x1x1", "block": [128], "registers per thread": -1, "shared memory": "1 KiB"}
    (kernel,) = kernels([{"name": "k" * 400, "ts": 0, "args": odd}])
    assert kernel == {
        "name": "k" * 300,
        "grid": None,
        "block": None,
        "registers": None,
        "shared_bytes": None,
        "launches": 1,
        "total_us": 0.0,
    }


@pytest.mark.parametrize(
    ("spans", "busy"),
    [
        ([], 0),
        ([(0, 10), (20, 10)], 20),
        ([(0, 10), (5, 10)], 15),
        ([(0, 100), (5, 10), (20, 10)], 100),
        ([(20, 10), (0, 30)], 30),
    ],
)
def test_busy_time_counts_overlaps_once(spans: list[tuple[float, float]], busy: float) -> None:
    assert busy_us([{"ts": start, "dur": length} for start, length in spans]) == busy


def test_resources_and_listings() -> None:
    scaled, add = resource_usage(RESOURCES)
    assert (scaled.registers, scaled.shared_bytes, scaled.local_bytes) == (58, 1280, 104)
    assert (add.name, add.registers, add.local_bytes) == ("add", 22, 0)
    listing = "head\n\t\tFunction : _Z1a\n line\n\t\tFunction : b\n other\n"
    assert split_sass(listing) == {"_Z1a": " line\n", "b": " other\n"}


def test_demangled_names_match_the_profiler() -> None:
    assert demangle("_Z6scaledIfEvPKT_PS0_l") == "void scaled<float>(float const*, float*, long)"
    assert demangle("softmax_kernel") == "softmax_kernel"
    assert demangle("_Zno symbol") == "_Zno symbol"


def test_only_autotuned_variants_that_ran_are_kept() -> None:
    codes = [
        CompiledKernel("k", 32, 0, 0),
        CompiledKernel("k", 64, 0, 96, 7, 3),
        CompiledKernel("other", 8, 0, 0),
    ]
    seen = [{"name": "k", "registers": 64}]
    assert _launched(codes, seen) == codes[1:]
    facts: dict[str, Any] = {"calls": 1, "kernels": seen, "notes": []}
    _add_compiled(facts, codes)
    assert (
        seen[0] | {"local_bytes": 96, "local_instructions": 7, "tensor_instructions": 3}
        == (seen[0])
    )


def test_without_a_run_compiled_kernels_are_listed_up_to_the_cap() -> None:
    facts: dict[str, Any] = {"calls": 0, "kernels": [], "notes": []}
    _add_compiled(facts, [CompiledKernel(f"k{i}", 32, 0, i) for i in range(50)])
    assert len(facts["kernels"]) == 40
    assert facts["kernels"][0]["local_bytes"] == 49
    assert facts["notes"] == ["10 more kernels, each with a shorter total time, are not listed"]


def test_large_files_are_cut_or_left_out() -> None:
    fd = os.memfd_create("lent")
    os.ftruncate(fd, 4)
    notes: list[str] = []
    assert _write_capped(fd, b"abcdef", "sass", notes) == 4
    assert os.pread(fd, 9, 0) == b"abcd"
    assert _write_capped(fd, b"abcdef", "trace", notes) == 0
    assert [note.rsplit(": ")[1] for note in notes] == ["cut", "left out"]
    os.close(fd)


TRITON = """
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

@triton.jit
def dots(a, out, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    tile = tl.load(a + at)
    tl.store(out + at, tl.dot(tile, tile))

@triton.jit
def unused(a):
    tl.store(a, 1.0)

for source in (
    ASTSource(dots, {"a": "*fp16", "out": "*fp32", "SIZE": "constexpr"}, {(2,): 64}),
    ASTSource(unused, {"a": "*fp32"}),
):
    triton.compile(source, target=GPUTarget("cuda", 90, 32))
"""


def test_tritons_kernels_are_found_in_its_cache(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(TRITON)
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path / "triton")}
    environment.pop("TRITON_INTERPRET", None)
    subprocess.run([sys.executable, str(script)], env=environment, check=True)
    (code,) = compiled_kernels(tmp_path, {"dots"})
    assert code.name == "dots"
    assert 16 <= code.registers <= 255
    assert code.tensor_instructions > 0
    assert code.local_instructions == 0
    assert ".visible .entry dots(" in code.ptx
    assert {c.name for c in compiled_kernels(tmp_path, None)} == {"dots", "unused"}


def test_declared_launches_that_ran_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their file has the submission's name, not a kernel's."""
    usage = "Function softmax_rows:\n  REG:32 STACK:0 SHARED:0 LOCAL:0 "
    tools = {"--dump-resource-usage": usage, "--dump-sass": "\tFunction : softmax_rows\n x"}
    monkeypatch.setattr(disassembly, "_cuobjdump", lambda option, file: tools[option])
    (tmp_path / "submission.cubin").write_bytes(b"")
    for names in (None, {"softmax_rows"}):
        assert [c.name for c in compiled_kernels(tmp_path, names)] == ["softmax_rows"]


def test_counters_are_parsed() -> None:
    assert ncu.parse(COUNTED) == [
        {
            "name": "softmax_kernel(float *, float *)",
            "dram_percent": 91.5,
            "sm_percent": None,
            "l2_hit_percent": 1050.25,
            "occupancy_percent": 70.0,
        }
    ]
    assert ncu.parse("==ERROR== ERR_NVGPUCTRPERM - no permission\n") == []


def lent(tmp_path: Path) -> tuple[Any, HostArena]:
    """A runner's state with one set of an entry that doubles, as `ncu.measure` reads it."""
    x = torch.arange(8, dtype=torch.float32)
    layout: Layout = arrange([[(False, spec_of(x)), (True, spec_of(x)), (False, 3)]])
    arena = HostArena.create(layout.nbytes)
    first, out = (view(arena.buffer, spec) for spec in layout.sets[0][:2])  # type: ignore[arg-type]
    first.copy_(x)
    server = SimpleNamespace(
        device="cuda",
        arena=arena,
        sets=[[first, out, 3]],
        case={"dims": [], "symbol": "twice"},
        loaded={
            "language": "python",
            "entry": "twice",
            "names": ["x", "out", "times"],
            "roles": ["in", "out", "in"],
        },
    )
    (tmp_path / "submission.py").write_text(
        "def twice(x, out, times):\n"
        "    assert x.tolist() == list(range(8))\n"
        "    out.copy_(x * times)\n"
        "    print('called', out.tolist())\n"
    )
    return server, arena


FAKE_NCU = """\
#!{python}
import json, pathlib, subprocess, sys
words = sys.argv[1:]
job = pathlib.Path(words[-1])
text = json.loads(job.read_text())
job.write_text(json.dumps(text | {{"device": "cpu"}}))
at = words.index("--log-file")
done = subprocess.run(words[at + 2 :], close_fds=False, capture_output=True, text=True)
print(done.stdout, done.stderr)
assert done.stdout.count("called [0.0, 3.0, 6.0") == 2, done
pathlib.Path(words[at + 1]).write_text({counted!r})
sys.exit({status})
"""


@pytest.mark.parametrize(
    ("counted", "status"), [(COUNTED, 0), ("==ERROR== ERR_NVGPUCTRPERM - ask your admin\n", 1)]
)
def test_ncu_profiles_a_separate_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counted: str, status: int
) -> None:
    server, arena = lent(tmp_path)
    program = tmp_path / "bin" / "ncu"
    program.parent.mkdir()
    program.write_text(FAKE_NCU.format(python=sys.executable, counted=counted, status=status))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    monkeypatch.setenv("GRADE_JIT", str(tmp_path))
    try:
        if status == 0:
            assert ncu.measure(server)[0]["dram_percent"] == 91.5
        else:
            with pytest.raises(
                ncu.CountersUnavailable, match="NVreg_RestrictProfilingToAdminUsers=0"
            ):
                ncu.measure(server)
        # The call used a copy.
        assert not server.sets[0][1].any()
    finally:
        arena.close()


def test_without_ncu_the_reason_is_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ncu.CountersUnavailable, match="not installed where the submission runs"):
        ncu.measure(SimpleNamespace(device="cuda"))  # type: ignore[arg-type]
    with pytest.raises(ncu.CountersUnavailable, match="no GPU here"):
        ncu.measure(SimpleNamespace(device="cpu"))  # type: ignore[arg-type]


def test_a_job_is_json(tmp_path: Path) -> None:
    server, arena = lent(tmp_path)
    (tmp_path / "ncu").mkdir()
    job = json.loads(json.dumps(ncu._job(server)))
    (values,) = Layout.from_json(job["layout"].encode()).sets
    assert values[2] == 3
    assert [spec.shape for spec in values[:2]] == [(8,), (8,)]  # type: ignore[union-attr]
    arena.close()


@pytest.mark.parametrize(
    ("language", "device", "note"),
    [
        ("cuda", "cpu", "the compiled file holds no kernel: no registers, PTX or SASS"),
        ("cuda", "cuda", "the compiled file holds no kernel: no registers, PTX or SASS"),
        ("python", "cpu", "on a CPU nothing is compiled for a GPU: no registers, PTX or SASS"),
        ("python", "cuda", "the submission compiled no kernel here: no PTX and SASS"),
    ],
)
def test_without_compiled_code_a_note_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, language: str, device: str, note: str
) -> None:
    monkeypatch.setenv("GRADE_JIT", str(tmp_path))
    server: Any = SimpleNamespace(
        device=device, loaded={"language": language, "nvcc_target": "90a"}
    )
    facts: dict[str, Any] = {"kernels": [], "notes": []}
    assert _compiled_code(server, facts) == ([], "")
    assert facts["notes"] == [note]
