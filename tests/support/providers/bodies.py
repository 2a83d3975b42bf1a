"""The JSON of scripted answers, as a correct server of Chat Completions sends them."""

from __future__ import annotations

import json
from typing import Any

from aswarm.testing import ScriptedAnswer
from tests.support.providers.loopback import sse, whole


def completion(answer: ScriptedAnswer) -> dict[str, Any]:
    """Return the answer as one whole completion."""
    body: dict[str, Any] = json.loads(b"".join(whole(answer).pieces))
    return body


def chunks(answer: ScriptedAnswer, cut: int | None = None) -> list[dict[str, Any]]:
    """Return the answer as the chunks of a stream, in pieces of `cut` characters."""
    *events, _done = sse(answer, cut=cut).pieces
    return [json.loads(event.removeprefix(b"data: ")) for event in events]
