"""The log: all tables and transactions of runs, conversations and items of batches, for SQLite and PostgreSQL."""
