"""The wire of providers: requests, server-sent events, deltas, failures, and response headers.

This package builds the body of a request, joins the pieces of an answer to a completion, and classifies failures. It does no
I/O.
"""
