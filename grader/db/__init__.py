"""The database: engine, tables and migrations. No other room defines a table."""
