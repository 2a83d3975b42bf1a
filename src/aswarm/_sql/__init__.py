"""SQLite and PostgreSQL: a connection in its own thread, and transactions that run on both.

A transaction is a generator of statements. `Database` runs transactions in order and commits all waiting transactions together,
so that many runs share one wait for the disk. It reconnects while a server restarts, and raises each failure of a database as a
`StoreError`. It has no tables of its own: each package that uses it defines tables with a `Schema`.
"""
