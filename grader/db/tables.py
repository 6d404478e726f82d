"""Every table of the database, as `grader.db.migrations` makes them."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    DateTime,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    text,
)

from grader.db.engine import SCHEMA_TABLE

metadata = MetaData()


class UtcDateTime(TypeDecorator[datetime]):
    """A timezone-aware datetime, stored in UTC even where the database has no time zones."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return value if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None or value.tzinfo is not None:
            return value if value is None else value.astimezone(UTC)
        return value.replace(tzinfo=UTC)


schema_info = Table(
    SCHEMA_TABLE,
    metadata,
    Column("key", String(40), primary_key=True),
    Column("value", String(200), nullable=False),
)
"""Marks a database as ours, and holds the version of the board's tables."""

results = Table(
    "results",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("created_at", String(40), nullable=False),
    Column("user", String(40), nullable=False),
    Column("problem", String(64), nullable=False),
    Column("problem_digest", String(64), nullable=False),
    Column("gpu", String(200)),
    Column("verdict", String(40), nullable=False),
    Column("ranked", Boolean, nullable=False),
    Column("score_us", Float),
    Column("ci_low_us", Float),
    Column("ci_high_us", Float),
    Column("language", String(20), nullable=False),
    Column("report", Text, nullable=False),
    Column("source_sha256", String(64), nullable=False),
    Column("source", LargeBinary, nullable=False),
    sqlite_autoincrement=True,
)

results_by_rank = Index(
    "results_by_rank",
    results.c.problem_digest,
    results.c.gpu,
    results.c.ranked,
    results.c.score_us,
)

# Of a server's database. A local board has few results.
Index(
    "results_by_version",
    results.c.problem,
    results.c.problem_digest,
    results.c.created_at,
    results.c.user,
    results.c.ranked,
)
Index("results_by_user", results.c.user)

voids = Table(
    "voids",
    metadata,
    Column("result_id", Integer, ForeignKey(results.c.id), primary_key=True),
    Column("why", String(20), primary_key=True),
    Column("at", UtcDateTime, nullable=False),
    Column("by", String(40), nullable=False),
)
"""Results that do not count, and why: ``rejudged``, ``preview``, ``deleted``, ``banned``,
``withdrawn`` by their authors, or ``held`` until an admin has looked at them.

Results are never deleted, and never changed, but that a source may be removed. A row here takes a
result off the leaderboards; it counts again when its last row is removed. Only the migrations make
this table, not `Board.open`."""

blobs = Table(
    "blobs",
    metadata,
    Column("sha256", String(64), primary_key=True),
    Column("size_bytes", Integer, nullable=False),
    Column("content", LargeBinary, nullable=False),
)
"""Sources by hash. One that no submission keeps any more is empty, and has its size still."""

