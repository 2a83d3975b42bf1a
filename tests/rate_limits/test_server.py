"""Limits against a real server that allows so many requests in a window, on real sockets, on both backends."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

import anyio
import openai
import pytest

from aswarm import Agent, AsyncSwarm, RateLimits
from aswarm.testing import ScriptedAnswer
from tests.support.providers.loopback import Reply, serve, sse, whole
from tests.support.rate_limits.timed_models import run_all

pytestmark = pytest.mark.slow


@dataclass
class Server:
    """The times of accepted and rejected requests."""

    most: int
    accepted: list[float] = field(default_factory=list)
    rejected: list[float] = field(default_factory=list)
    open_again: list[float] = field(default_factory=list)

    @property
    def arrivals(self) -> list[float]:
        return sorted(self.accepted + self.rejected)

    def accept(self, body: dict[str, Any], now: float) -> Reply:
        self.accepted.append(now)
        return sse(ScriptedAnswer("Hi"), cut=1) if body.get("stream") else whole(ScriptedAnswer("Hi"))

    def reject(self, now: float, seconds: float) -> Reply:
        self.rejected.append(now)
        self.open_again.append(now + seconds)
        error = b'{"error": {"message": "slow down"}}'
        headers = {"retry-after": f"{seconds:.6f}"}
        return Reply([error], status="429 Too Many Requests", content_type="application/json", headers=headers)


class Quota(Server):
    """Allows so many requests, rejects all others for 0.3 s from the first of them, and starts again."""

    left = 3

    def reply(self, body: dict[str, Any]) -> Reply:
        now = anyio.current_time()
        if self.left < 0 and now >= self.open_again[-1]:
            self.left = self.most
        self.left -= 1
        if self.left >= 0:
            return self.accept(body, now)
        return self.reject(now, 0.3 if self.left == -1 else self.open_again[-1] - now)


def _client(base_url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key="k", base_url=base_url, max_retries=3)


async def test_after_the_first_429_nothing_arrives_before_the_time_that_the_server_gave(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The rejected request waits, and so do all others; then all are answered, each once."""
    caplog.set_level(logging.INFO, "aswarm")
    quota = Quota(3)
    async with serve(quota.reply) as server, _client(server.base_url) as client:
        swarm = AsyncSwarm(client, rate_limits=RateLimits())
        with anyio.fail_after(120):
            async with anyio.create_task_group() as group:
                for _ in range(3):
                    await swarm.run(Agent(), "allowed")
                group.start_soon(swarm.run, Agent(), "rejected")
                while "all runs of this swarm pause" not in caplog.text:
                    await anyio.sleep(0.001)
                assert await run_all(swarm, 5) == ["Hi"] * 5
    assert len(quota.accepted) == 9
    assert quota.arrivals[4] >= quota.open_again[0]
