"""`grade plot`: what is drawn, and that the figure is readable."""

from __future__ import annotations

import itertools
import math
import resource
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox, BboxBase

from grader.board import Board
from grader.cli.commands import plot
from grader.cli.plotting.plot_figure import build_figure, draw
from grader.cli.plotting.plot_labels import spread_apart
from grader.cli.plotting.plot_style import CaseCost, PlotData, Roofline, TimingSeries
from grader.judge.timing import baseline_store
from grader.problem import Problem
from grader.report import CaseResult, Report
from tests.cli.conftest import Shell

ROOT = Path(__file__).resolve().parents[3]
PNG = b"\x89PNG"

# Microseconds per call on an H100, from docs/measurements.md. Names that are not there have
# plausible values, so that the figures are as crowded as real ones.
H100: dict[str, dict[str, list[float]]] = {
    "softmax": {
        "triton_softmax.py": [12.11, 45.75, 90.29, 179.0, 272.8, 274.4],
        "torch_softmax.py": [13.69, 59.13, 265.9, 225.9, 362.1, 366.7],
        "cuda_softmax.cu": [14.5, 60.0, 170.0, 240.0, 380.0, 400.0],
        "eager": [11.9, 62.7, 267.0, 240.0, 412.0, 425.0],
        "compiled": [12.5, 47.0, 95.0, 181.0, 300.0, 301.0],
    },
    "int4_matmul": {
        "triton_int4_matmul.py": [19.75, 73.07, 74.98, 41.99, 74.99, 566.4],
        "eager": [230.0, 1200.0, 1230.0, 300.0, 140.0, 420.0],
        "fp16_matmul": [40.0, 190.0, 190.0, 50.0, 30.0, 210.0],
    },
    "multi_tensor_adamw": {
        "triton_adamw.py": [40.0, 93.0, 925.0, 925.0, 920.0],
        "cuda_adamw.cu": [41.0, 94.0, 930.0, 931.0, 921.0],
        "eager": [1500.0, 105.0, 1900.0, 4000.0, 960.0],
        "fused": [60.0, 98.0, 990.0, 1000.0, 955.0],
    },
    "flash_attention": {
        "cuda_attention.cu": [426.1, 600.4, 2410.0, 2310.0, 4872.0, 4664.0],
        "triton_attention.py": [250.0, 370.0, 1400.0, 1390.0, 2800.0, 2700.0],
        "eager": [3000.0, 5000.0, 20000.0, 21000.0, 60000.0, 70000.0],
        "sdpa": [210.0, 300.0, 1080.0, 1090.0, 2100.0, 2000.0],
    },
}


def h100(name: str) -> PlotData:
    """Plot of that problem with times of an H100."""
    problem = Problem.load(ROOT / "problems" / name)
    cases = problem.cases("benchmark", "cuda")
    tensor = problem.unit == "tensor"
    series = []
    for line, values in H100[name].items():
        us = dict(zip([case.name for case in cases], values, strict=True))
        ci_us = {case: (0.998 * value, 1.003 * value) for case, value in us.items()}
        baseline = "." not in line
        series.append(TimingSeries(line, us, {} if baseline else ci_us, baseline))
    return PlotData(
        title=f"{problem.spec.title} on NVIDIA H100 80GB HBM3",
        footnote="torch 2.11.0+cu130 · cuda 13.0 · sandbox docker (host image)",
        workloads=[CaseCost(case.name, problem.bytes(case), problem.flops(case)) for case in cases],
        series=series,
        size_unit="flops" if tensor else "bytes",
        roofline=Roofline(3.02e12, 720e12 if tensor else 52e12, "tensor" if tensor else "fp32"),
    )


def h100_recorded(name: str) -> PlotData:
    """Plot of that problem as `grade plot` makes it from the times recorded on an H100."""
    problem = Problem.load(ROOT / "problems" / name)
    data = plot._plot_data(problem, {}, baseline_store.load_recorded(problem)[0], graded=False)
    assert data is not None
    return data


