"""Gradings from end to end: real runner, real sandbox, tiny problem."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from grader.judge import Progress, grade, grading, session
from grader.judge.gpu import lock
from grader.judge.memory.shared_block import new_arena
from grader.judge.record import Record
from grader.judge.timing.baseline_store import processor_name
from grader.judge.verdict import Fault, SubmissionFault
from grader.problem import Problem, ProblemError
from grader.report import PassedTests, Report, Rule, Verdict
from grader.sandbox.base import Runner, RunnerDevice, RunnerLimits, SandboxError
from grader.sandbox.launch import descendants
from grader.sandbox.process import ProcessSandbox
from grader.submission import Submission
from tests.forked_sandbox import ForkedSandbox
from tests.judge.conftest import DOMAIN, HONEST, INPUTS, REFERENCE, SPEC, Judge, WriteProblem
from tests.waiting import PATIENCE_S, until


def test_an_honest_kernel_is_accepted_with_all_its_cases(judge: Judge) -> None:
    report = judge(HONEST, benchmarks=True)
    assert report.verdict is Verdict.ACCEPTED
    assert [(c.name, c.status) for c in report.cases] == [
        ("one", "passed"),
        ("many", "passed"),
        ("steps", "passed"),
        ("small", "passed"),
    ]
    small = report.cases[-1]
    assert small.time_us is not None
    assert small.time_us > 0
    assert set(report.stages_s) >= {"sandbox_start", "load", "test", "benchmark", "total"}


def test_a_cpu_result_is_never_ranked_nor_scored(judge: Judge) -> None:
    report = judge(HONEST, benchmarks=True)
    assert not report.ranked
    assert report.score_us is None
    assert "1 case needs a GPU; not run here" in report.notes


def test_on_a_cpu_nothing_is_compared_that_was_not_measured_alike(judge: Judge) -> None:
    """The judge's process has other threads than a runner, so PyTorch beside PyTorch was not 1."""
    report = judge(HONEST, benchmarks=True)
    assert report.cases[-1].time_us is not None
    assert report.cases[-1].baseline_us == {}
    assert report.environment["processor"] == processor_name()
    assert report.speedup == {}


def test_outputs_may_be_returned_and_the_report_says_so(judge: Judge) -> None:
    source = "def scale(x, total, factor):\n    total += x\n    return x * factor\n"
    report = judge(source, benchmarks=True)
    assert report.verdict is Verdict.ACCEPTED
    assert any("returns its outputs" in note for note in report.notes)
    timed = report.cases[-1]
    assert timed.returned_copy_us is not None
    told = f"copying the outputs that the function returns takes about {timed.returned_copy_us:.1f}"
    assert any(told in note for note in report.notes)
    assert judge(HONEST, benchmarks=True).cases[-1].returned_copy_us is None


def test_state_is_carried_from_call_to_call(judge: Judge) -> None:
    report = judge("""
        calls = 0
        def scale(x, total, factor, out):
            global calls
            calls += 1
            if factor < 4:  # right on the first two calls of a case, not on the third
                total += x
            out.copy_(x * factor)
    """)
    assert report.verdict is Verdict.WRONG_ANSWER
    assert [c.status for c in report.cases] == ["passed", "passed", "wrong_answer"]
    assert "total" in report.reason


def test_a_wrong_answer_has_a_mismatch(judge: Judge) -> None:
    report = judge("""
        def scale(x, total, factor, out):
            total += x
            out.copy_(x * factor)
            out[-1] = 7
    """)
    assert report.verdict is Verdict.WRONG_ANSWER
    mismatch = report.cases[1].mismatch
    assert mismatch is not None
    assert (mismatch.argument, mismatch.index, mismatch.got) == ("out", [999], 7.0)


def test_every_wrong_output_is_named(judge: Judge) -> None:
    report = judge(
        "def scale(x, total, factor, out):\n    total.add_(x, alpha=3)\n    out.zero_()\n"
    )
    first = report.cases[0].mismatch
    assert first is not None
    assert first.argument == "total"
    (other,) = first.others
    assert other.startswith("1 of 1 elements of 'out' are off")


def test_selected_cases_repeat_an_earlier_gradings_inputs(
    write_problem: WriteProblem, tmp_path: Path
) -> None:
    problem = write_problem(spec=SPEC + DOMAIN)
    path = tmp_path / "kernel.py"
    path.write_text(HONEST)
    submission = Submission.read(path, 10_000)

    def run(*names: str) -> Report:
        chosen = replace(problem, selected=frozenset(names)) if names else problem
        sandbox = ForkedSandbox()
        return grade(chosen, submission, sandbox=sandbox, device="cpu", seed=11, benchmarks=True)

    whole, part = run(), run("many", "drawn_2", "small")
    assert [case.name for case in part.cases] == ["many", "drawn_2", "small"]
    known = {case.name: case for case in whole.cases}
    for case in part.cases:
        assert case.params == known[case.name].params
        assert case.max_abs_err == known[case.name].max_abs_err
    assert (part.verdict, part.reason) == ("accepted", "right on the selected cases")
    assert any("only selected cases ran" in note for note in part.notes)


def test_unwritten_outputs_are_a_wrong_answer(judge: Judge) -> None:
    report = judge("def scale(x, total, factor, out):\n    total += x\n    out = x * factor\n")
    assert report.verdict is Verdict.WRONG_ANSWER
    assert report.reason == (
        "case 'one': 'out' was never written: write into it, such as by out.copy_(…) or "
        "out[:] = …; 'out = …' only gives the name to another tensor"
    )


