"""Verification of a problem as `grade verify` does it, without torch.compile."""

from __future__ import annotations

from grader.judge.problem_code import ProblemCode
from grader.judge.record import Device
from grader.judge.verification.case_check import SEED, case_values, check_case
from grader.judge.verification.result import VerificationResult
from grader.judge.verification.verify import DRAWN


def verified(code: ProblemCode, device: Device) -> VerificationResult:
    """Honest implementations and mutants on every listed case, and on drawn ones."""
    problem = code.problem
    listed = problem.cases("test", device) + problem.cases("benchmark", device)
    result = VerificationResult()
    for case in listed + problem.draw_cases(device, SEED, DRAWN):
        data = case_values(code, case, SEED)
        result.rows += check_case(code, data, {"eager": code.eager}, is_drawn=case not in listed)
    return result
