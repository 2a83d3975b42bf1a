"""The wire of providers: requests, server-sent events, deltas, failures, and response headers.

Decides the body of a request, joins pieces to a completion, and classifies failures. Never sends or receives anything.
"""
