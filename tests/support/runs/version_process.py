"""A process of one version of aswarm, for `tests/runs/two_versions.py`: it reads requests from stdin, one JSON object per line.

It runs with the Python of that version's environment, so it uses only public names that both versions have. Its functions append
lines to `ledger.txt`, which all processes of a scene share. The text of the user is a plan and the name of an item, such as
"hold a1": `model` has the plans.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aswarm.testing as scripted
from aswarm import Agent, AsyncSwarm, current_call, tool
from aswarm.batch import Item
from aswarm.conversations import Conversation, PostgresStore, SQLiteStore
from aswarm.runs import LocalRuns, NewRun, Run

ANN = "ann"
LONG = "words " * 40
# Before 0.1.0, its name was Answer.
Scripted: Any = getattr(scripted, "ScriptedAnswer", None) or scripted.Answer  # type: ignore[attr-defined]


class Shop:
    """The agents of a process. `folder`: the folder that all processes of the scene share."""

    def __init__(self, folder: Path, version: str) -> None:
        self.folder, self.version = folder, version

    def note(self, *words: str) -> None:
        file = os.open(self.folder / "ledger.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(file, f"{' '.join(words)} {self.version}\n".encode())
        os.close(file)

    async def until_allowed(self, item: str) -> None:
        """Wait until the parent process has created the file of the item."""
        while not (self.folder / f"go-{item}").exists():
            await asyncio.sleep(0.02)

    def agents(self) -> list[Agent]:

        async def write(item: str, context_variables: dict[str, Any]) -> str:
            self.note("write", item, current_call().key)
            context_variables["written"] = [*context_variables.get("written", ()), item]
            return f"wrote {item}"

        async def hold(item: str) -> str:
            self.note("hold", item, current_call().key)
            await self.until_allowed(item)
            return f"held {item}"

        @tool(repeatable=True)
        async def look(item: str) -> str:
            self.note("look", item, current_call().key)
            await self.until_allowed(item)
            return f"looked at {item}"

        @tool(approve=True)
        async def pay(item: str) -> str:
            self.note("pay", item, current_call().key)
            return f"paid {item}"

        functions = [write, hold, look, pay]
        clerk = Agent(name="Clerk", instructions="You write.", functions=functions)
        boss = Agent(name="Boss", instructions="You decide.", functions=[*functions, clerk])
        return [boss, clerk]

    def model(self, request: Any) -> Any:
        """Follow the plan in the last message of the user: first `write`, then the call of the plan, then the answer."""
        messages = request.body["messages"]
        last = max(at for at, message in enumerate(messages) if message["role"] == "user")
        plan, item = messages[last]["content"].split()
        made = [call["function"]["name"] for each in messages[last:] for call in each.get("tool_calls") or ()]
        moves = ["transfer_to_clerk"] if "transfer_to_clerk" in request.tool_names else []
        script = {"write": ["write"], "move": [*moves, "write"], "stream": ["write"]}.get(plan, ["write", plan])
        for name in script:
            if name not in made:
                arguments = {} if name == "transfer_to_clerk" else {"item": item}
                return scripted.call(name, call_id=f"{item}-{len(made)}", **arguments)
        is_slow = plan == "stream" and not (self.folder / f"go-{item}").exists()
        return Scripted(f"{LONG if plan == 'stream' else ''}done {item}", pause=0.1 if is_slow else 0)


class Actor:
    """The requests of the parent to this process. `given`: `kind`, `store`, `folder`, `version`, and `port` of a service."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.given = given
        self.shop = Shop(Path(given["folder"]), given["version"])
        self.agents = self.shop.agents()
        self.swarm: AsyncSwarm
        self.runs: Any = None
        self.store: Any = None

    async def open(self, stack: AsyncExitStack) -> None:
        kind, store = self.given["kind"], self.given["store"]
        self.swarm = await stack.enter_async_context(
            AsyncSwarm(scripted.ScriptedModel(self.shop.model, cut=4).client())
        )
        if kind in ("store", "local", "service"):
            self.store = PostgresStore(store) if store.startswith("postgres") else SQLiteStore(store)
            await stack.enter_async_context(self.store)
        if kind in ("local", "service"):
            self.runs = LocalRuns(self.swarm, store=self.store, agents=self.agents, version="1", failover_seconds=0.3)
        elif kind in ("durable", "durable service"):
            from aswarm.durable import DurableRuns

            self.runs = DurableRuns(
                self.swarm, agents=self.agents, store=store, version="1", failover_seconds=0.3, poll_seconds=0.05,
                concurrency=self.given.get("concurrency", 10),
            )  # fmt: skip
            self.store = self.runs.store
        if kind in ("local", "durable"):
            await stack.enter_async_context(self.runs)

    async def serve(self) -> None:
        import uvicorn

        from aswarm.serve import Service, bearer

        service = Service(self.runs, auth=bearer("token"), wires=("openai",), drain_seconds=2)
        print(json.dumps({"ready": True}), flush=True)
        await uvicorn.Server(uvicorn.Config(service, port=self.given["port"], log_level="warning")).serve()

    # --- runs ---

    async def start(self, run: str, conversation: str, text: str) -> Any:
        new = NewRun(ANN, conversation, [{"role": "user", "content": text}], run_id=run, agent="Boss")
        return (await self.runs.start(new)).record.to_dict()

    async def get(self, run: str) -> Any:
        return (await self.runs.get(run, user=ANN)).to_dict()

    async def end(self, run: str) -> Any:
        return (await Run(self.runs, await self.runs.get(run, user=ANN)).last_entry()).to_dict()

    async def answer(self, run: str, call: str, approve: bool) -> Any:
        """Answer the waiting call of a run. Returns the id of the run that continues."""
        waits = Run(self.runs, await self.runs.get(run, user=ANN))
        return (await waits.answer({call: approve})).id

    async def entries(self, run: str) -> Any:
        record = await self.runs.get(run, user=ANN)
        return [entry.to_dict() async for entry in Run(self.runs, record).entries()]

    async def reach(self, run: str, kind: str) -> Any:
        """Wait until the log of a run has an entry of this type."""
        async for entry in Run(self.runs, await self.runs.get(run, user=ANN)).entries():
            if entry.type == kind:
                return entry.to_dict()
        raise ValueError(f"the run {run} has no {kind}")

    async def cancel(self, run: str) -> Any:
        return (await self.runs.cancel(run, user=ANN)).to_dict()

    # --- conversations ---

    async def load(self, conversation: str) -> Any:
        stored = await self.store.load(f"{ANN}/{conversation}")
        if stored.stop == "answer":
            scripted.check_history(stored.messages)
        return {
            "messages": stored.messages, "context": stored.context_variables, "stop": stored.stop, "agent": stored.agent
        }  # fmt: skip

    async def say(self, conversation: str, text: str) -> Any:
        return self._shown(await self._chat(conversation).run(text))

    async def resume(self, conversation: str, decisions: dict[str, bool] | None = None) -> Any:
        chat = self._chat(conversation)
        return self._shown(await (chat.resume(decisions) if decisions else chat.resume()))

    def _chat(self, conversation: str) -> Conversation:
        return Conversation(
            self.store, f"{ANN}/{conversation}", self.swarm, agent=self.agents[0], agents=self.agents[1:]
        )

    def _shown(self, response: Any) -> Any:
        return {
            "text": response.text,
            "stop": response.stop,
            "waiting": [call.id for call in getattr(response, "open_calls", None) or response.waiting],
        }

    # --- batches ---

    async def batch(self, texts: list[str]) -> Any:
        """Run a batch with the journal `store`, or continue it. Returns the text of each item."""
        items = [Item(text, id=text) for text in texts]
        answers: dict[str, Any] = {}
        batch = self.swarm.batch(
            self.agents[0], items, journal=self.given["store"], concurrency=4, agents=self.agents, attempts=1
        )
        async with batch as outcomes:
            async for outcome in outcomes:
                response = outcome.response
                answers[texts[outcome.index]] = {
                    "error": None if outcome.error is None else repr(outcome.error),
                    "text": response and response.text,
                    "written": response and response.context_variables.get("written"),
                }
        return answers

    async def leave(self) -> Any:
        if self.runs is not None:
            await self.runs.drain(1)


async def obey(actor: Actor, request: dict[str, Any]) -> None:
    try:
        value = await getattr(actor, request["do"])(*request["with"])
        answer = {"id": request["id"], "value": value}
    except Exception as error:
        answer = {"id": request["id"], "error": f"{type(error).__name__}: {error}"}
    print(json.dumps(answer), flush=True)


async def main(given: dict[str, Any]) -> None:
    """Open everything, and carry out requests until the end of stdin."""
    actor, tasks = Actor(given), set[asyncio.Task[None]]()
    async with AsyncExitStack() as stack:
        try:
            await actor.open(stack)
        except Exception as error:
            print(json.dumps({"ready": False, "error": f"{type(error).__name__}: {error}"}), flush=True)
            return
        if "service" in given["kind"]:
            await actor.serve()
            return
        print(json.dumps({"ready": True}), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            request = json.loads(line)
            task = asyncio.create_task(obey(actor, request))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            if request["do"] == "leave":
                break
        await asyncio.gather(*tasks)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
