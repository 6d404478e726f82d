"""The server's tables, beside the ledger's in one database. Revision 3 of the migrations makes
them."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, ForeignKey, Index, Integer, String, Table, Text

from grader.db.board_tables import Moment, metadata

users = Table(
    "users",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("name", String(40), nullable=False),
    Column("name_key", String(40), nullable=False, unique=True),
    Column("role", String(20), nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("banned_at", Moment),
    Column("banned_reason", String(300)),
    sqlite_autoincrement=True,
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("user_id", Integer, ForeignKey(users.c.id), nullable=False),
    Column("kind", String(10), nullable=False),
    Column("hash", String(64), nullable=False, unique=True),
    Column("label", String(80), nullable=False),
    # The token that a session was opened with, and with which it ends.
    Column("opened_by", Integer, ForeignKey("tokens.id")),
    Column("created_at", Moment, nullable=False),
    Column("last_used_at", Moment),
    Column("expires_at", Moment),
    Column("revoked_at", Moment),
    Index("tokens_by_user", "user_id"),
    sqlite_autoincrement=True,
)

boards = Table(
    "boards",
    metadata,
    Column("problem", String(64), primary_key=True),
    Column("deadline", Moment),
    Column("hidden", Boolean, nullable=False),
    Column("publish_sources", Boolean, nullable=False),
    Column("note", String(300)),
)
"""Settings of boards. One without a row has no deadline, is shown, and keeps sources private."""

audit = Table(
    "audit",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("at", Moment, nullable=False),
    Column("actor", String(40), nullable=False),
    Column("action", String(60), nullable=False),
    Column("subject", String(200), nullable=False),
    Column("detail", Text, nullable=False),
    sqlite_autoincrement=True,
)
"""What admins did. Append-only."""
