"""Fairness between users: turns in the queue, and how much a board takes of each in a day."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.create_table(
        "queue_turns",
        sa.Column("user", sa.String(40), primary_key=True),
        sa.Column("claimed_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.add_column("boards", sa.Column("daily_limit", sa.Integer))
    op.create_index("submissions_by_day", "submissions", ["user", "created_at"])


def downgrade() -> None:
    op.drop_index("submissions_by_day", "submissions")
    op.drop_column("boards", "daily_limit")
    op.drop_table("queue_turns")
