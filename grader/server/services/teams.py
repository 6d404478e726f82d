"""Teams of users, who share one entry on boards that take teams.

A submission keeps the team that it was made for (`grader.fleet.team_entries`). Changes of members
therefore move no results, and a team with submissions is never removed.

A code to join a team is 128 random bits, shown once and used once. Only its SHA-256 is stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, Engine, RowMapping, delete, func, insert, select

from grader.db.engine import acquire_lock, connect, transaction
from grader.db.tables import submissions, team_codes, team_members, teams, users
from grader.fleet.team_entries import people, team_boards, team_of
from grader.report import one_line
from grader.server.services import Conflict, Invalid, NotFound
from grader.server.services.accounts import (
    MAX_NAME_CHARS,
    User,
    check_name_is_free,
    find_user,
    name_key,
    validate_name,
)
from grader.server.services.audit import record_action
from grader.server.services.tokens import digest, new_code

CODE_LIFETIME = timedelta(days=7)

MAX_CODES = 20
"""Codes of a team that are neither used nor expired."""

NOT_VALID = "this code is not valid, or no longer; ask a member of the team for another one"


@dataclass(frozen=True)
class Team:
    """A team of users."""

    name: str
    created_at: datetime
    members: list[str]
    """The names of its users, sorted; empty for a team that only its results keep."""


class Teams:
    """The teams of one database. Every method raises `BoardError` if the database fails."""

    def __init__(self, engine: Engine, now: Callable[[], datetime]) -> None:
        self._engine = engine
        self._now = now

    def teams(self) -> list[Team]:
        """Every team with its members, sorted by name."""
        with connect(self._engine) as connection:
            rows = connection.execute(_TEAMS.order_by(teams.c.name_key, users.c.name_key))
            found: dict[str, Team] = {}
            for row in rows:
                team = found.setdefault(row.name, Team(row.name, row.created_at, []))
                team.members.extend([] if row.member is None else [row.member])
        return list(found.values())

    def team(self, name: str) -> Team:
        """A team by name, ignoring case. Raises `NotFound`."""
        with connect(self._engine) as connection:
            team = _find_team(connection, name)
            mine = _TEAMS.where(teams.c.id == team["id"]).order_by(users.c.name_key)
            rows = connection.execute(mine).all()
        members = [row.member for row in rows if row.member is not None]
        return Team(team["name"], team["created_at"], members)

    def of_user(self, user: str) -> str | None:
        """The name of the team that a user is in; None for none."""
        with connect(self._engine) as connection:
            return team_of(connection, user)

    def add(self, name: str, user: User) -> Team:
        """Make a team with one member.

        Raises `Invalid` for a name that no user could have, and `Conflict` for one that is taken or
        looks like one that is, and for a user who is in a team.
        """
        name, now = validate_name(name), self._now()
        with transaction(self._engine, "admin") as connection:
            key, look = check_name_is_free(connection, name)
            _check_is_in_none(connection, user.id, user.name)
            new = {"name": name, "name_key": key, "skeleton": look, "created_at": now}
            added = connection.execute(insert(teams).values(new))
            assert added.inserted_primary_key is not None
            team_id = added.inserted_primary_key[0]
            connection.execute(insert(team_members).values(user_id=user.id, team_id=team_id))
            record_action(connection, now, user.name, "team new", name)
        return Team(name, now, [user.name])

    def invite(self, name: str, user: User) -> tuple[str, datetime]:
        """Make a code with which one user can join a team. Returns it, and when it ends.

        Raises `NotFound`, and `Conflict` for a user who is not a member, and for a team that has
        `MAX_CODES`.
        """
        now, code = self._now(), new_code()
        until = now + CODE_LIFETIME
        with transaction(self._engine, "admin") as connection:
            team = _find_team(connection, name)
            _check_is_member(connection, team, user)
            connection.execute(delete(team_codes).where(team_codes.c.until <= now))
            count = select(func.count()).where(team_codes.c.team_id == team["id"])
            if int(connection.scalar(count) or 0) >= MAX_CODES:
                raise Conflict(
                    f"{team['name']} has {MAX_CODES} codes that are unused; give out those"
                )
            new = {"hash": digest(code), "team_id": team["id"], "user_id": user.id, "until": until}
            connection.execute(insert(team_codes).values(new))
            record_action(connection, now, user.name, "team invite", team["name"])
        return code, until

    def join(self, code: str, user: User) -> Team:
        """Put a user into the team of a code, and use it up.

        Raises `Invalid` for a code that cannot be used, and `Conflict` like `add_member`, which
        leaves the code.
        """
        with transaction(self._engine, "admin") as connection:
            usable = (team_codes.c.hash == digest(code)) & (team_codes.c.until > self._now())
            used = delete(team_codes).where(usable).returning(team_codes.c.team_id)
            team_id = connection.scalar(used)
            if team_id is None:
                raise Invalid(NOT_VALID)
            row = connection.execute(select(teams).where(teams.c.id == team_id)).mappings().one()
            self._join(connection, row, user.id, user.name, by=user.name)
        return self.team(row["name"])

    def leave(self, name: str, user: User) -> None:
        """Take a user out of a team. The last one to leave removes it, unless it has submissions.
        Raises `NotFound`, and `Conflict` for a user who is not a member."""
        with transaction(self._engine, "admin") as connection:
            team = _find_team(connection, name)
            _check_is_member(connection, team, user)
            self._leave(connection, team, user.id, user.name, by=user.name)

    def add_member(self, name: str, user: str, by: str) -> None:
        """Put a user into a team. Does nothing if they are in it.

        Raises `NotFound`, and `Conflict` for a user who is in another team, and if too many people
        would share an entry of the team on a board.
        """
        with transaction(self._engine, "admin") as connection:
            team, member = _find_team(connection, name), find_user(connection, user)
            if member["role"] == "worker":
                raise Invalid(f"{member['name']} is a worker, and only competitors are in teams")
            if _team_id_of(connection, member["id"]) != team["id"]:
                self._join(connection, team, member["id"], member["name"], by)

    def remove_member(self, name: str, user: str, by: str) -> None:
        """Take a user out of a team, as `leave` does. Raises `NotFound`, also if they are not in
        it."""
        with transaction(self._engine, "admin") as connection:
            team, member = _find_team(connection, name), find_user(connection, user)
            if _team_id_of(connection, member["id"]) != team["id"]:
                raise NotFound(f"{member['name']} is not in the team {team['name']}")
            self._leave(connection, team, member["id"], member["name"], by)

    def remove(self, name: str, by: str) -> None:
        """Remove a team, its members' membership, and its codes. Raises `NotFound`, and `Conflict`
        for a team that has submissions."""
        with transaction(self._engine, "admin") as connection:
            acquire_lock(connection, "submit")
            team = _find_team(connection, name)
            if _has_submissions(connection, team):
                raise Conflict(
                    f"{team['name']} has submissions, which keep its name; remove its members, or "
                    "delete the submissions that must not count"
                )
            _remove(connection, team)
            record_action(connection, self._now(), by, "team delete", team["name"])

    def _join(
        self, connection: Connection, team: RowMapping, user_id: int, user: str, by: str
    ) -> None:
        acquire_lock(connection, "submit")  # a submission may make the team too large for a board
        _check_is_in_none(connection, user_id, user)
        for problem, size in team_boards(connection, team["name"]).items():
            together = people(connection, team["name"], problem) | {user}
            if size is not None and len(together) > size:
                raise Conflict(
                    f"{team['name']} has submitted to {problem}, which takes teams of up to {size}"
                )
        connection.execute(insert(team_members).values(user_id=user_id, team_id=team["id"]))
        record_action(connection, self._now(), by, "team join", user, f"in {team['name']}")

    def _leave(
        self, connection: Connection, team: RowMapping, user_id: int, user: str, by: str
    ) -> None:
        acquire_lock(connection, "submit")  # a submission may be the team's first
        # Also the codes that they made, so that they cannot come back unasked.
        for table in (team_members, team_codes):
            connection.execute(delete(table).where(table.c.user_id == user_id))
        detail = f"of {team['name']}"
        mine = select(team_members.c.user_id).where(team_members.c.team_id == team["id"])
        is_empty = connection.scalar(mine.limit(1)) is None
        if is_empty and not _has_submissions(connection, team):
            _remove(connection, team)
            detail += ", which ends"
        record_action(connection, self._now(), by, "team leave", user, detail)


def _find_team(connection: Connection, name: str) -> RowMapping:
    """The row of a team. Raises `NotFound`."""
    row = None
    if name.isprintable():  # a database may reject even a comparison with other characters
        mine = teams.c.name_key == name_key(name)
        row = connection.execute(select(teams).where(mine)).mappings().first()
    if row is None:
        raise NotFound(f"there is no team {one_line(name, MAX_NAME_CHARS)}")
    return row


def _team_id_of(connection: Connection, user_id: int) -> int | None:
    return connection.scalar(
        select(team_members.c.team_id).where(team_members.c.user_id == user_id)
    )


def _check_is_in_none(connection: Connection, user_id: int, user: str) -> None:
    mine = select(teams.c.name).join(team_members, team_members.c.team_id == teams.c.id)
    name = connection.scalar(mine.where(team_members.c.user_id == user_id))
    if name is not None:
        raise Conflict(f"{user} is in the team {name}, and a user is in one at a time; leave it")


def _check_is_member(connection: Connection, team: RowMapping, user: User) -> None:
    if _team_id_of(connection, user.id) != team["id"]:
        raise Conflict(f"you are not in the team {team['name']}")


def _has_submissions(connection: Connection, team: RowMapping) -> bool:
    mine = select(submissions.c.id).where(submissions.c.team == team["name"])
    return connection.scalar(mine.limit(1)) is not None


def _remove(connection: Connection, team: RowMapping) -> None:
    for table in (team_codes, team_members):
        connection.execute(delete(table).where(table.c.team_id == team["id"]))
    connection.execute(delete(teams).where(teams.c.id == team["id"]))


_TEAMS = (
    select(teams.c.name, teams.c.created_at, users.c.name.label("member"))
    .join(team_members, team_members.c.team_id == teams.c.id, isouter=True)
    .join(users, users.c.id == team_members.c.user_id, isouter=True)
)
