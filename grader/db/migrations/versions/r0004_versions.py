"""The problem versions of a worker."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("workers", sa.Column("problems", sa.JSON(none_as_null=True)))


def downgrade() -> None:
    op.drop_column("workers", "problems")
