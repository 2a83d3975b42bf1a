"""The record of a run: its entries, and the replay that continues a run from the entries.

An entry is a fact, which is written once. A `Recorder` wraps the handlers of a run. It commits the start of a call before the
function runs; an `EntryRecorder` also makes entries. Each execution of a run is an attempt. Only the latest attempt can write:
the log (`aswarm._log`) rejects writes of earlier attempts. A batch, a local run and a durable run share this
code. Other packages decide where a run is executed.
"""
