"""Messages of a short chat, for the tests of the terminal."""

USER = {"role": "user", "content": "Hi"}
ANSWER = {"role": "assistant", "content": "Hello!", "sender": "Bot", "tool_calls": None}
CALL = {"id": "1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
ASKING = {"role": "assistant", "content": None, "sender": "Bot", "tool_calls": [CALL]}
