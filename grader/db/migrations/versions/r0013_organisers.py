"""The moment from which a board is frozen, and workers that get no further jobs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    moment = sa.DateTime(timezone=True)
    op.add_column("boards", sa.Column("freeze_at", moment))
    op.add_column("workers", sa.Column("drained_at", moment))


def downgrade() -> None:
    """A board whose standings are frozen is hidden, since an older grade would show later ones."""
    now = "datetime('now')" if op.get_context().dialect.name == "sqlite" else "now()"
    op.execute(f"UPDATE boards SET hidden = TRUE WHERE freeze_at <= {now}")
    op.drop_column("workers", "drained_at")
    op.drop_column("boards", "freeze_at")
