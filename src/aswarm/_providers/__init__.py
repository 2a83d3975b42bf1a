"""Providers: a completion source for each kind of client. No other package of aswarm imports openai.

A source calls its client, and turns the exceptions of the client into `CompletionError`. `_wire` decides the content of a
request.
"""
