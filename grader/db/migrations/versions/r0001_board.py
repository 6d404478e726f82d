"""The board's tables, as `Board.open` makes them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    about = op.create_table(
        "grade_board",
        sa.Column("key", sa.String(40), primary_key=True),
        sa.Column("value", sa.String(200), nullable=False),
    )
    op.bulk_insert(about, [{"key": "schema", "value": "1"}])
    op.create_table(
        "results",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("created_at", sa.String(40), nullable=False),
        sa.Column("user", sa.String(40), nullable=False),
        sa.Column("problem", sa.String(64), nullable=False),
        sa.Column("problem_digest", sa.String(64), nullable=False),
        sa.Column("gpu", sa.String(200)),
        sa.Column("verdict", sa.String(40), nullable=False),
        sa.Column("ranked", sa.Boolean, nullable=False),
        sa.Column("score_us", sa.Float),
        sa.Column("ci_low_us", sa.Float),
        sa.Column("ci_high_us", sa.Float),
        sa.Column("language", sa.String(20), nullable=False),
        sa.Column("report", sa.Text, nullable=False),
        sa.Column("source_sha256", sa.String(64), nullable=False),
        sa.Column("source", sa.LargeBinary, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("results_by_rank", "results", ["problem_digest", "gpu", "ranked", "score_us"])
    if op.get_context().dialect.name == "sqlite":
        for change in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER results_no_{change.lower()} BEFORE {change} ON results "
                "BEGIN SELECT RAISE(ABORT, 'results are append-only'); END"
            )


def downgrade() -> None:
    op.drop_table("results")
    op.drop_table("grade_board")