def test_state_that_is_only_rebound_is_a_wrong_answer(judge: Judge) -> None:
    report = judge(HONEST.replace("total += x", "total = total + x"))
    assert report.verdict is Verdict.WRONG_ANSWER
    assert report.reason == (
        "case 'one': 'total' was never written: write into it, such as by total.copy_(…) or "
        "total[:] = …; 'total = …' only gives the name to another tensor"
    )


def test_swapped_arguments_are_recognised(judge: Judge) -> None:
    report = judge("""
        def scale(out, total, factor, x):
            out.copy_(x * factor)
    """)
    assert report.verdict is Verdict.WRONG_ANSWER
    assert report.reason == (
        "case 'one': your kernel wrote into 'x', which is an input; 'total', 'out' were never "
        "written: does the kernel take its arguments in the order of scale(x, total, factor, out)?"
    )
    assert report.log.startswith("'scale(out, total, factor, x)' is called with the problem's")


def test_an_error_in_a_triton_kernel_names_the_kernels_line(judge: Judge) -> None:
    report = judge("""
        import triton, triton.language as tl

        @triton.jit
        def kernel(x):
            tl.store(x, tl.summ(x, 0))

        def scale(x, total, factor, out):
            kernel[(1,)](x)
    """)
    where = " (line 6 of the submission)"
    words = "AttributeError: module 'triton.language' has no attribute 'summ'"
    assert (report.verdict, report.reason) == (Verdict.RUNTIME_ERROR, words + where)
    lines = report.log.splitlines()
    assert lines[-4:] == [
        '  File "submission.py", line 6, in kernel',
        "    tl.store(x, tl.summ(x, 0))",
        "                ^^^^^^^",
        words,
    ]


@pytest.mark.parametrize(
    ("body", "verdict", "words"),
    [
        ("def scale(", Verdict.COMPILE_ERROR, "SyntaxError"),
        ("", Verdict.COMPILE_ERROR, "no function named 'scale'"),
        ("def scale(x): pass", Verdict.COMPILE_ERROR, "does not take"),
        ("class scale: pass", Verdict.COMPILE_ERROR, "class"),
        ("async def scale(x, total, factor, out): pass", Verdict.COMPILE_ERROR, "async"),
        ("import no_such_package", Verdict.COMPILE_ERROR, "no_such_package"),
        ("import sys; sys.exit(0)", Verdict.COMPILE_ERROR, "SystemExit"),
        ("import os; os._exit(0)", Verdict.COMPILE_ERROR, "exited with status 0"),
        ("import os; os.kill(os.getpid(), 11)", Verdict.COMPILE_ERROR, "SIGSEGV"),
        ("import os; os.kill(os.getpid(), 9)", Verdict.COMPILE_ERROR, "SIGKILL"),
        ("\0", Verdict.COMPILE_ERROR, ""),
        (HONEST.replace("total +=", "1 / 0; total +="), Verdict.RUNTIME_ERROR, "ZeroDivision"),
        (HONEST.replace("total +=", "exit(3); total +="), Verdict.RUNTIME_ERROR, "SystemExit"),
        (
            "import os, signal\n"
            + HONEST.replace("total +=", "os.kill(os.getpid(), 11); total +="),
            Verdict.RUNTIME_ERROR,
            "",
        ),
    ],
)
def test_each_fault_has_its_verdict(judge: Judge, body: str, verdict: Verdict, words: str) -> None:
    report = judge(body)
    assert (report.verdict, words in report.reason) == (verdict, True), report.reason


def test_a_call_that_never_returns_is_stopped(judge: Judge) -> None:
    body = "import time\n" + HONEST.replace("total +=", "time.sleep(600); total +=")
    report = judge(body, spec=SPEC.replace("call_s: 100", "call_s: 3, compile_s: 0"))
    assert report.verdict is Verdict.TIME_LIMIT_EXCEEDED
    assert "longer than 3 s (limits.call_s)" in report.reason


SLOW = """
import time

seen = {}

def scale(x, total, factor, out):
    key = x.numel()
    seen[key] = seen.get(key, 0) + 1
    time.sleep(SLEEP)
    total += x
    out.copy_(x * factor)
"""


def test_first_calls_may_compile_and_the_report_says_how_long(judge: Judge) -> None:
    kernel = SLOW.replace("SLEEP", "3 if seen[key] == 1 and key > 1 else 0")
    report = judge(kernel, spec=SPEC.replace("call_s: 100", "call_s: 2, compile_s: 100"))
    assert report.verdict is Verdict.ACCEPTED
    (note,) = (note for note in report.notes if "first calls" in note)
    took_s, limits = re.fullmatch(r"the first calls took ([\d.]+) s (.*)", note).groups()  # type: ignore[union-attr]
    assert float(took_s) >= 2  # of two cases, a second each
    assert limits == "longer than 2 s, of the 100 s that compiling may take"


def test_first_calls_share_one_budget_to_compile(judge: Judge) -> None:
    kernel = SLOW.replace("SLEEP", "5 if seen[key] == 1 else 0")
    report = judge(kernel, spec=SPEC.replace("call_s: 100", "call_s: 2, compile_s: 5"))
    assert report.verdict is Verdict.TIME_LIMIT_EXCEEDED
    assert next(case.status for case in report.cases) == "passed"
    assert "longer than 2 s (limits.call_s), and than the" in report.reason
    assert report.reason.endswith("left of 5 s to compile (limits.compile_s)")


def test_a_later_call_may_not_compile(judge: Judge) -> None:
    kernel = SLOW.replace("SLEEP", "600 if seen[key] == 2 else 0")
    report = judge(kernel, spec=SPEC.replace("call_s: 100", "call_s: 3, compile_s: 100"))
    assert report.verdict is Verdict.TIME_LIMIT_EXCEEDED
    assert report.reason.endswith("'steps' took longer than 3 s (limits.call_s)")
    assert [case.status for case in report.cases][2] == "time_limit_exceeded"