rejudges = Table(
    "rejudges",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("problem", String(64), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("by", String(40), nullable=False),
    Column("reason", String(300), nullable=False),
    Column("state", String(20), nullable=False),
    Column("decided_at", UtcDateTime),
    sqlite_autoincrement=True,
)
"""Regradings of doubtful results. `state` is ``preview``, then ``applied`` or ``dropped``."""

submissions = Table(
    "submissions",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("user", String(40), nullable=False),
    Column("problem", String(64), nullable=False),
    Column("problem_digest", String(64), nullable=False),
    Column("name", String(200), nullable=False),
    Column("language", String(20), nullable=False),
    Column("sha256", String(64), ForeignKey(blobs.c.sha256), nullable=False),
    Column("gpu", String(200)),
    Column("created_at", UtcDateTime, nullable=False),
    # Set on a submission that a rejudge made: the rejudge, and the submission it copied.
    Column("rejudge_id", Integer, ForeignKey(rejudges.c.id)),
    Column("original_id", Integer, ForeignKey("submissions.id")),
    # Chosen by the client: a repeated request has the same.
    Column("idempotency_key", String(100)),
    # What counts against its user's quota: 0 for one of a rejudge, and once the source is removed.
    Column("stored_bytes", Integer, nullable=False, server_default="0"),
    Column("source_removed_at", UtcDateTime),
    # The name of the team that it counts for; null for one that counts for its user.
    Column("team", String(40)),
    Index("submissions_by_key", "user", "idempotency_key", unique=True),
    Index("submissions_by_user", "user"),
    Index("submissions_by_entry", "user", "problem", "team"),
    Index("submissions_by_team", "team"),
    Index(
        "submissions_of_teams",
        "problem_digest",
        sqlite_where=text("team IS NOT NULL"),
        postgresql_where=text("team IS NOT NULL"),
    ),
    Index("submissions_by_day", "user", "created_at"),
    Index("submissions_by_size", "user", "stored_bytes"),
    Index("submissions_by_source", "sha256"),
    Index("submissions_by_rejudge", "rejudge_id"),
    Index("submissions_by_original", "original_id"),
    sqlite_autoincrement=True,
)

batches = Table(
    "batches",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("user", String(40), nullable=False),
    Column("problem", String(64), nullable=False),
    Column("problem_digest", String(64), nullable=False),
    Column("gpu", String(200)),
    Column("created_at", UtcDateTime, nullable=False),
    # As of a submission, and the hash of the request, by which a key's second use is checked.
    Column("idempotency_key", String(100)),
    Column("request_sha256", String(64), nullable=False),
    Column("items", Integer, nullable=False),
    # The highest place that an item has.
    Column("ended", Integer, nullable=False),
    # When a worker last took an item of it, by which users take turns.
    Column("claimed_at", UtcDateTime),
    # When its last item ended; null while one is in flight.
    Column("closed_at", UtcDateTime),
    Column("cancelled_by", String(40)),
    # When its reports and sources were removed, since it was old.
    Column("removed_at", UtcDateTime),
    Index("batches_by_key", "user", "idempotency_key", unique=True),
    Index("batches_by_end", "closed_at"),
    sqlite_autoincrement=True,
)
"""Many files for one problem, graded behind users' submissions. They have no results on a board."""

batch_items = Table(
    "batch_items",
    metadata,
    Column("submission_id", Integer, ForeignKey(submissions.c.id), primary_key=True),
    Column("batch_id", Integer, ForeignKey(batches.c.id), nullable=False),
    # The client's name for it.
    Column("key", String(200), nullable=False),
    # Whether it is timed if it passes its tests.
    Column("benchmarks", Boolean, nullable=False),
    # Its number in the order in which items ended, and what it ended with.
    Column("place", Integer),
    Column("report", Text),
    Column("error", String(300)),
    Index("batch_items_by_place", "batch_id", "place"),
)

jobs = Table(
    "jobs",
    metadata,
    Column("submission_id", Integer, ForeignKey(submissions.c.id), primary_key=True),
    Column("state", String(20), nullable=False),
    Column("failures", Integer, nullable=False),
    Column("deaths", Integer, nullable=False),
    Column("not_before", UtcDateTime),
    Column("lease_token", String(32)),
    Column("leased_by", String(200)),
    Column("lease_until", UtcDateTime),
    Column("held_reason", String(300)),
    Column("cancelled_by", String(40)),
    Column("result_id", Integer, ForeignKey(results.c.id), unique=True),
    Column("progress", Text),
    Column("updated_at", UtcDateTime),
    # The batch that it is an item of; null for a submission, which goes before all batches.
    Column("batch_id", Integer, ForeignKey(batches.c.id)),
    # One for claims, oldest first, one for the sweep, and one for batches and what is in none.
    Index("jobs_by_state", "state", "submission_id"),
    Index("jobs_by_deadline", "state", "lease_until"),
    Index("jobs_by_batch", "batch_id", "state", "submission_id"),
)

queue_turns = Table(
    "queue_turns",
    metadata,
    Column("user", String(40), primary_key=True),
    Column("claimed_at", UtcDateTime, nullable=False),
)
"""When a worker last took a submission of a user or a team, by which they take turns in the queue.

`user` is the name of either: no team has the name of a user."""

workers = Table(
    "workers",
    metadata,
    Column("name", String(200), primary_key=True),
    Column("via", String(10), nullable=False),
    Column("device", String(10), nullable=False),
    Column("gpu", String(200)),
    Column("slots", Integer, nullable=False),
    Column("last_seen", UtcDateTime, nullable=False),
    Column("problems", JSON(none_as_null=True)),
    # Since when it gets no further jobs; null if it gets some.
    Column("drained_at", UtcDateTime),
)
"""Workers last seen. `via` is ``local``, ``ray``, or ``http`` for one that pulls jobs."""

users = Table(
    "users",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("name", String(40), nullable=False),
    Column("name_key", String(40), nullable=False, unique=True),
    Column("role", String(20), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("banned_at", UtcDateTime),
    Column("banned_reason", String(300)),
    # What the name looks like, or null for a user from before it was checked whose name looks like
    # that of an older one.
    Column("skeleton", String(200)),
    Index("users_by_skeleton", "skeleton", unique=True),
    Index("users_by_name", "name"),
    sqlite_autoincrement=True,
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("user_id", Integer, ForeignKey(users.c.id), nullable=False),
    Column("kind", String(10), nullable=False),
    Column("hash", String(64), nullable=False, unique=True),
    Column("label", String(80), nullable=False),
    # The token that opened a session. Revoking it ends the session.
    Column("opened_by", Integer, ForeignKey("tokens.id")),
    Column("created_at", UtcDateTime, nullable=False),
    Column("last_used_at", UtcDateTime),
    Column("expires_at", UtcDateTime),
    Column("revoked_at", UtcDateTime),
    Index("tokens_by_user", "user_id"),
    sqlite_autoincrement=True,
)

identities = Table(
    "identities",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("user_id", Integer, ForeignKey(users.c.id), nullable=False),
    # The provider's address, and its own immutable identifier of the person.
    Column("provider", String(255), nullable=False),
    Column("subject", String(255), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Index("identities_by_subject", "provider", "subject", unique=True),
    Index("identities_by_user", "user_id"),
    sqlite_autoincrement=True,
)
"""Accounts of other sites that users sign in with."""

groups = Table(
    "groups",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("name", String(40), nullable=False),
    Column("name_key", String(40), nullable=False, unique=True),
    Column("created_at", UtcDateTime, nullable=False),
    sqlite_autoincrement=True,
)
"""Groups of users. A group's name never changes."""

group_members = Table(
    "group_members",
    metadata,
    Column("user_id", Integer, ForeignKey(users.c.id), primary_key=True),
    Column("group_id", Integer, ForeignKey(groups.c.id), primary_key=True),
    Index("group_members_by_group", "group_id"),
)

teams = Table(
    "teams",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("name", String(40), nullable=False, unique=True),
    Column("name_key", String(40), nullable=False, unique=True),
    # What the name looks like, as of a user.
    Column("skeleton", String(200), nullable=False, unique=True),
    Column("created_at", UtcDateTime, nullable=False),
    sqlite_autoincrement=True,
)
"""Teams of users. A team's name never changes, and no user has it."""

team_members = Table(
    "team_members",
    metadata,
    # A user is in one team at a time.
    Column("user_id", Integer, ForeignKey(users.c.id), primary_key=True),
    Column("team_id", Integer, ForeignKey(teams.c.id), nullable=False),
    Index("team_members_by_team", "team_id"),
)

team_codes = Table(
    "team_codes",
    metadata,
    # SHA-256 of the code.
    Column("hash", String(64), primary_key=True),
    Column("team_id", Integer, ForeignKey(teams.c.id), nullable=False),
    # The member who made it.
    Column("user_id", Integer, ForeignKey(users.c.id), nullable=False),
    Column("until", UtcDateTime, nullable=False),
    Index("team_codes_by_team", "team_id"),
)
"""Codes with which users join a team. Each is used once and then removed. They are apart from
`invitations`, so that none can ever make an account."""

invitations = Table(
    "invitations",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("hash", String(64), nullable=False, unique=True),
    # The group that users of the code join.
    Column("group_id", Integer, ForeignKey(groups.c.id)),
    Column("uses", Integer, nullable=False),
    Column("used", Integer, nullable=False),
    Column("until", UtcDateTime),
    Column("created_at", UtcDateTime, nullable=False),
    Column("by", String(40), nullable=False),
    Column("revoked_at", UtcDateTime),
    sqlite_autoincrement=True,
)
"""Codes with which people make an account or join a group, stored as SHA-256."""

sign_ins = Table(
    "sign_ins",
    metadata,
    # SHA-256 of the secret in the browser's cookie.
    Column("hash", String(64), primary_key=True),
    # The provider's name in the settings.
    Column("provider", String(40), nullable=False),
    # The user who links the account to theirs; null for a sign-in.
    Column("user_id", Integer, ForeignKey(users.c.id)),
    # The person at the provider, who has yet to choose a name; null until the provider names them.
    Column("subject", String(255)),
    Column("details", JSON, nullable=False),
    Column("expires_at", UtcDateTime, nullable=False),
    Index("sign_ins_by_end", "expires_at"),
)
"""Sign-ins that are not finished. Each is used once, on any server."""

boards = Table(
    "boards",
    metadata,
    Column("problem", String(64), primary_key=True),
    Column("deadline", UtcDateTime),
    Column("hidden", Boolean, nullable=False),
    Column("publish_sources", Boolean, nullable=False),
    Column("note", String(300)),
    Column("opens_at", UtcDateTime),
    # The most submissions of a user within 24 hours; null for any number.
    Column("daily_limit", Integer),
    # The name of the group whose members alone see it; null for everyone.
    Column("group", String(40)),
    # From then on, only admins see later results and ranks.
    Column("freeze_at", UtcDateTime),
    # The most people in a team; null if people compete alone.
    Column("team_size", Integer),
)
"""Board settings. Without a row, a board has no deadline, is visible, and keeps sources private."""

announcements = Table(
    "announcements",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("created_at", UtcDateTime, nullable=False),
    Column("by", String(40), nullable=False),
    Column("text", String(300), nullable=False),
    Column("until", UtcDateTime, nullable=False),
    sqlite_autoincrement=True,
)
"""Lines of admins that every reader sees until a moment."""

problem_versions = Table(
    "problem_versions",
    metadata,
    Column("problem", String(64), primary_key=True),
    Column("digest", String(64), primary_key=True),
    Column("spec", JSON, nullable=False),
    Column("files", JSON, nullable=False),
    Column("first_served_at", UtcDateTime, nullable=False),
    Column("last_served_at", UtcDateTime, nullable=False),
)
"""The versions of problems that a server has served: spec and hashes of files as in
`JudgedVersion`, and when a server first and last started with them."""

audit = Table(
    "audit",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("at", UtcDateTime, nullable=False),
    Column("actor", String(40), nullable=False),
    Column("action", String(60), nullable=False),
    Column("subject", String(200), nullable=False),
    Column("detail", Text, nullable=False),
    sqlite_autoincrement=True,
)
"""The audit log of admin actions. Append-only."""
