"""Accounts of other sites that users sign in with, groups of users, and invitations."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    moment = sa.DateTime(timezone=True)
    op.create_table(
        "identities",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("user_id", sa.Integer, sa.ForeignKey("users.id"), nullable=False),
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
        sa.Column("user_id", sa.Integer, sa.ForeignKey("users.id")),
        sa.Column("subject", sa.String(255)),
        sa.Column("details", sa.JSON, nullable=False),
        sa.Column("expires_at", moment, nullable=False),
    )
    op.create_index("sign_ins_by_end", "sign_ins", ["expires_at"])
    op.create_table(
        "groups",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("name", sa.String(40), nullable=False),
        sa.Column("name_key", sa.String(40), nullable=False, unique=True),
        sa.Column("created_at", moment, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "group_members",
        sa.Column("user_id", sa.Integer, sa.ForeignKey("users.id"), primary_key=True),
        sa.Column("group_id", sa.Integer, sa.ForeignKey("groups.id"), primary_key=True),
    )
    op.create_index("group_members_by_group", "group_members", ["group_id"])
    op.create_table(
        "invitations",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("hash", sa.String(64), nullable=False, unique=True),
        sa.Column("group_id", sa.Integer, sa.ForeignKey("groups.id")),
        sa.Column("uses", sa.Integer, nullable=False),
        sa.Column("used", sa.Integer, nullable=False),
        sa.Column("until", moment),
        sa.Column("created_at", moment, nullable=False),
        sa.Column("by", sa.String(40), nullable=False),
        sa.Column("revoked_at", moment),
        sqlite_autoincrement=True,
    )
    op.add_column("boards", sa.Column("group", sa.String(40)))


def downgrade() -> None:
    """A board of a group is hidden, since an older grade would show it to everyone. Users without a
    token cannot log in any more; an admin makes one for them."""
    op.execute('UPDATE boards SET hidden = TRUE WHERE "group" IS NOT NULL')
    op.drop_column("boards", "group")
    op.drop_table("invitations")
    op.drop_table("group_members")
    op.drop_table("groups")
    op.drop_table("sign_ins")
    op.drop_table("identities")
