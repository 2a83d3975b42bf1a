"""SQLite and PostgreSQL: a connection in its own thread, and transactions that run on both.

A transaction is a generator of statements. `Database` runs transactions in order, and commits all waiting transactions
together. So one wait for the disk serves many runs. After a restart of the server, it reconnects. It raises each failure of a
database as a `StoreError`. It has no tables of its own: each package that uses it defines tables with a `Schema`.
"""
