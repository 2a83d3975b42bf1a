"""Who answers: a completion source for each kind of client. The only room that imports openai.

Decides how a client is called, and turns what it raises into `CompletionError`. Never decides what to ask, and never
reads a conversation.
"""
