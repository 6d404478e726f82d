"""Accounts of other sites that users sign in with."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0010"


def upgrade() -> None:
    moment = sa.DateTime(timezone=True)
    user = sa.ForeignKey("users.id")
    op.create_table(
        "identities",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("user_id", sa.Integer, user, nullable=False),
        sa.Column("provider", sa.String(255), nullable=False),
        sa.Column("subject", sa.String(255), nullable=False),
        sa.Column("created_at", moment, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("identities_by_subject", "identities", ["provider", "subject"], unique=True)
    op.create_index("identities_by_user", "identities", ["user_id"])
    op.create_table(
        "sign_ins",
        sa.Column("hash", sa.String(64), primary_key=True),
        sa.Column("provider", sa.String(40), nullable=False),
        sa.Column("user_id", sa.Integer, user),
        sa.Column("subject", sa.String(255)),
        sa.Column("details", sa.JSON, nullable=False),
        sa.Column("expires_at", moment, nullable=False),
    )
    op.create_index("sign_ins_by_end", "sign_ins", ["expires_at"])


def downgrade() -> None:
    """Users without a token cannot log in any more; an admin makes one for them."""
    op.drop_table("sign_ins")
    op.drop_table("identities")
