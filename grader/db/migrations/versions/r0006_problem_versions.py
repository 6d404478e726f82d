"""The versions of problems that a server has served."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    moment = sa.DateTime(timezone=True)
    op.create_table(
        "problem_versions",
        sa.Column("problem", sa.String(64), primary_key=True),
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("spec", sa.JSON, nullable=False),
        sa.Column("files", sa.JSON, nullable=False),
        sa.Column("first_served_at", moment, nullable=False),
        sa.Column("last_served_at", moment, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("problem_versions")