def long_names(name: str) -> PlotData:
    """The same with very wide names."""
    data = h100(name)
    names = ["W" * 40, "M" * 30]
    series = [replace(one, name=wide) for one, wide in zip(data.series, names, strict=False)]
    return replace(data, series=series + data.series[2:])


@cache
def drawn(made: Callable[[str], PlotData], name: str) -> tuple[PlotData, Figure]:
    """The data of a problem and its figure, which several tests only read."""
    data = made(name)
    figure = build_figure(data)
    figure.canvas.draw()
    return data, figure


def visible_texts(figure: Figure) -> tuple[BboxBase, list[tuple[Text, Bbox]]]:
    """The canvas, and every visible text with its bounding box."""
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    texts: list[Text] = list(figure.texts)
    for axes in figure.axes:
        texts += [t for t in axes.texts if isinstance(t, Text)]
        texts += [axes.xaxis.label, axes.yaxis.label, axes.title]
        left = axes.get_title("left")
        assert not left or axes is figure.axes[2]
        texts += _tick_labels(axes)
    boxes = []
    for text in texts:
        if text.get_visible() and text.get_text():
            # The box of an Annotation includes its leader line.
            box = Text.get_window_extent(text, renderer)
            boxes.append((text, box))
    return figure.bbox, boxes


def _tick_labels(axes: Axes) -> list[Text]:
    shown: list[Text] = []
    for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        for tick in axis.get_major_ticks():
            if low <= tick.get_loc() <= high and tick.label1.get_visible():
                shown.append(tick.label1)
    return shown


@pytest.mark.parametrize("made", [h100, h100_recorded, long_names])
@pytest.mark.parametrize("name", H100)
def test_texts_do_not_overlap_or_leave_the_figure(
    name: str, made: Callable[[str], PlotData]
) -> None:
    _, figure = drawn(made, name)
    canvas, texts = visible_texts(figure)
    assert len(texts) > 30
    for text, box in texts:
        assert canvas.x0 <= box.x0 < box.x1 <= canvas.x1, text.get_text()
        assert canvas.y0 <= box.y0 < box.y1 <= canvas.y1, text.get_text()
    for (a, first), (b, second) in itertools.combinations(texts, 2):
        if a.get_rotation() or b.get_rotation():
            continue  # the box of a slanted text is larger than the text
        around = Bbox.from_extents(first.x0 - 6, first.y0, first.x1 + 6, first.y1)
        shared = Bbox.intersection(around, second)
        touched = shared is not None and shared.width > 0 and shared.height > 2
        assert not touched, f"{a.get_text()!r} and {b.get_text()!r}"


@pytest.mark.parametrize("name", H100)
def test_every_line_and_case_is_labelled(name: str) -> None:
    data, figure = drawn(h100, name)
    _, texts = visible_texts(figure)
    words = [line for text, _ in texts for line in text.get_text().split("\n")]
    for series in data.series:
        assert words.count(series.name) == 3, "beside times and rates, and in the roofline's key"
    for workload in data.workloads:
        assert words.count(workload.name) == 2, "above the sizes and on the roofline"
    assert words.count("speed of light") == 2


@pytest.mark.parametrize("made", [h100, h100_recorded])
@pytest.mark.parametrize("name", H100)
def test_labels_are_above_the_roof(name: str, made: Callable[[str], PlotData]) -> None:
    data, figure = drawn(made, name)
    roofline = data.roofline
    assert roofline is not None
    roof = figure.axes[2]
    workloads = {workload.name for workload in data.workloads}
    names = [text for text in roof.texts if set(text.get_text().split("\n")) <= workloads]
    assert {line for text in names for line in text.get_text().split("\n")} == workloads
    for text in names:
        box = Text.get_window_extent(text)
        corner = (box.x0 if text.get_rotation() else box.x1, box.y0)
        x, y = roof.transData.inverted().transform(corner)
        assert y > min(x * roofline.bytes_per_s, roofline.flops_per_s), text.get_text()


