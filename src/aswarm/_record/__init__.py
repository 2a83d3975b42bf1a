"""The record of a run: its entries, the log that stores them, and the replay that continues a run from the entries.

An entry is a fact, which is written once. A `Recorder` wraps the handlers and the events of a run. It commits the start of a
call before the function runs. `log` contains the transactions on runs and entries. Each execution of a run is an attempt. Only
the latest attempt can write: the log rejects writes of earlier attempts. A batch, a local run and a durable run share this
code. Other packages decide where a run is executed.
"""
