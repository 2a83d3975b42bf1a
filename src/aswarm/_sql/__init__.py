"""SQLite and PostgreSQL: a connection in its own thread, and transactions that run on both.

A transaction is a generator of statements. `Database` runs transactions in order, and commits all waiting transactions
together. So many runs share one wait for the disk. If a server restarts, it reconnects. It raises each failure of a database as
a `StoreError`. It has no tables of its own: each package that uses it defines tables with a `Schema`.
"""
