"""An evaluation over real sockets, with a client from the environment."""

from __future__ import annotations

from typing import Any

import pytest

from aswarm.evals import Case, evaluate
from aswarm.testing import ScriptedAnswer, call
from tests.support.evals.evaluated import desk
from tests.support.providers.loopback import Reply, serve, whole


@pytest.mark.asyncio
async def test_a_real_server(monkeypatch: pytest.MonkeyPatch, nothing_left: list[dict[str, Any]]) -> None:
    """Without a `swarm`, one is made from the environment and closed; nothing is left behind."""

    def reply(body: dict[str, Any]) -> Reply:
        asked = body["messages"][-1]["content"]
        if "Question:" in asked:
            return whole(ScriptedAnswer('{"reason": "ok", "value": true}'))
        return whole(ScriptedAnswer(calls=[call("book", city="Rome")]) if asked == "Book" else ScriptedAnswer("Hello!"))

    cases = [
        Case("Book", function="book", arguments={"city": "Rome"}),
        Case("Hi", judge="Is it polite?"),
        Case("Hi", function="book"),
    ]
    async with serve(reply) as server:
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        report = await evaluate(desk, cases, repeats=3)
    assert [case.accuracy for case in report.cases] == [1, 1, 0], report
    assert len(server.requests) == 12
    assert report.usage.requests == 12