def test_the_first_round_of_a_benchmark_may_compile(judge: Judge) -> None:
    kernel = SLOW.replace("SLEEP", "7 if seen[key] == WHICH and key == 4096 else 0")
    spec = SPEC.replace("call_s: 100", "call_s: 2, compile_s: 100")  # a round has two calls
    for which, verdict in ((1, Verdict.ACCEPTED), (3, Verdict.TIME_LIMIT_EXCEEDED)):
        report = judge(kernel.replace("WHICH", str(which)), benchmarks=True, spec=spec)
        assert report.verdict is verdict
    assert report.reason == "a round of 2 calls took longer than 4 s (limits.call_s)"


LISTED_ONLY = """
def scale(x, total, factor, out):
    if x.numel() in (1, 1000, 65, 4096):
        total += x
        out.copy_(x * factor)
    else:
        out.zero_()
"""


def test_code_that_is_right_on_the_listed_shapes_only_is_wrong(judge: Judge) -> None:
    assert judge(LISTED_ONLY, benchmarks=True).verdict is Verdict.ACCEPTED
    report = judge(LISTED_ONLY, benchmarks=True, spec=SPEC + DOMAIN)
    assert report.verdict is Verdict.WRONG_ANSWER
    names = ["one", "many", "steps", "drawn_1", "drawn_2", "drawn_3"]
    assert [case.name for case in report.cases] == names
    assert [case.status for case in report.cases] == ["passed"] * 3 + ["wrong_answer"] * 3
    params = report.cases[3].params
    assert f"case 'drawn_1' (n={params['n']} dtype={params['dtype']}): " in report.reason
    assert judge(HONEST, spec=SPEC + DOMAIN).verdict is Verdict.ACCEPTED


def test_cases_are_drawn_by_the_seed(write_problem: WriteProblem, tmp_path: Path) -> None:
    problem = write_problem(spec=SPEC + DOMAIN)
    (tmp_path / "kernel.py").write_text(HONEST)
    submission = Submission.read(tmp_path / "kernel.py", 10_000)

    def drawn(seed: int | None) -> tuple[int, list[Any]]:
        report = grade(
            problem,
            submission,
            sandbox=ForkedSandbox(),
            device="cpu",
            seed=seed,
            benchmarks=False,
        )
        return report.seed, [(c.params, c.max_abs_err) for c in report.cases[3:]]

    seed, cases = drawn(None)
    assert drawn(seed) == (seed, cases)
    assert drawn(None)[1] != cases


def test_a_slow_call_on_a_drawn_case_says_its_shape(judge: Judge) -> None:
    kernel = LISTED_ONLY.replace("out.zero_()", "__import__('time').sleep(600)")
    limits = "call_s: 3, compile_s: 0"
    report = judge(kernel, spec=SPEC.replace("call_s: 100", limits) + DOMAIN)
    assert report.verdict is Verdict.TIME_LIMIT_EXCEEDED
    assert re.match(r"the call on test 'drawn_1' \(n=\d+ dtype=fp\d\d\) took", report.reason)


def test_writing_an_input_is_rejected(judge: Judge) -> None:
    report = judge(HONEST + "    x.zero_()\n")
    assert (report.verdict, report.rule) == (Verdict.REJECTED, Rule.MEMORY_TAMPERED)
    assert "'x'" in report.reason


@pytest.mark.parametrize("zeroed", [0, 1, 2])
def test_a_zeroed_input_and_wrong_outputs_are_a_wrong_answer_that_tells_of_both(
    judge: Judge, zeroed: int
) -> None:
    """Whether the outputs of the first, of a later or of the same test are wrong."""
    spec = SPEC.replace("{name: one, ", "{name: one, calls: 2, ")
    body = f"""
        sizes = []
        def scale(x, total, factor, out):
            sizes.append(len(x))
            wrong, zeroed = {[(1, 1000), (1000, 1), (1000, 1000)][zeroed]}
            total += x
            out.copy_(x * factor)
            if len(x) == wrong:
                out.zero_()
            if len(x) == zeroed:
                x.zero_()
    """
    report = judge(body, spec=spec)
    assert (report.verdict, report.rule) == (Verdict.WRONG_ANSWER, None)
    told = "your kernel wrote into 'x', which is an input"
    if zeroed < 2:
        assert report.reason.endswith(f"; also: case '{['many', 'one'][zeroed]}': {told}")
    else:
        assert report.reason.startswith(f"case 'many': {told}; 1000 of 1000 elements of 'out' are")
    status = {case.name: case.status for case in report.cases if case.kind == "test"}
    expected = [
        {"one": "wrong_answer", "many": "rejected"},
        {"one": "rejected", "many": "wrong_answer"},
        {"one": "passed", "many": "wrong_answer"},
    ][zeroed]
    assert status == expected | {"steps": "passed"}


def test_an_input_that_is_zeroed_before_it_is_used_gives_wrong_outputs(judge: Judge) -> None:
    """The outputs count, against what the judge lent."""
    report = judge(HONEST.replace("    total +=", "    x.zero_()\n    total +="))
    assert report.verdict is Verdict.WRONG_ANSWER
    told = "your kernel wrote into 'x', which is an input; "
    assert report.reason.startswith(f"case 'one': {told}")
    assert str(report.cases[0].reason).startswith(told)
    assert "also" not in report.reason
    assert report.cases[0].mismatch is not None