def test_the_legend_has_every_marker_of_the_roofline() -> None:
    data = h100("softmax")
    figure = build_figure(data)
    key = [line for line in figure.artists if isinstance(line, Line2D)]
    markers = [(str(line.get_marker()), line.get_color()) for line in key]
    drawn = [(str(line.get_marker()), line.get_color()) for line in figure.axes[2].get_lines()]
    assert len(markers) == len(data.series)
    assert set(markers) == {marker for marker in drawn if marker[0] != "None"}


def test_a_point_above_the_roof_has_its_label_above_it() -> None:
    data = h100("softmax")
    cached = {**data.series[0].us, "small": 1.0}
    series = [replace(data.series[0], us=cached), *data.series[1:]]
    roof = build_figure(replace(data, series=series)).axes[2]
    small = next(workload for workload in data.workloads if workload.name == "small")
    name = next(text for text in roof.texts if "small" in text.get_text().split("\n"))
    assert isinstance(name, Annotation)
    assert name.xy[1] == pytest.approx(small.flops / 1e-6)


def test_without_ceilings_the_title_names_no_roofline() -> None:
    data = h100("softmax")
    assert build_figure(data).axes[2].get_title("left") == "Roofline: arithmetic over intensity"
    bare = build_figure(replace(data, roofline=None)).axes[2]
    assert bare.get_title("left") == "Arithmetic over intensity"
    highest = max(y for line in bare.get_lines() for y in _numbers(line.get_ydata()))
    names = [text for text in bare.texts if isinstance(text, Annotation)]
    assert len(names) == len(data.workloads)
    assert all(name.xy[1] == highest for name in names), "above all points"


def test_cases_without_operations_are_not_in_the_roofline(tmp_path: Path) -> None:
    data = h100("softmax")
    none = [replace(workload, flops=0.0) for workload in data.workloads]
    assert len(build_figure(replace(data, workloads=none)).axes) == 2
    draw(replace(data, workloads=none), tmp_path / "a.svg")  # warnings are errors here
    roof = build_figure(replace(data, workloads=none[:2] + data.workloads[2:])).axes[2]
    points = [x for line in roof.get_lines() for x in _numbers(line.get_xdata())]
    assert min(points) > 0
    assert data.workloads[2].intensity in points


def test_points_are_at_their_values() -> None:
    data = h100("softmax")
    time, rate, roof = build_figure(data).axes
    square = data.workloads[1]
    seconds = 45.75e-6
    assert any(
        math.isclose(y, seconds) for line in time.get_lines() for y in _numbers(line.get_ydata())
    )
    per_s = square.nbytes / seconds
    assert any(
        math.isclose(y, per_s) for line in rate.get_lines() for y in _numbers(line.get_ydata())
    )
    points = [
        point
        for line in roof.get_lines()
        for point in zip(_numbers(line.get_xdata()), _numbers(line.get_ydata()), strict=True)
    ]
    assert any(
        math.isclose(x, square.intensity) and math.isclose(y, square.flops / seconds)
        for x, y in points
    )
    ridge = 52e12 / 3.02e12
    assert any(math.isclose(x, ridge) and math.isclose(y, 52e12) for x, y in points)


def _numbers(data: Any) -> list[float]:
    return [float(value) for value in data]


@pytest.mark.parametrize(
    "changes",
    [{"roofline": None}, {"one_spot": True}, {"one_series": True}],
    ids=["no roofline", "one case", "one baseline"],
)
def test_minimal_data_is_drawn(tmp_path: Path, changes: dict[str, Any]) -> None:
    full = h100("softmax")
    data = PlotData(
        title=full.title,
        footnote="",
        workloads=full.workloads[:1] if "one_spot" in changes else full.workloads,
        series=full.series[-1:] if "one_series" in changes else full.series,
        size_unit="bytes",
        roofline=changes.get("roofline", full.roofline),
    )
    draw(data, tmp_path / "a.png")
    draw(data, tmp_path / "a.svg")
    assert (tmp_path / "a.png").read_bytes().startswith(PNG)
    assert "<svg" in (tmp_path / "a.svg").read_text()


