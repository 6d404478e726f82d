"""What `grade leaderboard`, `results` and `show` read from a server."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from grader.cli.remote import path_segment

if TYPE_CHECKING:
    from grader.board import BoardEntry, ProblemVersion
    from grader.cli.output.text_tables import ResponsiveTable
    from grader.cli.remote import Client

PAGE_ENTRIES = 1000
"""Entries in one answer, the most that a server gives."""

PAGE_SUBMISSIONS = 200
"""Submissions in one answer, the most that a server gives."""


def read_leaderboards(
    client: Client, problem: str, gpu: str | None, version: str | None
) -> tuple[ProblemVersion | None, dict[str, list[BoardEntry]], list[ProblemVersion], str | None]:
    """The version that is shown, its entries on each GPU whose name contains `gpu`, the other
    versions that have results, newest first, and since when the board is frozen, if it is.

    `result_id` of an entry is the number of its submission, or 0 for a result without one.
    """
    path = f"/leaderboards/{path_segment(problem)}"
    chosen = {"version": version} if version else {}
    first = client.request("GET", path, params={"limit": 1, **chosen})
    names = [name for name in first["gpus"] if gpu is None or gpu.lower() in name.lower()]
    boards = {name: _entries(client, path, {"gpu": name, **chosen}) for name in names}
    listed = client.request("GET", f"/problems/{path_segment(problem)}/versions")["versions"]
    versions = [_version(one) for one in listed]
    shown = next((one for one in versions if one.digest == first["digest"]), None)
    others = [one for one in reversed(versions) if one.results and one is not shown]
    settings = first["board"]
    # A server of an older grade has no frozen boards.
    return shown, boards, others, settings["freeze_at"] if settings.get("frozen") else None


def entries_json(boards: dict[str, list[BoardEntry]]) -> list[dict[str, Any]]:
    """The `leaderboards` of `grade leaderboard --json`, with each result's submission."""
    return [
        {
            "gpu": gpu,
            "entries": [
                asdict(one) | {"result_id": None, "submission_id": one.result_id or None}
                for one in entries
            ],
        }
        for gpu, entries in boards.items()
    ]


def print_results(
    client: Client, problem: str | None, user: str | None, last: int, as_json: bool
) -> None:
    """The newest submissions of a user, by default of the token's."""
    from grader.cli.output.terminal import print_json, safe_text, stdout

    name = user or client.request("GET", "/me")["name"]
    found, more = _submissions(client, {"user": name, "problem": problem}, last)
    if as_json:
        print_json({"results": [_result_fields(one) for one in found], "more": more})
        return
    if not found:
        what = " of ".join(filter(None, ["No submission", problem, name]))
        stdout().print(safe_text(f"{what} is on {client.server}"), soft_wrap=True)
        return
    stdout().print(_results_table(found))
    if more:
        stdout().print(f"older ones are not listed; --last {2 * last} lists more", style="dim")


def show_submission(client: Client, number: int, as_json: bool) -> None:
    """A submission's report, or how far its grading is."""
    from grader.cli.local_grading import print_report
    from grader.cli.output.terminal import print_json, safe_text, stdout
    from grader.cli.remote_submit import as_report

    answer = client.request("GET", f"/submissions/{number}")
    if as_json:
        print_json(answer)
        return
    whose = f" for the team {answer['team']}" if answer.get("team") else ""
    who = f"submission {number} by {answer['user']}{whose} to {answer['problem']}"
    page = f"{client.server}/submissions/{number}"
    if answer["state"] != "done" or answer["verdict"] is None:
        text = f"{who}: {state_text(answer)}; {page}"
        stdout().print(safe_text(text, 1000), soft_wrap=True)
        return
    # What others may not see is null there, and a report needs a name.
    hidden = {"submission_sha256": "", "submission_name": "", "reason": ""}
    known = {key: value for key, value in answer.items() if value is not None}
    print_report(as_report(hidden | known), as_json=False)
    what = "; withdrawn by its author" if answer.get("withdrawn") else ""
    stdout().print(safe_text(f"{who}{what}; {page}", 1000, style="dim"), soft_wrap=True)