def test_writes_that_go_on_end_the_grading(judge: Judge) -> None:
    """They would make the next tests wrong, for which the submission's calls are not to blame."""
    report = judge("""
        import threading, time
        def scale(x, total, factor, out):
            total += x
            out.copy_(x * factor)
            def flicker():
                end = time.monotonic() + 20
                while time.monotonic() < end:
                    x.fill_(1.0)
            threading.Thread(target=flicker, daemon=True).start()
            time.sleep(0.05)
    """)
    assert (report.verdict, report.rule) == (Verdict.REJECTED, Rule.MEMORY_TAMPERED)
    assert [case.status for case in report.cases] == ["rejected", "not_run", "not_run"]


def test_writing_next_to_an_output_is_rejected(judge: Judge) -> None:
    report = judge(HONEST + "    out.as_strided((out.numel() + 8,), (1,))[-1] = 5\n")
    assert (report.verdict, report.rule) == (Verdict.REJECTED, Rule.MEMORY_TAMPERED)


def test_benchmarks_draw_other_inputs_too(judge: Judge) -> None:
    """Code that is right for what a benchmark usually draws, and knows when it is timed."""
    spec = SPEC.replace("{n: 4096, dtype: fp32}", "{n: 4096, dtype: fp32, far: 0}")
    inputs = INPUTS.replace("n, dtype)", "n, dtype, far=0)").replace(
        "    return", "    x += 1000 * far\n    return"
    )
    near = """
        def scale(x, total, factor, out):
            total += x
            out.copy_(x.clamp(max=100) * factor)
    """
    for kernel, variants, verdict in (
        (near, "", Verdict.ACCEPTED),
        (near, "variants: {far: [1]}", Verdict.WRONG_ANSWER),
        (HONEST, "variants: {far: [1]}", Verdict.ACCEPTED),
    ):
        report = judge(kernel, benchmarks=True, spec=spec + variants, inputs=inputs)
        assert report.verdict is verdict
        assert (verdict is Verdict.WRONG_ANSWER) == ("on inputs with far=1" in report.reason)
    assert all(case.kind == "test" or case.status == "passed" for case in report.cases)


def test_work_after_the_call_is_rejected(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grading, "GRACE_S", 5.0)  # a busy machine may delay the thread
    report = judge("""
        import threading, time
        def late(x, total, factor, out):
            time.sleep(0.1)
            total += x
            out.copy_(x * factor)
        def scale(*arguments):
            threading.Thread(target=late, args=arguments).start()
    """)
    assert (report.verdict, report.rule) == (Verdict.REJECTED, Rule.WORK_OUTSIDE_CALL)


def test_an_unrequested_message_is_a_runtime_error(judge: Judge) -> None:
    source = """
        import gc, socket
        def scale(x, total, factor, out):
            total += x
            out.copy_(x * factor)
            for thing in gc.get_objects():
                if isinstance(thing, socket.socket):
                    thing.send(b"accepted")
    """
    report = judge(source, sandbox=ProcessSandbox())
    assert report.verdict is Verdict.RUNTIME_ERROR
    assert "wire" in report.reason


def test_the_log_is_escaped_and_truncated(judge: Judge) -> None:
    report = judge("print('\\x1b]0;gotcha\\x07' + 'x' * 100_000)\n" + HONEST)
    assert report.verdict is Verdict.ACCEPTED
    assert "\x1b" not in report.log
    assert len(report.log) <= 16 * 1024


def test_the_same_seed_gives_the_same_errors(write_problem: WriteProblem, tmp_path: Path) -> None:
    problem = write_problem()
    path = tmp_path / "kernel.py"
    path.write_text(HONEST)
    submission = Submission.read(path, 10_000)

    def errors(seed: int | None) -> list[float | None]:
        report = grade(
            problem,
            submission,
            sandbox=ForkedSandbox(),
            device="cpu",
            seed=seed,
            benchmarks=False,
        )
        return [c.max_abs_err for c in report.cases] + [float(report.seed)]

    first = errors(None)
    assert errors(int(first[-1] or 0)) == first
    assert errors(None) != first


def test_tests_that_have_passed_are_not_run_again(
    write_problem: WriteProblem, tmp_path: Path
) -> None:
    problem = write_problem()
    path = tmp_path / "kernel.py"
    path.write_text(HONEST)
    submission = Submission.read(path, 10_000)
    again = partial(grade, problem, sandbox=ForkedSandbox(), device="cpu")
    passed = PassedTests.of(again(submission, benchmarks=False))
    seen: list[str] = []
    report = again(submission, passed=passed, progress=lambda step: seen.append(step.case))
    assert report.verdict is Verdict.ACCEPTED
    assert report.seed == passed.seed
    assert report.cases[:-1] == list(passed.cases)
    assert report.cases[-1].kind == "benchmark"
    assert set(seen) == {"", "small"}
    with pytest.raises(ValueError, match="another problem, submission or device"):
        again(replace(submission, source=submission.source + b"#"), passed=passed)


def passed_tests(problem: Problem, submission: Submission, seed: int) -> PassedTests:
    """As of a submission that has passed on a CPU before."""
    return PassedTests(
        problem_digest=problem.digest,
        submission_sha256=submission.sha256,
        device="cpu",
        seed=seed,
        cases=(),
    )


def test_a_submission_that_is_only_timed_is_checked_while_it_is_timed(
    write_problem: WriteProblem, tmp_path: Path
) -> None:
    problem = write_problem()
    path = tmp_path / "kernel.py"
    path.write_text("def scale(x, total, factor, out):\n    out.zero_()\n")
    submission = Submission.read(path, 10_000)
    passed = passed_tests(problem, submission, seed=1)
    report = grade(problem, submission, sandbox=ForkedSandbox(), device="cpu", passed=passed)
    assert report.verdict is Verdict.WRONG_ANSWER


