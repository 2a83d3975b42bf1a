"""The parameters of Chat Completions: which a request may have, and which go to the model.

Each parameter has one of these uses, and none is ignored:

- The service reads it (`messages`, `stream`).
- It goes to the model with each request of the run (`temperature`, `max_tokens`).
- It is refused with 400, unless its value is the default, which changes nothing (`n=1`, `logprobs=false`).

A parameter that is not in this table, such as a parameter of the Responses API, is refused too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from aswarm._values.json import is_array, is_count, is_object, shown
from aswarm.runs import InvalidRequest
from aswarm.serve.wires.requests import a_flag

_SHOWN = 100
_MOST_STOPS = 4

# The service reads these parameters itself.
READ = frozenset({"model", "messages", "stream", "stream_options", "tools", "tool_choice"})


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_stop(value: object) -> bool:
    stops = value if is_array(value) else [value]
    return 0 < len(stops) <= _MOST_STOPS and all(isinstance(stop, str) and stop for stop in stops)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


# Parameters that go to the model, with a check and the words for it.
SENT: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "temperature": (_is_number, "a number"),
    "top_p": (_is_number, "a number"),
    "frequency_penalty": (_is_number, "a number"),
    "presence_penalty": (_is_number, "a number"),
    "seed": (lambda value: isinstance(value, int) and not isinstance(value, bool), "a whole number"),
    "stop": (_is_stop, "a text, or a list of one to four texts"),
    "max_tokens": (is_count, "a whole number above 0"),
    "max_completion_tokens": (is_count, "a whole number above 0"),
    "parallel_tool_calls": (lambda value: isinstance(value, bool), "true or false"),
    "reasoning_effort": (_is_text, "a text"),
    "verbosity": (_is_text, "a text"),
    "user": (_is_text, "a text"),
}
# Parameters of Chat Completions that the Responses API does not have, with the default that changes nothing.
_CHAT_ONLY: Mapping[str, object] = {"stop": None, "seed": None, "frequency_penalty": 0, "presence_penalty": 0}

# Parameters that are refused unless they have this value.
DEFAULTS: Mapping[str, Collection[object]] = {
    "n": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "logit_bias": ({},),
    "store": (False,),
    "metadata": ({},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "service_tier": ("auto", "default"),
    "safety_identifier": (),
    "prompt_cache_key": (),
    "prompt_cache_retention": (),
    "functions": ([],),
    "function_call": ("auto", "none"),
}


def refused(param: str, text: str) -> InvalidRequest:
    """Return the error for a parameter."""
    return InvalidRequest(text, code="unsupported", param=param)


def settings_in(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a request that go to the model. Raises InvalidRequest for a parameter that is refused."""
    settings: dict[str, Any] = {}
    for key, value in data.items():
        if value is None or key in READ:
            continue
        if key in SENT:
            is_valid, wanted = SENT[key]
            if not is_valid(value) and value != []:
                text = f"{key} must be {wanted}, not {shown(value, _SHOWN)}"
                raise InvalidRequest(text, code="invalid_request", param=key)
            settings |= {} if value == [] else {key: value}
        elif not any(type(value) is type(default) and value == default for default in DEFAULTS.get(key, ())):
            raise refused(key, f"{key} is not supported by this server; leave it out")
    return settings


def check_for_responses(settings: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for a parameter that the Responses API does not have, for a service that calls its model over it."""
    for key in settings:
        if key in _CHAT_ONLY and settings[key] != _CHAT_ONLY[key]:
            text = f"{key} is not supported: this server calls its model over the Responses API, which does not have it"
            raise refused(key, text)


def includes_usage(options: object) -> bool:
    """Return whether the stream has a chunk with the usage, from `stream_options`. Raises InvalidRequest."""
    if options is None:
        return False
    if not is_object(options):
        raise refused("stream_options", f"stream_options must be an object, not {shown(options, _SHOWN)}")
    for key, value in options.items():
        if key != "include_usage" and value not in (None, False):
            raise refused(
                f"stream_options.{key}", f"stream_options.{key} is not supported by this server; leave it out"
            )
    return a_flag(options.get("include_usage"), "stream_options.include_usage")


def offers_tools(choice: object) -> bool:
    """Return whether the model may call the tools of the client, from `tool_choice`. Raises InvalidRequest."""
    if choice not in (None, "auto", "none"):
        text = 'tool_choice must be "auto" or "none": the agent decides which tool it calls'
        raise refused("tool_choice", text)
    return choice != "none"
