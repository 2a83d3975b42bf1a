"""The wire of providers: requests, server-sent events, deltas, failures, and response headers.

The package decides the body of a request, joins pieces to a completion, and classifies failures. It never sends or receives
anything.
"""