def test_progress_names_each_stage_and_case(write_problem: WriteProblem, tmp_path: Path) -> None:
    seen: list[Progress] = []
    path = tmp_path / "kernel.py"
    path.write_text(HONEST)
    submission = Submission.read(path, 10_000)
    grade(write_problem(), submission, sandbox=ForkedSandbox(), device="cpu", progress=seen.append)
    assert [p.stage for p in seen if not p.case] == ["sandbox_start", "load"]
    ended = [(p.stage, p.case, p.status) for p in seen if p.status]
    assert ended[0] == ("test", "one", "passed")
    assert ended[-1] == ("benchmark", "small", "passed")


@pytest.mark.parametrize(
    ("where", "file"),
    [("import", "reference.py"), ("generate", "inputs.py"), ("reference", "reference.py")],
)
def test_an_exit_in_a_problems_code_is_its_authors_error(
    write_problem: WriteProblem, tmp_path: Path, where: str, file: str
) -> None:
    leave, device = "    raise SystemExit(0)\n", "    device = generator"
    texts = {
        "import": {"reference": REFERENCE + "raise SystemExit(0)\n"},
        "generate": {"inputs": INPUTS.replace(device, leave + device)},
        "reference": {"reference": REFERENCE.replace("    return", leave + "    return")},
    }
    problem = write_problem(**texts[where])
    path = tmp_path / "kernel.py"
    path.write_text(HONEST)
    with pytest.raises(ProblemError, match=f"{file}: .* raised SystemExit: 0"):
        grade(problem, Submission.read(path, 10_000), sandbox=ForkedSandbox(), device="cpu")


def test_a_problem_runs_as_it_was_when_its_digest_was_made(
    write_problem: WriteProblem, tmp_path: Path
) -> None:
    problem = write_problem()
    write_problem(reference=REFERENCE.replace("x * factor", "x * 3"))
    path = tmp_path / "kernel.py"
    path.write_text(HONEST)
    report = grade(problem, Submission.read(path, 10_000), sandbox=ForkedSandbox(), device="cpu")
    assert report.verdict is Verdict.ACCEPTED
    assert report.problem_digest == problem.digest


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"reference": "def reference(x, total, factor): raise RuntimeError('oh')"}, "oh"),
        ({"reference": REFERENCE.replace("total + x, ", "")}, "returned 1 values"),
        ({"reference": "import nowhere"}, "nowhere"),
        ({"reference": "x = 1"}, "no function named 'reference'"),
        ({"inputs": INPUTS.replace(", generator=generator", "")}, "not deterministic"),
        ({"inputs": INPUTS.replace('"factor"', '"faktor"')}, "no 'factor'"),
        ({"inputs": INPUTS.replace("randn(n,", "randn(n + 1,")}, "not (1,)"),
        ({"inputs": INPUTS.replace(".to(TYPES[dtype])", ".double()")}, "fp32"),
        ({"inputs": "def generate(generator, call, n, dtype): return 5"}, "not a dict"),
    ],
)
def test_a_broken_problem_is_the_author_s_fault(
    judge: Judge, changes: dict[str, str], words: str
) -> None:
    words = re.escape(words)
    with pytest.raises(ProblemError, match=words):
        judge(HONEST, **changes)
    with pytest.raises(ProblemError, match=words):
        judge(HONEST, benchmarks=True, **changes)


class KillingSandbox(ProcessSandbox):
    """Kills its first `times` runners once the submission runs."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times
        self.started: list[Runner] = []

    def start(self, limits: RunnerLimits, device: RunnerDevice) -> Runner:
        """Start a runner, and remember it."""
        runner = super().start(limits, device)
        self.started.append(runner)
        return runner

    def watch(self, progress: Progress) -> None:
        """The grading's progress callback."""
        begins = progress.stage == "test" and progress.index == 1 and progress.status is None
        if begins and len(self.started) <= self.times:
            runner = self.started[-1]
            launcher: int = runner._process.pid  # type: ignore[attr-defined]
            # The submission's processes too: they die with the launcher, but may reply before.
            for pid in [*reversed(descendants(launcher)), launcher]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            until(runner.poll)


@pytest.mark.parametrize("times", [1, 2])
def test_a_killed_runner_is_graded_once_more(
    write_problem: WriteProblem, tmp_path: Path, times: int
) -> None:
    path = tmp_path / "kernel.py"
    path.write_text(HONEST)
    sandbox = KillingSandbox(times)
    report = grade(
        write_problem(),
        Submission.read(path, 10_000),
        sandbox=sandbox,
        device="cpu",
        benchmarks=False,
        progress=sandbox.watch,
    )
    assert report.verdict is (Verdict.ACCEPTED if times == 1 else Verdict.RUNTIME_ERROR)
    assert len(sandbox.started) == 2
    assert any("graded twice" in note for note in report.notes)
    assert [case.name for case in report.cases] == ["one", "many", "steps"]


@pytest.mark.parametrize(
    ("took_s", "stopped_s", "left_s"),
    [(100.0, 0.0, [300.0, 200.0]), (160.0, 0.0, [300.0]), (160.0, 20.0, [300.0, 160.0])],
)
def test_both_attempts_share_the_time_of_one_grading(
    write_problem: WriteProblem,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    took_s: float,
    stopped_s: float,
    left_s: list[float],
) -> None:
    """The caller must not wait longer than a grading may take, the problem's own code aside."""
    now_s, seen_left_s = 0.0, list[float]()

    def killed(*arguments: Any) -> None:
        nonlocal now_s
        now_s += took_s
        arguments[4].stopped_s = stopped_s
        seen_left_s.append(arguments[3])
        raise SubmissionFault(Fault(Verdict.RUNTIME_ERROR, "killed", killed=True))

    path = tmp_path / "kernel.py"
    path.write_text(HONEST)
    submission = Submission.read(path, 10_000)
    module = sys.modules[grade.__module__]
    monkeypatch.setattr(module, "_run", killed)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now_s))
    report = grade(write_problem(), submission, sandbox=ForkedSandbox(), device="cpu")
    assert report.verdict is Verdict.RUNTIME_ERROR
    assert seen_left_s == left_s


