"""The record of a run: its entries, the log that keeps them, and the replay that continues a run from them.

An entry is a fact, written once. A `Recorder` wraps the two handlers and the events of a run; it commits the start of a call
before its function runs. `log` has the transactions of the two tables. Its fence lets an attempt write only until the next
attempt starts. A batch, a local run and a durable run share this code. This package never decides where a run is executed.
"""
