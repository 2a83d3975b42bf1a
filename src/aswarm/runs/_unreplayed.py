"""The response of a run that this process cannot replay, from its recorded entries alone.

A process of another version may lack an agent, or send another request than the recorded one. The conversation then gets the
recorded messages nevertheless. So the next run knows which calls have a result, and which of them may have run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from aswarm._record.fold import Folded
from aswarm._values.agent import Agent, Response, UnknownCall
from aswarm._values.decisions import open_calls
from aswarm._values.messages import (
    OUTCOME_UNKNOWN,
    Message,
    call_arguments,
    call_name,
    match_answers,
    message_blocks,
    text_of,
)
from aswarm._values.usage import Usage


def recorded_response(folded: Folded, before: Sequence[Message], agent: Agent) -> Response:
    """Return the response of a stopped run. `before`: the messages before the response. `agent`: the active agent."""
    messages, used = folded.response_messages, folded.usage
    history = [*before, *messages]
    return Response(
        messages=messages,
        agent=agent,
        context_variables=folded.context,
        usage=Usage(used["prompt_tokens"], used["completion_tokens"], used["total_tokens"], used["requests"]),
        stop="cancelled",
        run_id=folded.run_id,
        unknown_calls=[*_unknown_calls(history, messages)],
        open_calls=open_calls(history),
    )


def _unknown_calls(history: Sequence[Message], messages: Sequence[Message]) -> Iterator[UnknownCall]:
    """Yield the calls whose answers in `messages` say that the outcome is unknown."""
    new = {id(message) for message in messages}
    for head, answers in message_blocks(history):
        calls = head.get("tool_calls") or ()
        for call, answer in zip(calls, match_answers(calls, answers), strict=True):
            if answer and id(answer) in new and text_of(answer["content"]).startswith(OUTCOME_UNKNOWN):
                sender = str(head.get("sender") or "")
                yield UnknownCall(str(call["id"]), call_name(call), call_arguments(call), sender)
