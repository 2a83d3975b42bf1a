"""Clients of the service of a soak: they stream, leave, come back, cancel, decide on calls or let them expire, and fork."""

from __future__ import annotations

import asyncio
import json
import ssl
from typing import Any

import httpx

from tests.support.testing.soak_agents import action
from tests.support.testing.soak_day import Day

_TLS = ssl.create_default_context()  # shared, because it is slow to make and no client needs it
_REFUSED = {404, 409, 422, 429, 503}


class Browsers:
    """Makes the visits of all users. A user comes for some hours, and never again."""

    def __init__(self, day: Day, url: str) -> None:
        self._day = day
        self._url = url
        self._number = 0

    async def visit(self) -> None:
        """One visit: a few messages to a conversation over one of the wires, and sometimes more."""
        day, self._number = self._day, self._number + 1
        user = f"user-{int(day.now)}-{day.rand.randrange(12)}"
        async with httpx.AsyncClient(
            base_url=self._url, headers={"x-user": user}, timeout=60, trust_env=False, verify=_TLS
        ) as http:
            visit = _Visit(day, http, f"c{self._number}")
            wire = day.rand.choices([visit.native, visit.openai, visit.vercel, visit.agui], [7, 1, 1, 1])[0]
            for turn in range(day.rand.randrange(1, 5)):
                await wire(turn)
            if wire == visit.native:
                await visit.tidy()


class _Visit:
    def __init__(self, day: Day, http: httpx.AsyncClient, conversation: str) -> None:
        self._day = day
        self._http = http
        self._conversation = conversation

    def _count(self, name: str) -> None:
        self._day.counts[name] += 1

    def _ok(self, response: httpx.Response) -> bool:
        if response.is_success:
            return True
        assert response.status_code in _REFUSED, f"{response.status_code} {response.text}"
        self._count(f"service: {response.status_code}")
        return False

    # --- the native wire ---

    async def native(self, turn: int) -> None:
        """Send a message, read the run, and decide on its calls."""
        body: dict[str, Any] = {"text": action(self._day.rand)}
        if self._day.chance(0.15):
            body["on_disconnect"] = "cancel"
        key = {"idempotency-key": f"{self._conversation}-{turn}"} if self._day.chance(0.3) else {}
        path = f"/conversations/{self._conversation}/runs"
        for _ in range(3):
            response = await self._http.post(path, json=body, headers=key)
            if not self._ok(response):
                return
            waiting = await self._read(response.headers["location"])
            if not waiting or self._day.chance(0.25):  # the others expire
                return
            body, key = {"answers": [self._decided(response.json()["run"], call) for call in waiting]}, {}
            self._count("service: answers")

    def _decided(self, run: str, call: dict[str, Any]) -> dict[str, Any]:
        decided: dict[str, Any] = {"call": call.get("call_id") or call["id"], "run": run}
        if call.get("kind") == "approval" or call["name"] == "run_code":
            return {**decided, "approve": self._day.chance(0.7)}
        return {**decided, "content": "yes"}

    async def _read(self, path: str) -> list[dict[str, Any]]:
        """Read the events of a run; leave, come back and cancel at random. Returns the calls that wait."""
        after, last = -1, dict[str, Any]()
        async with asyncio.TaskGroup() as group:
            if self._day.chance(0.08):
                group.create_task(self._cancel(path))
            while not last:
                patience = self._day.rand.randrange(1, 12) if self._day.chance(0.3) else 1_000_000
                after, last = await self._stream(path, after, patience)
                if after < 0:
                    break
                if not last:
                    self._count("service: disconnects")
                    if self._day.chance(0.3):
                        break
                    await asyncio.sleep(self._day.rand.random() * 0.5)
        waiting: list[dict[str, Any]] = last.get("response", {}).get("waiting") or []
        return [call for call in waiting if call.get("kind") is not None or call.get("reason") is not None]

    async def _stream(self, path: str, after: int, patience: int) -> tuple[int, dict[str, Any]]:
        """Read events until the end, or until the patience is over. Returns the last number, and the last entry of the run."""
        headers = {"last-event-id": str(after)} if after >= 0 else {}
        async with self._http.stream("GET", path, headers=headers) as response:
            if response.status_code != 200:
                await response.aread()
                self._ok(response)
                return -1, {}
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    entry = json.loads(line[6:])
                    after, patience = entry["seq"], patience - 1
                    if entry["type"] in ("RunFinished", "RunFailed", "RunStopped"):
                        self._count(f"service: {entry['type']}")
                        return after, entry
                if not patience:
                    break
        return after, {}

    async def _cancel(self, path: str) -> None:
        await asyncio.sleep(self._day.rand.random())
        self._ok(await self._http.post(f"{path.removesuffix('/events')}/cancel"))
        self._count("service: cancels")

    async def tidy(self) -> None:
        """Fork, rename, list, search or delete."""
        mine, http, day = f"/conversations/{self._conversation}", self._http, self._day
        if day.chance(0.2) and self._ok(await http.post(f"{mine}/fork", json={"id": f"{self._conversation}-fork"})):
            self._count("service: forks")
            forked = _Visit(day, http, f"{self._conversation}-fork")
            await forked.native(0)
        if day.chance(0.2):
            self._ok(await http.patch(mine, json={"title": "Lamps"}))
        if day.chance(0.3):
            self._ok(await http.get("/conversations", params={"search": "lamp"} if day.chance(0.5) else {}))
            self._ok(await http.get(mine))
        if day.chance(0.2):
            self._ok(await http.delete(mine))

    # --- other wires ---

    async def openai(self, turn: int) -> None:
        """Send a request of Chat Completions, with or without a conversation."""
        headers = {"x-conversation-id": self._conversation} if self._day.chance(0.5) else {}
        said = {"role": "user", "content": action(self._day.rand)}
        await self._post(
            "/v1/chat/completions", {"model": "desk", "stream": self._day.chance(0.7), "messages": [said]}, headers
        )

    async def vercel(self, turn: int) -> None:
        """Send a message of `useChat`."""
        said = {"id": f"m{turn}", "role": "user", "parts": [{"type": "text", "text": action(self._day.rand)}]}
        await self._post("/chat/desk", {"id": self._conversation, "messages": [said], "trigger": "submit-message"})

    async def agui(self, turn: int) -> None:
        """Send a message of AG-UI."""
        said = {"id": f"m{turn}", "role": "user", "content": action(self._day.rand)}
        body = {"threadId": self._conversation, "runId": f"{self._conversation}-{turn}", "messages": [said]}
        await self._post("/agui/desk", {**body, "tools": [], "context": [], "state": {}, "forwardedProps": {}})

    async def _post(self, path: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        patience = self._day.rand.randrange(1, 20) if self._day.chance(0.25) else 1_000_000
        async with self._http.stream("POST", path, json=body, headers=headers) as response:
            self._count(f"service: {path.split('/')[1]} {response.status_code}")
            assert response.status_code in {200, 400, 502, *_REFUSED}, await response.aread()
            async for _ in response.aiter_lines():
                patience -= 1
                if not patience:
                    self._count("service: disconnects")
                    return
