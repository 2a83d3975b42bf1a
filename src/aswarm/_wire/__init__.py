"""What providers send and want: requests, server-sent events, deltas, failures, and the headers of an answer.

Decides the body of a request, how pieces become one completion, and what a failure means. Never sends or receives anything.
"""
