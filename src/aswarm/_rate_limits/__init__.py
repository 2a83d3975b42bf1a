"""Limits over all runs of a swarm: requests and tokens per minute, pauses after rejections, adaptive concurrency.

The package decides when a request may be sent. It also decides whether a failed request is retried before its run gets the
error. It never changes the content of a request, and never sends a request.
"""
