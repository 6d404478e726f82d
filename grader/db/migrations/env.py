"""What Alembic runs for every command: migrate on the connection that the caller has opened.

The caller's transaction, which also holds the lock, is the only one: a migration that fails leaves
nothing behind, on SQLite too.
"""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"])
with context.begin_transaction():
    context.run_migrations()
