"""The log: all tables and transactions of runs and conversations, for SQLite and PostgreSQL."""
