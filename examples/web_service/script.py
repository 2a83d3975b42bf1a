"""The scripted model of the web service. It is slow, so that you can see a stream, and close the page during it."""

from __future__ import annotations

import re

from aswarm.testing import Request, ScriptedAnswer, ScriptedModel, call

STORY = (
    "The Hotel Linden was built in 1906 by two sisters who had inherited a brickyard and nothing else. Every brick of "
    "the front carries their mark, an L in a leaf. The lime trees in the yard are older than the house."
)


def script() -> ScriptedModel:
    """Return the model."""
    return ScriptedModel(_answer, cut=8)


def _answer(request: Request) -> ScriptedAnswer:
    last = request.messages[-1]
    if last["role"] == "tool":
        return _spoken(f"Here is what I found out: {last['content']}")
    return _to_guest(last["content"].lower(), request)


def _to_guest(said: str, request: Request) -> ScriptedAnswer:
    if place := re.search("breakfast|pool|sauna", said):
        return ScriptedAnswer(calls=[call("opening_hours", place=place[0])])
    if "story" in said:
        return _spoken(STORY)
    if "did you" in said or "have you" in said:
        results = [message["content"] for message in request.messages if message["role"] == "tool"]
        return _spoken(f'The last thing I know is: "{results[-1]}". Shall I call the taxi firm?' if results else "No.")
    if "taxi" in said:
        return ScriptedAnswer(calls=[call("order_taxi", destination="the station")])
    return _spoken("Ask me for breakfast, pool, sauna, a taxi, or the story of the house.")


def _spoken(text: str) -> ScriptedAnswer:
    return ScriptedAnswer(text, pause=0.05)
