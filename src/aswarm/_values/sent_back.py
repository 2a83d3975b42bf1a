"""Keys of an assistant message: which of them are sent back to the provider with the next request.

Providers add keys to their answers that are no part of a request. Mistral, Groq and others reject unknown keys; each key also
costs input tokens, or changes the prefix of the prompt cache. But DeepSeek, Gemini and Anthropic reject a history without the
reasoning and the signatures that they sent. So an answer goes back with the fields of the API, and with the keys that carry what
the model thought and signed; their names say so. Any other key of an answer is recorded and shown, and never sent.

A message without `sender` was written by the caller. Its keys are the caller's choice, for example the `prefix` of Mistral.
"""

from functools import lru_cache

# Keys that providers and SDKs add to answers: citations, padding, the channel and the hosted tools of Groq, the form of a parsed
# answer, the routing of a gateway. They are never sent, also if the caller has added the answer of an SDK to the history.
ANSWER_KEYS = frozenset(
    {
        "annotations",
        "channel",
        "executed_tools",
        "padding",
        "parsed",
        "parsed_arguments",
        "provider_metadata",
        "token_id",
    }
)
# The fields of the API: of an assistant message, and of its calls and their functions.
FIELDS = frozenset({"role", "content", "refusal", "tool_calls", "function_call", "audio", "responses_output"})
CALL_FIELDS = frozenset({"id", "type", "function", "custom", "name", "arguments", "input"})
_OF_MODEL = ("reasoning", "thinking", "thought", "signature", "encrypted", "opaque")
# `extra_content` (Gemini) and `provider_specific_fields` (LiteLLM) contain signatures. `images` (OpenRouter) are content.
_CARRIERS = frozenset({"extra_content", "images", "provider_specific_fields"})


@lru_cache(maxsize=1000)  # the keys come from servers
def is_of_model(key: str) -> bool:
    """Return whether this key of an answer carries what the model thought or signed."""
    name = key.lower()
    return key in _CARRIERS or any(word in name for word in _OF_MODEL)