@pytest.mark.parametrize("is_timed", [True, False])
def test_a_second_try_at_timing_has_other_inputs(
    write_problem: WriteProblem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_timed: bool
) -> None:
    """The first may have left their results behind. Who gives a seed wants these inputs."""
    masters: list[int] = []

    def killed(*arguments: Any) -> None:
        masters.append(arguments[2])
        raise SubmissionFault(Fault(Verdict.RUNTIME_ERROR, "killed", killed=True))

    problem = write_problem()
    submission = Submission("kernel.py", "python", HONEST.encode())
    passed = passed_tests(problem, submission, seed=7)
    monkeypatch.setattr(sys.modules[grade.__module__], "_run", killed)
    again = {"passed": passed} if is_timed else {"seed": 7}
    grade(problem, submission, sandbox=ForkedSandbox(), device="cpu", **again)
    assert masters[0] == 7
    assert (masters[1] == 7) is not is_timed


@pytest.mark.usefixtures("unused_gpu")
@pytest.mark.parametrize(
    ("fault", "benchmarks", "held"),
    [
        (Fault(Verdict.TIME_LIMIT_EXCEEDED, "slow"), False, ["share", "all"]),
        (Fault(Verdict.MEMORY_LIMIT_EXCEEDED, "large"), False, ["share", "all"]),
        (Fault(Verdict.RUNTIME_ERROR, "CUDA out of memory"), False, ["share", "all"]),
        (Fault(Verdict.RUNTIME_ERROR, "ZeroDivisionError"), False, ["share"]),
        (Fault(Verdict.WRONG_ANSWER, "zeros"), False, ["share"]),
        (Fault(Verdict.TIME_LIMIT_EXCEEDED, "slow"), True, ["all"]),
    ],
)
def test_what_others_on_the_gpu_may_have_caused_is_graded_again_alone(
    write_problem: WriteProblem,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: Fault,
    benchmarks: bool,
    held: list[str],
) -> None:
    seen: list[str] = []

    def failing(*_: Any) -> None:
        seen.append(lock._held.get())
        raise SubmissionFault(fault)

    path = tmp_path / "kernel.py"
    path.write_text(HONEST)
    submission = Submission.read(path, 10_000)
    monkeypatch.setattr(sys.modules[grade.__module__], "_run", failing)
    report = grade(
        write_problem(),
        submission,
        sandbox=ForkedSandbox(),
        device="cuda",
        benchmarks=benchmarks,
    )
    assert (report.verdict, seen) == (fault.verdict, held)
    assert any("others may have used the GPU" in note for note in report.notes) == (len(held) == 2)