@given(
    st.lists(st.floats(-100, 100), min_size=1, max_size=12).map(sorted),
    st.floats(0.01, 20),
)
def test_spread_apart_keeps_gap_and_order(positions: list[float], gap: float) -> None:
    moved = spread_apart(positions, gap)
    assert all(b - a >= gap * (1 - 1e-6) - 1e-9 for a, b in itertools.pairwise(moved))
    assert math.isclose(math.fsum(moved), math.fsum(positions), abs_tol=1e-6)
    if all(b - a >= gap for a, b in itertools.pairwise(positions)):
        assert moved == pytest.approx(positions)


# The command -------------------------------------------------------------------------------------


@pytest.fixture
def timed(make_report: Callable[..., Report]) -> list[CaseResult]:
    """The one benchmark case of the problem `double`, with a time."""
    return [
        CaseResult(
            name="small",
            kind="benchmark",
            params={"n": 1024, "dtype": "fp32"},
            status="passed",
            time_us=10.0,
            ci_us=(9.0, 11.0),
            baseline_us={"eager": 20.0},
        )
    ]


def images(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix in (".png", ".svg"))


def test_files_are_graded_and_plotted(
    shell: Shell, problem: Path, kernel: Path, timed: list[CaseResult], tmp_path: Path
) -> None:
    shell.judge.changes = {"cases": timed, "gpu": "G$1$"}
    status, out, err = shell("plot", problem, kernel)
    assert (status, out) == (0, "")
    assert "wrote double.png" in err
    assert (tmp_path / "double.png").read_bytes().startswith(PNG)
    assert images(tmp_path) == ["double.png"]
    status, _, _ = shell("plot", problem, kernel, "--device", "cpu", "--out", "there.svg")
    assert status == 0
    assert images(tmp_path) == ["double.png", "there.svg"]
    assert shell.judge.calls[-1]["device"] == "cpu"


def test_a_rejected_file_is_reported_and_left_out(
    shell: Shell, problem: Path, kernel: Path, tmp_path: Path
) -> None:
    record(problem)  # not plotted: the command was given a file
    shell.judge.changes = {"verdict": "wrong_answer", "reason": "off by one"}
    status, _, err = shell("plot", problem, kernel)
    assert status == 1
    assert "kernel.py is not plotted: wrong answer, off by one" in err
    assert images(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "a.pdf"], "the name must end in .png or .svg"),
        (["--out", "nowhere/a.png"], "nowhere/a.png cannot be written (No such file or directory)"),
        (["--out", "/proc/a.png"], "/proc/a.png cannot be written"),
        (["--out", "/sys/a.png"], "/sys/a.png cannot be written"),
        (["--out", "a" * 300 + ".png"], "cannot be written (File name too long)"),
        (["--out", "folder.png"], "is a folder"),
        (["missing.py"], "missing.py"),
        (["kernel.py"] * 7, "6 files at most"),
        ([], "no results and no recorded times for this version of double on this machine ("),
        (["--device", "cpu"], "double on a CPU; give files to grade, or --device cuda for the"),
    ],
)
def test_wrong_usage(
    shell: Shell, problem: Path, kernel: Path, arguments: list[str], message: str
) -> None:
    Path("folder.png").mkdir()
    files = [kernel] if "--out" in arguments else []
    status, _, err = shell("plot", problem, *files, *arguments)
    assert status == 2
    assert message in err
    assert err.count("\n") == 1
    assert shell.judge.calls == []