def state_text(job: dict[str, Any]) -> str:
    """How far an unfinished submission is, in words."""
    progress = job.get("progress")
    if job["state"] == "queued" and job.get("position"):
        return f"waiting, position {job['position']}"
    if progress:
        counted = f" {progress['index'] + 1} of {progress['total']}" if progress["total"] else ""
        return f"{progress['stage'].replace('_', ' ')}{counted}"
    return {"done": "graded; its result is not yours to see yet", "leased": "starting"}.get(
        job["state"], str(job["state"])
    )


def _entries(client: Client, path: str, params: dict[str, str]) -> list[BoardEntry]:
    """All entries of one leaderboard, best first."""
    from grader.board import BoardEntry

    found: list[BoardEntry] = []
    while True:
        page = {"limit": PAGE_ENTRIES, "offset": len(found), **params}
        answer = client.request("GET", path, params=page)
        for one in answer["entries"]:
            fields = {name: one[name] for name in BoardEntry.__dataclass_fields__ if name in one}
            fields |= {"ci_us": tuple(one["ci_us"]), "result_id": one["submission_id"] or 0}
            found.append(BoardEntry(**fields))
        if not answer["entries"] or len(found) >= answer["total"]:
            return found


def _version(answer: dict[str, Any]) -> ProblemVersion:
    from grader.board import ProblemVersion

    fields = {name: answer[name] for name in ProblemVersion.__dataclass_fields__}
    for name in ("first_at", "last_at"):
        fields[name] = fields[name] and datetime.fromisoformat(fields[name])
    return ProblemVersion(**fields)


def _submissions(
    client: Client, filters: dict[str, str | None], most: int
) -> tuple[list[dict[str, Any]], bool]:
    """The newest submissions, and whether there are more."""
    params: dict[str, Any] = {name: value for name, value in filters.items() if value is not None}
    found: list[dict[str, Any]] = []
    while True:
        params["limit"] = min(most + 1 - len(found), PAGE_SUBMISSIONS)
        answer = client.request("GET", "/submissions", params=params)
        found += answer["submissions"]
        params["before"] = answer["before"]
        if answer["before"] is None or len(found) > most:
            return found[:most], len(found) > most


def _result_fields(one: dict[str, Any]) -> dict[str, Any]:
    """The fields of `grade results --json`; those that the list lacks are in `grade show`."""
    names = ("problem_digest", "rule", "reason", "score_ci_us", "device", "unranked", "file")
    return dict.fromkeys(names) | one | {"created_at": one["submitted_at"]}


def _results_table(found: list[dict[str, Any]]) -> ResponsiveTable:
    from rich.text import Text

    from grader.cli.output.render import micros, verdict_style
    from grader.cli.output.terminal import safe_text
    from grader.cli.output.text_tables import ResponsiveTable, TableColumn, number_column
    from grader.report import Verdict

    def verdict(one: dict[str, Any]) -> Text:
        if one["verdict"] is None:
            return safe_text(str(one["state"]), 20, "dim")
        return Text(one["verdict"].replace("_", " "), verdict_style(Verdict(one["verdict"])))

    scores = ["–" if one["score_us"] is None else micros(one["score_us"]) for one in found]
    ranked = [
        "withdrawn" if one.get("withdrawn") else {True: "yes", False: "no"}.get(one["ranked"], "")
        for one in found
    ]
    when = [f"{datetime.fromisoformat(one['submitted_at']).astimezone():%Y-%m-%d %H:%M}"
            for one in found]  # fmt: skip
    return ResponsiveTable(
        [
            number_column("submission", [Text(f"#{one['id']}", "bold") for one in found]),
            TableColumn("problem", [safe_text(one["problem"], 64) for one in found]),
            TableColumn("verdict", [verdict(one) for one in found]),
            number_column("score", [Text(text) for text in scores], 1),
            TableColumn("GPU", [safe_text(one["gpu"] or "", 40) for one in found], 4),
            TableColumn("when", [Text(text) for text in when], 2, style="dim"),
            TableColumn("ranked", [Text(text) for text in ranked], 3),
        ]
    )
