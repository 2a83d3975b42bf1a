"""Providers: a completion source for each kind of client. The only room that imports openai.

Calls clients, and turns their exceptions into `CompletionError`. Never decides the content of a request.
"""
