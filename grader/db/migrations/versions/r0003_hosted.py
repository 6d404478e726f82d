"""The hosted leaderboard: users, boards' settings, voids, rejudges, workers, the audit."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from grader.db.migrations.versions import r0002_ledger

revision = "0003"
down_revision = "0002"

ADDED = {"submissions": ("rejudge_id", "original_id"), "jobs": ("progress", "updated_at")}
"""Columns that tables of 0002 gain."""


def upgrade() -> None:
    moment = sa.DateTime(timezone=True)
    _people(moment)
    _boards(moment)
    op.create_table(
        "rejudges",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("problem", sa.String(64), nullable=False),
        sa.Column("created_at", moment, nullable=False),
        sa.Column("by", sa.String(40), nullable=False),
        sa.Column("reason", sa.String(300), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("decided_at", moment),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "workers",
        sa.Column("name", sa.String(200), primary_key=True),
        sa.Column("via", sa.String(10), nullable=False),
        sa.Column("device", sa.String(10), nullable=False),
        sa.Column("gpu", sa.String(200)),
        sa.Column("slots", sa.Integer, nullable=False),
        sa.Column("last_seen", moment, nullable=False),
    )
    # Alembic adds a reference apart from its column, which SQLite cannot do.
    op.execute("ALTER TABLE submissions ADD COLUMN rejudge_id INTEGER REFERENCES rejudges (id)")
    op.execute("ALTER TABLE submissions ADD COLUMN original_id INTEGER REFERENCES submissions (id)")
    op.create_index("submissions_by_rejudge", "submissions", ["rejudge_id"])
    op.add_column("jobs", sa.Column("progress", sa.Text))
    op.add_column("jobs", sa.Column("updated_at", moment))


def downgrade() -> None:
    op.drop_index("submissions_by_rejudge", "submissions")
    if op.get_context().dialect.name == "sqlite":
        _recreate_tables()
    else:
        for table, columns in ADDED.items():
            for column in columns:
                op.drop_column(table, column)
    for table in ("workers", "rejudges", "voids", "boards", "audit", "tokens", "users"):
        op.drop_table(table)


def _people(moment: sa.DateTime) -> None:
    op.create_table(
        "users",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("name", sa.String(40), nullable=False),
        sa.Column("name_key", sa.String(40), nullable=False, unique=True),
        sa.Column("role", sa.String(20), nullable=False),
        sa.Column("created_at", moment, nullable=False),
        sa.Column("banned_at", moment),
        sa.Column("banned_reason", sa.String(300)),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("user_id", sa.Integer, sa.ForeignKey("users.id"), nullable=False),
        sa.Column("kind", sa.String(10), nullable=False),
        sa.Column("hash", sa.String(64), nullable=False, unique=True),
        sa.Column("label", sa.String(80), nullable=False),
        sa.Column("opened_by", sa.Integer, sa.ForeignKey("tokens.id")),
        sa.Column("created_at", moment, nullable=False),
        sa.Column("last_used_at", moment),
        sa.Column("expires_at", moment),
        sa.Column("revoked_at", moment),
        sqlite_autoincrement=True,
    )
    op.create_index("tokens_by_user", "tokens", ["user_id"])
    op.create_table(
        "audit",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("at", moment, nullable=False),
        sa.Column("actor", sa.String(40), nullable=False),
        sa.Column("action", sa.String(60), nullable=False),
        sa.Column("subject", sa.String(200), nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
        sqlite_autoincrement=True,
    )
    if op.get_context().dialect.name == "sqlite":
        for change in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER audit_no_{change.lower()} BEFORE {change} ON audit "
                "BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END"
            )


def _boards(moment: sa.DateTime) -> None:
    op.create_table(
        "boards",
        sa.Column("problem", sa.String(64), primary_key=True),
        sa.Column("deadline", moment),
        sa.Column("hidden", sa.Boolean, nullable=False),
        sa.Column("publish_sources", sa.Boolean, nullable=False),
        sa.Column("note", sa.String(300)),
    )
    op.create_table(
        "voids",
        sa.Column("result_id", sa.Integer, sa.ForeignKey("results.id"), primary_key=True),
        sa.Column("why", sa.String(20), primary_key=True),
        sa.Column("at", moment, nullable=False),
        sa.Column("by", sa.String(40), nullable=False),
    )


def _recreate_tables() -> None:
    """Recreate the tables of revision 0002 with their rows, without the added columns.

    SQLite drops neither a column with a foreign key nor a table that another one references. So
    the tables are copied and dropped, referencing ones first, and revision 0002 creates them again.
    """
    kept: dict[str, str] = {}
    inspector = sa.inspect(op.get_bind())
    for table in ("jobs", "submissions", "blobs"):
        names = [column["name"] for column in inspector.get_columns(table)]
        kept[table] = ", ".join(f'"{n}"' for n in names if n not in ADDED.get(table, ()))
        op.execute(f"CREATE TABLE old_{table} AS SELECT {kept[table]} FROM {table}")
        op.drop_table(table)
    r0002_ledger.upgrade()
    for table in ("blobs", "submissions", "jobs"):
        op.execute(f"INSERT INTO {table} ({kept[table]}) SELECT {kept[table]} FROM old_{table}")
        op.drop_table(f"old_{table}")