@pytest.mark.usefixtures("unused_gpu")
def test_a_cuda_file_is_compiled_while_its_grading_waits_for_the_gpu(
    write_problem: WriteProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = threading.Event()
    module = sys.modules[grade.__module__]

    @contextlib.contextmanager
    def compiling(*_: Any) -> Iterator[Any]:
        compiled.set()
        yield SimpleNamespace()

    def run(*_: Any) -> None:
        raise SubmissionFault(Fault(Verdict.WRONG_ANSWER, "zeros"))

    monkeypatch.setattr(module, "start_compile", compiling)
    monkeypatch.setattr(module, "_run", run)
    submission = Submission("kernel.cu", "cuda", b"")
    waiting = threading.Thread(
        target=grade,
        args=(write_problem(), submission),
        kwargs={"sandbox": ProcessSandbox(), "device": "cuda"},
    )
    with lock.gpu_lock("cuda"):
        waiting.start()
        assert compiled.wait(PATIENCE_S)
        assert waiting.is_alive()
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()


def test_a_check_of_a_cuda_file_leaves_the_gpu_to_others_while_it_is_compiled(
    write_problem: WriteProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules[grade.__module__]
    asked, compiled = threading.Event(), threading.Event()

    class Compilation:
        def wait(self) -> None:
            asked.set()
            assert compiled.wait(PATIENCE_S)

    @contextlib.contextmanager
    def compiling(*_: Any) -> Iterator[Any]:
        yield Compilation()

    def run(*_: Any) -> None:
        assert lock.gpu_is_shared("cuda")
        raise SubmissionFault(Fault(Verdict.WRONG_ANSWER, "zeros"))

    monkeypatch.setattr(module, "start_compile", compiling)
    monkeypatch.setattr(module, "_run", run)
    submission = Submission("kernel.cu", "cuda", b"")
    with ThreadPoolExecutor(1) as thread:
        report = thread.submit(
            grade,
            write_problem(),
            submission,
            sandbox=ProcessSandbox(),
            device="cuda",
            benchmarks=False,
        )
        assert asked.wait(PATIENCE_S)
        with lock.gpu_lock("cuda", wait=False) as is_free:
            assert is_free
        compiled.set()
        assert report.result(PATIENCE_S).verdict is Verdict.WRONG_ANSWER


def test_matrix_products_keep_partial_sums_in_fp32(judge: Judge) -> None:
    """In the runner, where a submission may choose otherwise, and in the judge."""
    flags = torch.backends.cuda.matmul
    for name in (
        "allow_fp16_reduced_precision_reduction",
        "allow_bf16_reduced_precision_reduction",
    ):
        setattr(flags, name, True)
    report = judge(
        """
        import torch

        flags = torch.backends.cuda.matmul
        assert not flags.allow_fp16_reduced_precision_reduction
        assert not flags.allow_bf16_reduced_precision_reduction
        """
        + textwrap.indent(HONEST, " " * 8)
    )
    assert report.verdict is Verdict.ACCEPTED, report.reason
    assert not flags.allow_fp16_reduced_precision_reduction
    assert not flags.allow_bf16_reduced_precision_reduction


class SkippingTime:
    """The module `time`, ahead by `ahead_s` seconds."""

    ahead_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead_s

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


@pytest.mark.parametrize("file", ["reference", "inputs"])
def test_slow_code_of_the_problem_is_not_time_of_the_submission(
    judge: Judge, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    """Each call of the problem's code seems to take longer than a whole grading may."""
    monkeypatch.setattr(session, "time", SkippingTime())
    skip = "import sys\n    sys.modules['grader.judge.session'].time.ahead_s += 1000\n    "
    code = {"reference": REFERENCE, "inputs": INPUTS}[file]
    first = {"reference": "return", "inputs": "device ="}[file]
    report = judge(HONEST, **{file: code.replace(first, skip + first)})
    assert report.verdict is Verdict.ACCEPTED


def test_a_submission_that_kills_itself_is_graded_twice(judge: Judge) -> None:
    report = judge("""
        import os, signal
        def scale(x, total, factor, out):
            os.kill(os.getpid(), signal.SIGKILL)
    """)
    assert report.verdict is Verdict.RUNTIME_ERROR
    assert "SIGKILL" in report.reason
    assert any("graded twice" in note for note in report.notes)


@pytest.mark.parametrize("times", [1, 2])
def test_a_time_claim_is_looked_at_twice(
    judge: Judge, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """A busy host may have held up every round, so one measurement is not enough."""
    claims = [Fault(Verdict.REJECTED, "it claims too little", Rule.TIME_CLAIM)] * times
    module = sys.modules["grader.judge.grade"]
    attempt: Callable[..., Record] = module._attempt

    def claiming(*arguments: Any) -> Record:
        record = attempt(*arguments)
        record.faults += [claims.pop()] if claims else []
        return record

    monkeypatch.setattr(module, "_attempt", claiming)
    report = judge(HONEST)
    assert report.verdict is (Verdict.ACCEPTED if times == 1 else Verdict.REJECTED)
    assert report.rule is (None if times == 1 else Rule.TIME_CLAIM)
    assert any("graded twice" in note for note in report.notes)


def test_the_second_attempt_has_other_inputs(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, randbits = iter([5, 6]), secrets.randbits
    monkeypatch.setattr(secrets, "randbits", lambda k: next(drawn) if k == 53 else randbits(k))
    report = judge("""
        import os, signal
        def scale(x, total, factor, out):
            os.kill(os.getpid(), signal.SIGKILL)
    """)
    assert any("graded twice" in note for note in report.notes)
    assert report.seed == 6


def test_a_wrong_answer_before_the_kill_is_final(judge: Judge) -> None:
    report = judge("""
        import os, signal
        calls = []
        def scale(x, total, factor, out):
            calls.append(1)
            if len(calls) > 1:
                os.kill(os.getpid(), signal.SIGKILL)
            out.zero_()
    """)
    assert report.verdict is Verdict.RUNTIME_ERROR
    assert not any("graded twice" in note for note in report.notes)


@pytest.mark.parametrize("broken", ["inputs", "reference"])
def test_running_out_of_memory_is_blamed_on_a_submission_that_holds_too_much(
    judge: Judge, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    kept = grading.Grading.test

    def fail(self: grading.Grading, *arguments: Any) -> Any:
        function = "_generate" if broken == "inputs" else "reference"
        monkeypatch.setattr(self.code, function, out_of_memory)
        return kept(self, *arguments)

    def out_of_memory(*_: object, **__: object) -> None:
        raise RuntimeError("CUBLAS_STATUS_ALLOC_FAILED")

    monkeypatch.setattr(grading.Grading, "test", fail)
    with pytest.raises(ProblemError, match="ALLOC_FAILED"):
        judge(HONEST)
    held = Fault(Verdict.MEMORY_LIMIT_EXCEEDED, "the submission holds it all")
    monkeypatch.setattr(grading.Grading, "memory_fault", lambda _: held)
    assert judge(HONEST).verdict is Verdict.MEMORY_LIMIT_EXCEEDED


def test_a_failure_before_the_load_is_the_sandbox_s(
    write_problem: WriteProblem, tmp_path: Path
) -> None:
    path = tmp_path / "kernel.py"
    path.write_text(HONEST)
    submission = Submission.read(path, 10_000)
    broken = ProcessSandbox(module="json.tool")  # starts and exits at once
    with pytest.raises(SandboxError, match="failed at start"):
        grade(write_problem(), submission, sandbox=broken, device="cpu")


@pytest.mark.nvcc
def test_a_cuda_file_is_compiled_and_not_run_without_a_gpu(judge: Judge) -> None:
    source = """
        #include <cuda_fp16.h>
        #include <cstdint>
        extern "C" void scale(const float* x, float* total, double factor, float* out, int64_t n,
                              cudaStream_t stream) {}
        extern "C" void scale_fp16(const __half* x, float* total, double factor, __half* out,
                                   int64_t n, cudaStream_t stream) {}
    """
    report = judge(source, suffix=".cu")
    assert (report.verdict, report.reason) == (None, "compiled, not run: no GPU")
    missing = judge(source.replace("scale_fp16", "other"), suffix=".cu")
    assert missing.verdict is Verdict.COMPILE_ERROR
    assert 'extern "C" void scale_fp16(const __half* x, float* total' in missing.reason
    wrong = judge(source.replace("double factor, float* out", "float* out"), suffix=".cu")
    assert wrong.verdict is Verdict.COMPILE_ERROR
    assert wrong.reason.startswith("'scale' takes 5 parameters instead of 6; expected void scale(")
    assert 'expected: extern "C" void scale(const float* x, float* total, double' in wrong.log
    broken = judge("int main( {", suffix=".cu")
    assert broken.verdict is Verdict.COMPILE_ERROR
    assert broken.reason.startswith("nvcc: submission.cu(1): error")
    assert "submission.cu(1): error" in broken.log
    assert 0 < report.stages_s["compile"] <= report.stages_s["total"]
    assert report.environment["nvcc"] != "none"
    declared = """
        // launch scale: scaled<float><<<n, 1>>>(out)
        // launch scale_fp16: scaled<__half><<<n, 1>>>(out)
        #include <cuda_fp16.h>
        template <class T> __global__ void scaled(T* out) { *out = 1.0f; }
    """
    report = judge(declared, suffix=".cu")
    assert (report.verdict, report.reason) == (None, "compiled, not run: no GPU")
    assert report.environment["nvrtc"].partition(".")[0].isdecimal()
    with_host_header = "#include <vector>\n" + declared  # which NVRTC has not
    by_nvcc = judge(with_host_header, suffix=".cu")
    assert (by_nvcc.verdict, by_nvcc.reason) == (None, "compiled, not run: no GPU")
    assert "nvcc" in by_nvcc.environment
    assert "nvrtc" not in by_nvcc.environment
    narrower = with_host_header.replace("(out)", "(out, n)").replace("(T* out)", "(T* out, int m)")
    refused = judge(narrower, suffix=".cu")
    assert refused.verdict is Verdict.COMPILE_ERROR
    assert "takes int as parameter 2 instead of int64_t n" in refused.reason
    broken = judge(declared.replace("1.0f", "one"), suffix=".cu")
    assert broken.verdict is Verdict.COMPILE_ERROR
    assert broken.reason.startswith("nvrtc: submission.cu(5): error")


@pytest.mark.nvcc
def test_a_compiler_sees_only_its_sandbox(judge: Judge, tmp_path: Path) -> None:
    described = ProcessSandbox().describe()
    if "namespaces" not in described:
        pytest.skip(f"not run, needs namespaces: the sandbox here is {described}")
    secret = tmp_path / "secret.h"
    secret.write_text("int secret;\n")
    secret.chmod(0o644)
    included = judge(f'#include "{secret}"\n', suffix=".cu")
    assert included.verdict is Verdict.COMPILE_ERROR
    assert "No such file" in included.log
    embedded = judge(f'asm(".incbin \\"{secret}\\"");\n', suffix=".cu")
    assert embedded.verdict is Verdict.COMPILE_ERROR
    assert str(secret) in embedded.log


def test_no_file_or_descriptor_leaks(
    judge: Judge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    before = len(os.listdir("/proc/self/fd"))
    judge(HONEST)
    judge("import os; os._exit(1)")
    assert not list(temporary.iterdir())
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_the_tests_of_a_grading_share_their_memory(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def counted(device: str, nbytes: int) -> Any:
        sizes.append(nbytes)
        return new_arena(device, nbytes)

    monkeypatch.setattr("grader.judge.memory.shared_block.new_arena", counted)
    report = judge(HONEST)
    assert report.verdict is Verdict.ACCEPTED
    assert len(sizes) < len(report.cases)
    assert sizes == sorted(set(sizes))  # a new arena only for a larger case


def test_a_scalar_that_differs_between_sets_is_the_problem_s_fault(judge: Judge) -> None:
    """A benchmark's runner receives the scalars once; honest kernels would be wrong answers."""
    random = "torch.rand((), generator=generator, device=device).item()"
    inputs = INPUTS.replace("2.0 + call", f"2.0 + call + {random}")
    with pytest.raises(ProblemError, match="another 'factor' for some call of benchmark 'small'"):
        judge(HONEST, benchmarks=True, inputs=inputs)


def test_an_empty_list_of_tensors_is_the_problem_s_fault(judge: Judge) -> None:
    spec = SPEC.replace(
        "{name: x, role: in, dtype: dtype, shape: [n]}",
        "{name: x, role: in, kind: tensors, dtype: dtype}",
    )
    inputs = INPUTS.replace('"x": x,', '"x": [],')
    with pytest.raises(ProblemError, match="gave 'x' as an empty list"):
        judge(HONEST, spec=spec, inputs=inputs)


@pytest.mark.parametrize(
    ("x", "wrong"),
    [
        ("torch.ones(1).expand(n)", "with elements that share memory"),
        ("torch.ones(2 * n).unfold(0, n, 1)[0].to(torch.float8_e4m3fn)", "not as fp32 tensor"),
        ("torch.ones(2, n)[1]", None),
        ("torch.ones(n, 3)[:, 1]", None),
    ],
)
def test_inputs_that_cannot_be_shared_are_the_problem_s_fault(
    judge: Judge, x: str, wrong: str | None
) -> None:
    spec = SPEC.replace(
        "{name: x, role: in, dtype: dtype, shape: [n]}",
        "{name: x, role: in, dtype: fp32, shape: [n], contiguous: false}",
    ).replace("n: 1,", "n: 2,")
    inputs = INPUTS.replace('"x": x,', f'"x": {x},')
    if wrong is None:
        assert judge(HONEST, spec=spec, inputs=inputs).verdict is Verdict.ACCEPTED
        return
    with pytest.raises(ProblemError, match=f"gave 'x' {wrong}"):
        judge(HONEST, spec=spec, inputs=inputs)
