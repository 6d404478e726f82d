"""The script that Alembic runs for every command, on the caller's connection.

The caller's transaction, which also holds the lock, is the only one. A failed migration therefore
leaves nothing behind, on SQLite too.
"""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"])
with context.begin_transaction():
    context.run_migrations()
