"""Which entry a new submission counts for, on a board that takes teams."""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, or_, select, union

from grader.board.owners import owner, owner_name
from grader.db.tables import boards, jobs, submissions, team_members, teams, users
from grader.fleet.job import EntryRefused, State

COUNTS: ColumnElement[bool] = or_(jobs.c.state != State.CANCELLED, jobs.c.leased_by.is_not(None))
"""That a submission was not cancelled before a worker had it."""


def team_of(connection: Connection, user: str) -> str | None:
    """The name of the team that a user is in; None for none."""
    query = (
        select(teams.c.name)
        .join(team_members, team_members.c.team_id == teams.c.id)
        .join(users, users.c.id == team_members.c.user_id)
        .where(users.c.name == user)
    )
    return connection.scalar(query)


def choose_entry(connection: Connection, user: str, problem: str, team_size: int) -> str | None:
    """The team that a user's submission counts for now; None for the user alone.

    Raises `EntryRefused` if the user has another entry on this board, so that each person has one,
    and if more people than `team_size` would share this one. The caller's transaction must exclude
    other submits.
    """
    team = team_of(connection, user)
    mine = owner_name(user, team)
    query = (
        select(owner)
        .select_from(submissions)
        .join(jobs, jobs.c.submission_id == submissions.c.id)
        .where(
            submissions.c.user == user,
            submissions.c.problem == problem,
            owner != mine,
            jobs.c.batch_id.is_(None),
            COUNTS,
        )
        .limit(1)
    )
    other = connection.scalar(query)
    if other is not None:
        before = "alone" if other == user else f"for the team {other}"
        raise EntryRefused(
            f"you have submitted to {problem} {before}, and a person has one entry on each board; "
            + ("leave your team to go on" if other == user else f"join {other} again to go on")
        )
    if team is not None and (count := len(people(connection, team, problem))) > team_size:
        raise EntryRefused(
            f"{problem} takes teams of up to {team_size}, and {count} people are in the team "
            f"{team} or have submitted for it"
        )
    return team


def people(connection: Connection, team: str, problem: str) -> set[str]:
    """The members of a team, and those who have submitted to a board for it."""
    members = (
        select(users.c.name)
        .join(team_members, team_members.c.user_id == users.c.id)
        .join(teams, teams.c.id == team_members.c.team_id)
        .where(teams.c.name == team)
    )
    authors = (
        select(submissions.c.user)
        .join(jobs, jobs.c.submission_id == submissions.c.id)
        .where(submissions.c.team == team, submissions.c.problem == problem, COUNTS)
    )
    return set(connection.scalars(union(members, authors)))


def team_boards(connection: Connection, team: str) -> dict[str, int | None]:
    """The problems that were submitted to for a team, each with the size that its board takes."""
    query = (
        select(submissions.c.problem, boards.c.team_size)
        .join(boards, boards.c.problem == submissions.c.problem, isouter=True)
        .where(submissions.c.team == team)
        .distinct()
    )
    return {row[0]: row[1] for row in connection.execute(query)}
