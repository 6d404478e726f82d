"""The key by which a repeated request to submit is recognized."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("submissions", sa.Column("idempotency_key", sa.String(100)))
    op.create_index("submissions_by_key", "submissions", ["user", "idempotency_key"], unique=True)


def downgrade() -> None:
    op.drop_index("submissions_by_key", "submissions")
    op.drop_column("submissions", "idempotency_key")
