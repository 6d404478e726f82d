"""Teams of users, the codes to join them, and the submissions that count for them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    moment = sa.DateTime(timezone=True)
    op.create_table(
        "teams",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("name", sa.String(40), nullable=False, unique=True),
        sa.Column("name_key", sa.String(40), nullable=False, unique=True),
        sa.Column("skeleton", sa.String(200), nullable=False, unique=True),
        sa.Column("created_at", moment, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "team_members",
        sa.Column("user_id", sa.Integer, sa.ForeignKey("users.id"), primary_key=True),
        sa.Column("team_id", sa.Integer, sa.ForeignKey("teams.id"), nullable=False),
    )
    op.create_index("team_members_by_team", "team_members", ["team_id"])
    op.create_table(
        "team_codes",
        sa.Column("hash", sa.String(64), primary_key=True),
        sa.Column("team_id", sa.Integer, sa.ForeignKey("teams.id"), nullable=False),
        sa.Column("user_id", sa.Integer, sa.ForeignKey("users.id"), nullable=False),
        sa.Column("until", moment, nullable=False),
    )
    op.create_index("team_codes_by_team", "team_codes", ["team_id"])
    op.create_index("users_by_name", "users", ["name"])
    op.add_column("submissions", sa.Column("team", sa.String(40)))
    op.create_index("submissions_by_entry", "submissions", ["user", "problem", "team"])
    op.create_index("submissions_by_team", "submissions", ["team"])
    is_of_team = sa.text("team IS NOT NULL")
    op.create_index(
        "submissions_of_teams",
        "submissions",
        ["problem_digest"],
        sqlite_where=is_of_team,
        postgresql_where=is_of_team,
    )
    op.add_column("boards", sa.Column("team_size", sa.Integer))


def downgrade() -> None:
    """Results of teams become their authors' own, each with a row on the board. The turns of teams
    go, since a user may take such a name."""
    op.execute('DELETE FROM queue_turns WHERE "user" IN (SELECT name FROM teams)')
    op.drop_column("boards", "team_size")
    op.drop_index("submissions_of_teams", "submissions")
    op.drop_index("submissions_by_team", "submissions")
    op.drop_index("submissions_by_entry", "submissions")
    op.drop_column("submissions", "team")
    op.drop_index("users_by_name", "users")
    op.drop_table("team_codes")
    op.drop_table("team_members")
    op.drop_table("teams")
