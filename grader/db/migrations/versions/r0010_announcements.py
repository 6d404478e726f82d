"""Announcements of admins, and the moment at which a board opens."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    moment = sa.DateTime(timezone=True)
    op.create_table(
        "announcements",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("created_at", moment, nullable=False),
        sa.Column("by", sa.String(40), nullable=False),
        sa.Column("text", sa.String(300), nullable=False),
        sa.Column("until", moment, nullable=False),
        sqlite_autoincrement=True,
    )
    op.add_column("boards", sa.Column("opens_at", moment))


def downgrade() -> None:
    """A board that is not open yet is hidden, since an older grade would show it."""
    now = "datetime('now')" if op.get_context().dialect.name == "sqlite" else "now()"
    op.execute(f"UPDATE boards SET hidden = TRUE WHERE opens_at > {now}")
    op.drop_column("boards", "opens_at")
    op.drop_table("announcements")
