"""What users' names look like, so that two cannot look alike."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from grader.confusables import skeleton

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.add_column("users", sa.Column("skeleton", sa.String(200)))
    users = sa.table("users", *map(sa.column, ("id", "name", "skeleton")))
    connection = op.get_bind()
    seen: set[str] = set()
    for number, name in connection.execute(
        sa.select(users.c.id, users.c.name).order_by(users.c.id)
    ).all():
        look = skeleton(name)
        if look not in seen:  # users who look alike already are kept; the oldest is protected
            change = sa.update(users).where(users.c.id == number)
            connection.execute(change.values(skeleton=look))
        seen.add(look)
    op.create_index("users_by_skeleton", "users", ["skeleton"], unique=True)


def downgrade() -> None:
    op.drop_index("users_by_skeleton", "users")
    op.drop_column("users", "skeleton")
