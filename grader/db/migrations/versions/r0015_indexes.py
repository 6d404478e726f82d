"""Indexes for what pages and admins ask of many results."""

from __future__ import annotations

from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    versions = ["problem", "problem_digest", "created_at", "user", "ranked"]
    op.create_index("results_by_version", "results", versions)
    op.create_index("results_by_user", "results", ["user"])
    op.create_index("submissions_by_original", "submissions", ["original_id"])


def downgrade() -> None:
    op.drop_index("submissions_by_original", "submissions")
    op.drop_index("results_by_user", "results")
    op.drop_index("results_by_version", "results")
