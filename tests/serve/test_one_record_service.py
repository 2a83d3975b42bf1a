"""A service over runs of its caller: what it lists can be used, and it records what its own runs would."""

from __future__ import annotations

import json

import pytest

from aswarm import Agent, AsyncSwarm
from aswarm.runs import LocalRuns, show_everything
from aswarm.serve import Service, bearer
from aswarm.testing import ScriptedModel
from tests.support.serve.served import client, listening

pytestmark = [pytest.mark.asyncio]


async def test_each_listed_model_of_given_runs_can_be_used() -> None:
    """Each model of /v1/models answers, the agent for titles too, and the log of a run shows its requests."""
    clerk, titles = Agent(name="Clerk"), Agent(name="Titles")
    async with (
        AsyncSwarm(ScriptedModel(lambda _: "Hello.").client()) as swarm,
        LocalRuns(swarm, agents=[clerk], task_agent=titles) as runs,
    ):
        service = Service(runs, auth=bearer("token"), show=show_everything, wires=("openai",))
        async with listening(service) as url, client(url, "token") as browser:
            models = [each["id"] for each in (await browser.get("/v1/models")).json()["data"]]
            answered = {}
            for model in models:
                body = {"model": model, "messages": [{"role": "user", "content": "Hi!"}]}
                answered[model] = (await browser.post("/v1/chat/completions", json=body)).status_code
            run = (await browser.post("/conversations/c/runs", json={"text": "Hi!"})).json()["run"]
            log = (await browser.get(f"/runs/{run}/events")).text
    assert len(models) == 2
    types = [json.loads(line[6:])["type"] for line in log.splitlines() if line.startswith("data: ")]
    assert types[-1] == "RunFinished"
    assert (answered, "RequestSent" in types) == (dict.fromkeys(models, 200), True)
