"""The database: engine, tables and migrations. No other package defines a table."""
