"""The ledger: submissions, their sources, and their jobs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    moment = sa.DateTime(timezone=True)
    op.create_table(
        "blobs",
        sa.Column("sha256", sa.String(64), primary_key=True),
        sa.Column("size_bytes", sa.Integer, nullable=False),
        sa.Column("content", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "submissions",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("user", sa.String(40), nullable=False),
        sa.Column("problem", sa.String(64), nullable=False),
        sa.Column("problem_digest", sa.String(64), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("language", sa.String(20), nullable=False),
        sa.Column("sha256", sa.String(64), sa.ForeignKey("blobs.sha256"), nullable=False),
        sa.Column("gpu", sa.String(200)),
        sa.Column("created_at", moment, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("submissions_by_user", "submissions", ["user"])
    op.create_table(
        "jobs",
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
    )
    op.create_index("jobs_by_state", "jobs", ["state", "submission_id"])
    op.create_index("jobs_by_deadline", "jobs", ["state", "lease_until"])


def downgrade() -> None:
    op.drop_table("jobs")
    op.drop_table("submissions")
    op.drop_table("blobs")
