"""What the source of a submission takes, and when it was removed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

FIXED = (
    "id, created_at, user, problem, problem_digest, gpu, verdict, ranked, score_us, ci_low_us, "
    "ci_high_us, language, report, source_sha256"
)
"""The columns of a result that never change."""


def upgrade() -> None:
    op.add_column(
        "submissions",
        sa.Column("stored_bytes", sa.Integer, nullable=False, server_default="0"),
    )
    op.add_column("submissions", sa.Column("source_removed_at", sa.DateTime(timezone=True)))
    # Only a database that was at this revision before has blobs without their content.
    op.execute(
        "UPDATE submissions SET source_removed_at = CURRENT_TIMESTAMP WHERE sha256 IN "
        "(SELECT sha256 FROM blobs WHERE length(content) <> size_bytes)"
    )
    op.execute(
        "UPDATE submissions SET stored_bytes = (SELECT size_bytes FROM blobs "
        "WHERE blobs.sha256 = submissions.sha256) "
        "WHERE rejudge_id IS NULL AND source_removed_at IS NULL"
    )
    op.create_index("submissions_by_size", "submissions", ["user", "stored_bytes"])
    op.create_index("submissions_by_source", "submissions", ["sha256"])
    if op.get_context().dialect.name == "sqlite":
        op.execute("DROP TRIGGER results_no_update")
        op.execute(
            f"CREATE TRIGGER results_no_update BEFORE UPDATE OF {FIXED} ON results "
            "BEGIN SELECT RAISE(ABORT, 'results are append-only'); END"
        )
        op.execute(
            "CREATE TRIGGER results_source BEFORE UPDATE OF source ON results "
            "WHEN length(NEW.source) > 0 "
            "BEGIN SELECT RAISE(ABORT, 'results are append-only'); END"
        )


def downgrade() -> None:
    if op.get_context().dialect.name == "sqlite":
        op.execute("DROP TRIGGER results_source")
        op.execute("DROP TRIGGER results_no_update")
        op.execute(
            "CREATE TRIGGER results_no_update BEFORE UPDATE ON results "
            "BEGIN SELECT RAISE(ABORT, 'results are append-only'); END"
        )
    op.drop_index("submissions_by_source", "submissions")
    op.drop_index("submissions_by_size", "submissions")
    op.drop_column("submissions", "source_removed_at")
    op.drop_column("submissions", "stored_bytes")
