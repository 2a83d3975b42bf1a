"""Limits over all runs of a swarm: requests and tokens per minute, pauses that a provider asks for, adaptive concurrency.

Decides when a request may be sent, and whether a failed one is sent again before its run hears of it. Never decides what
is sent, and never sends it.
"""
