"""Batches: many files for one problem, graded behind users' submissions."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    moment = sa.DateTime(timezone=True)
    op.create_table(
        "batches",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("user", sa.String(40), nullable=False),
        sa.Column("problem", sa.String(64), nullable=False),
        sa.Column("problem_digest", sa.String(64), nullable=False),
        sa.Column("gpu", sa.String(200)),
        sa.Column("created_at", moment, nullable=False),
        sa.Column("idempotency_key", sa.String(100)),
        sa.Column("request_sha256", sa.String(64), nullable=False),
        sa.Column("items", sa.Integer, nullable=False),
        sa.Column("ended", sa.Integer, nullable=False),
        sa.Column("claimed_at", moment),
        sa.Column("closed_at", moment),
        sa.Column("cancelled_by", sa.String(40)),
        sa.Column("removed_at", moment),
        sqlite_autoincrement=True,
    )
    op.create_index("batches_by_key", "batches", ["user", "idempotency_key"], unique=True)
    op.create_index("batches_by_end", "batches", ["closed_at"])
    op.create_table(
        "batch_items",
        sa.Column("submission_id", sa.Integer, sa.ForeignKey("submissions.id"), primary_key=True),
        sa.Column("batch_id", sa.Integer, sa.ForeignKey("batches.id"), nullable=False),
        sa.Column("key", sa.String(200), nullable=False),
        sa.Column("benchmarks", sa.Boolean, nullable=False),
        sa.Column("place", sa.Integer),
        sa.Column("report", sa.Text),
        sa.Column("error", sa.String(300)),
    )
    op.create_index("batch_items_by_place", "batch_items", ["batch_id", "place"])
    # Alembic adds a reference apart from its column, which SQLite cannot do.
    op.execute("ALTER TABLE jobs ADD COLUMN batch_id INTEGER REFERENCES batches (id)")
    op.create_index("jobs_by_batch", "jobs", ["batch_id", "state", "submission_id"])


def downgrade() -> None:
    """Also removes the items' jobs and submissions: an older grade would rank them."""
    items = "SELECT submission_id FROM batch_items"
    op.execute(f"DELETE FROM jobs WHERE submission_id IN ({items})")
    op.execute("CREATE TABLE batch_submissions AS SELECT submission_id FROM batch_items")
    op.drop_index("jobs_by_batch", "jobs")
    if op.get_context().dialect.name == "sqlite":
        _recreate_jobs()
    else:
        op.drop_column("jobs", "batch_id")
    op.drop_table("batch_items")
    op.drop_table("batches")
    op.execute("DELETE FROM submissions WHERE id IN (SELECT submission_id FROM batch_submissions)")
    op.drop_table("batch_submissions")


def _recreate_jobs() -> None:
    """Recreate the jobs with their rows, without the batch: SQLite drops no column with a foreign
    key."""
    moment = sa.DateTime(timezone=True)
    op.execute("ALTER TABLE jobs RENAME TO old_jobs")
    op.drop_index("jobs_by_state", "old_jobs")
    op.drop_index("jobs_by_deadline", "old_jobs")
    columns: list[sa.Column[Any]] = [
        sa.Column("submission_id", sa.Integer, sa.ForeignKey("submissions.id"), primary_key=True),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("failures", sa.Integer, nullable=False),
        sa.Column("deaths", sa.Integer, nullable=False),
        sa.Column("not_before", moment),
        sa.Column("lease_token", sa.String(32)),
        sa.Column("leased_by", sa.String(200)),
        sa.Column("lease_until", moment),
        sa.Column("held_reason", sa.String(300)),
        sa.Column("cancelled_by", sa.String(40)),
        sa.Column("result_id", sa.Integer, sa.ForeignKey("results.id"), unique=True),
        sa.Column("progress", sa.Text),
        sa.Column("updated_at", moment),
    ]
    op.create_table("jobs", *columns)
    names = ", ".join(column.name for column in columns)
    op.execute(f"INSERT INTO jobs ({names}) SELECT {names} FROM old_jobs")
    op.drop_table("old_jobs")
    op.create_index("jobs_by_state", "jobs", ["state", "submission_id"])
    op.create_index("jobs_by_deadline", "jobs", ["state", "lease_until"])