def test_a_full_disk_is_reported_and_keeps_the_old_plot(
    shell: Shell, problem: Path, tmp_path: Path
) -> None:
    record(problem)
    (tmp_path / "double.png").write_bytes(b"old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        status, _, err = shell("plot", problem, "--device", "cpu")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert status == 2
    assert err.startswith("grade: --out: double.png cannot be written (File too large)")
    assert err.count("\n") == 1
    assert (tmp_path / "double.png").read_bytes() == b"old"
    assert not list(tmp_path.glob(".plot-*"))


def test_missing_glyphs_cause_no_warning(
    shell: Shell, problem: Path, kernel: Path, timed: list[CaseResult]
) -> None:
    shell.judge.changes = {"cases": timed}
    kernel = kernel.rename(kernel.with_name("核.py"))
    status, _, err = shell("plot", problem, kernel)  # warnings are errors here
    assert status == 0
    assert "Glyph" not in err


@pytest.mark.parametrize(("flops", "size_unit", "panels"), [("n", "flops", 3), ('"0"', "bytes", 2)])
def test_a_problem_without_operations_is_plotted_over_bytes(
    problem: Path, flops: str, size_unit: str, panels: int
) -> None:
    spec = problem / "problem.yaml"
    spec.write_text(spec.read_text().replace("flops: n}", f"flops: {flops}, unit: tensor}}"))
    record(problem)
    found = Problem.load(problem)
    data = plot._plot_data(found, {}, baseline_store.load_recorded(found)[0], graded=False)
    assert data is not None
    assert data.size_unit == size_unit
    assert len(build_figure(data).axes) == panels


def test_without_matplotlib_nothing_is_graded(
    shell: Shell, problem: Path, kernel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plot, "find_spec", lambda name: None)
    status, _, err = shell("plot", problem, kernel)
    assert (status, shell.judge.calls) == (2, [])
    assert err == "grade: plots need matplotlib; pip install '.[plot]'\n"


def test_without_files_the_board_is_plotted(
    shell: Shell,
    problem: Path,
    timed: list[CaseResult],
    make_report: Callable[..., Report],
    tmp_path: Path,
) -> None:
    board = Board.open(f"sqlite:///{tmp_path}/board.sqlite3")
    for user in ("ada", "bob"):
        report = make_report(problem_digest=Problem.load(problem).digest, cases=timed)
        board.record(report, user, b"")
    board.close()
    status, _, err = shell("plot", problem)
    assert (status, err) == (0, "wrote double.png\n")
    assert shell.judge.calls == []
    status, _, err = shell("plot", problem, "--device", "cpu")
    assert status == 2, "CPU results are not on the board"


def record(problem: Path, ceilings: baseline_store.RecordedCeilings | None = None) -> None:
    """Record CPU times of the problem."""
    found = Problem.load(problem)
    environment = baseline_store.BaselineEnvironment(
        driver=None,
        cuda=None,
        torch="2.13",
        triton=None,
        python="3.11",
        grade="0",
        measured_at=datetime.now(UTC),
    )
    times = baseline_store.ProblemBaselines(
        digest=found.times_digest,
        environment=environment,
        experts=["kernel.py"],
        cases={"small": {"eager": 20.0, "kernel.py": 9.0}},
    )
    kept = baseline_store.BaselineFile(hardware="Old Processor", device="cpu", ranked=False)
    baseline_store.save(baseline_store.folder_of(found), kept.updated("double", times, ceilings))


def test_without_results_the_recorded_times_are_plotted(shell: Shell, problem: Path) -> None:
    ceilings = baseline_store.RecordedCeilings(bytes_per_s=1e10, fp32_per_s=1e11, tensor_per_s=1e12)
    record(problem, ceilings)
    found = Problem.load(problem)
    status, _, err = shell("plot", problem, "--device", "cpu")
    assert (status, err) == (0, "wrote double.png\n")
    data = plot._plot_data(found, {}, baseline_store.load_recorded(found)[0], graded=False)
    assert data is not None
    assert data.title == "Doubling on Old Processor (practice, not ranked)"
    assert [(one.name, one.baseline) for one in data.series] == [
        ("expert kernel.py", False),
        ("eager", True),
    ]
    assert data.roofline == Roofline(1e10, 1e11, "fp32")
    assert "speed of light" in data.footnote
    record(problem)
    data = plot._plot_data(found, {}, baseline_store.load_recorded(found)[0], graded=False)
    assert data is not None
    assert data.roofline is None
    assert "speed of light" not in data.footnote


def test_a_report_without_ceilings_uses_the_recorded_ones(
    problem: Path, timed: list[CaseResult], make_report: Callable[..., Report]
) -> None:
    ceilings = baseline_store.RecordedCeilings(bytes_per_s=1e10, fp32_per_s=1e11, tensor_per_s=1e12)
    record(problem, ceilings)
    found = Problem.load(problem)
    old = baseline_store.load_recorded(found)[0]
    own = {"bytes_per_s": 2e10, "fp32_per_s": 2e11, "tensor_per_s": 2e12}
    for environment, expected in (({}, 1e10), ({"ceilings": own}, 2e10)):
        report = make_report(cases=timed, environment=environment)
        data = plot._plot_data(found, {"ada": report}, old, graded=False)
        assert data is not None
        assert data.roofline is not None
        assert data.roofline.bytes_per_s == expected


def test_an_unreadable_record_is_a_warning_only(
    shell: Shell, problem: Path, kernel: Path, timed: list[CaseResult], tmp_path: Path
) -> None:
    folder = baseline_store.folder_of(Problem.load(problem))
    folder.mkdir(parents=True)
    (folder / "another-gpu.json").write_text("{")
    shell.judge.changes = {"cases": timed}
    status, _, err = shell("plot", problem, kernel)
    assert (status, images(tmp_path)) == (0, ["double.png"])
    assert "no recorded times" in err
    assert "another-gpu.json" in err


def test_without_a_gpu_this_cpus_results_are_plotted(
    shell: Shell,
    problem: Path,
    timed: list[CaseResult],
    make_report: Callable[..., Report],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shell.change(cuda_missing=lambda: "no NVIDIA GPU")
    record(problem)
    status, _, err = shell("plot", problem)
    assert (status, images(tmp_path)) == (2, []), "the times are of another processor"
    assert f"on this machine ({baseline_store.processor_name()}); give files" in err
    digest = Problem.load(problem).digest
    on_cpu = {"device": "cpu", "gpu": None, "ranked": False, "score_us": None, "cases": timed}
    board = Board.open(f"sqlite:///{tmp_path}/board.sqlite3")
    for changes in (
        {"submission_name": "old.py"},
        {"submission_name": "new.py"},
        {"submission_name": "wrong.py", "verdict": "wrong_answer"},
        {"submission_name": "elsewhere.py", "environment": {"processor": "Another"}},
        {"submission_name": "version.py", "problem_digest": "e" * 64},
    ):
        report = make_report(**{"problem": "double", "problem_digest": digest} | on_cpu | changes)
        board.record(report, "ada", b"")
    board.close()
    drawn: list[PlotData] = []
    monkeypatch.setattr(plot, "_write", lambda data, path: drawn.append(data))
    assert shell("plot", problem)[0] == 0
    (data,) = drawn
    names = [one.name for one in data.series if not one.baseline]
    assert names == ["new.py", "old.py"]
    assert "practice, not ranked" in data.title


def test_on_a_cpu_only_what_ran_in_a_runner_is_beside_a_file(
    problem: Path, timed: list[CaseResult], make_report: Callable[..., Report]
) -> None:
    record(problem)
    found = Problem.load(problem)
    cases = [timed[0].model_copy(update={"baseline_us": {}})]
    report = make_report(cases=cases, device="cpu", gpu=None)
    old = baseline_store.load_recorded(found)[0]
    data = plot._plot_data(found, {"mine.py": report}, old, graded=False)
    assert data is not None
    assert [one.name for one in data.series] == ["mine.py", "expert kernel.py"]
