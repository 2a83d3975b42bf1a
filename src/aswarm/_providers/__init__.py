"""Providers: a completion source for each kind of client. The only room that imports openai.

Decides how a client is called, and turns its exceptions into `CompletionError`. Never decides what is sent, and never
reads a conversation.
"""
