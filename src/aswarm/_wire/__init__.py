"""What providers send and want: requests, server-sent events, deltas, and the headers of an answer.

Decides the body of a request and how pieces become one completion. Never sends or receives anything.
"""
