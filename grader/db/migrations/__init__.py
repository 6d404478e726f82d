"""Alembic's migrations of the database that the board and the ledger share."""
