"""Whose entry a result or a submission counts for: its user's, or that of a team.

A submission keeps the team that it was made for. No team has the name of a user, so that one name
says whose entry it is, and everything that compares entries compares these names.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, func, inspect, select

from grader.db.tables import jobs, results, submissions, teams


def owner_name(user: str, team: str | None) -> str:
    """The name of the entry that a user's submission for a team, or for none, counts for."""
    return team or user


owner: ColumnElement[str] = func.coalesce(submissions.c.team, submissions.c.user)
"""`owner_name` of a row of `submissions`."""


def teams_of_results(connection: Connection, problem_digest: str) -> dict[int, str]:
    """Result id → team, of the results for this version of a problem that count for teams.

    A query of its own costs nothing on a board without teams, unlike a join of thousands of results
    with their submissions. It must follow the query for the results: what that has found is there.
    """
    query = (
        select(jobs.c.result_id, submissions.c.team)
        .join(jobs, jobs.c.submission_id == submissions.c.id)
        .where(submissions.c.problem_digest == problem_digest, submissions.c.team.is_not(None))
    )
    return {number: team for number, team in connection.execute(query) if number is not None}


def owner_of_result() -> ColumnElement[str]:
    """`owner_name` of a row of `results` alone."""
    team = (
        select(submissions.c.team)
        .join(jobs, jobs.c.submission_id == submissions.c.id)
        .where(jobs.c.result_id == results.c.id)
        .correlate(results)
        .scalar_subquery()
    )
    return func.coalesce(team, results.c.user)


def is_owned_by(user: str, team: str | None) -> ColumnElement[bool]:
    """That a submission counts for a team; without one, for its user alone."""
    if team is not None:
        return submissions.c.team == team
    return (submissions.c.user == user) & submissions.c.team.is_(None)


def has_teams(connection: Connection) -> bool:
    """Whether the database has teams. Only the migrations make their tables, not `Board.open`."""
    return inspect(connection).has_table(teams.name)
