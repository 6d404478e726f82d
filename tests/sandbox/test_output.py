from __future__ import annotations

from grader.report import LOG_BYTES, escape
from grader.sandbox.output import END_BYTES, CapturedOutput


def printed(*chunks: bytes) -> CapturedOutput:
    output = CapturedOutput(limit_bytes=1 << 20)
    for chunk in chunks:
        output.add(chunk)
    return output


def test_a_report_shows_the_start_and_the_end_of_the_output() -> None:
    lines = [f"spam {i}\n".encode() for i in range(3000)]
    kept = printed(*lines, b"\x1b[31mValueError: the end\n").kept()
    log = escape(kept.decode(), LOG_BYTES)
    assert log.startswith("spam 0\nspam 1\n")
    assert log.endswith("spam 2999\n\\x1b[31mValueError: the end\n")
    left_out = sum(map(len, lines)) + len(b"\x1b[31mValueError: the end\n") - 2 * END_BYTES
    assert f"\n[{left_out} bytes left out]\n" in log


def test_output_that_fits_is_kept_whole() -> None:
    text = b"x" * (2 * END_BYTES)
    assert printed(text[:100], text[100:]).kept() == text
