"""The server executes the run, another process stops it.

Follows https://docs.langchain.com/langsmith/cancel-run and, for the open call,
https://docs.langchain.com/oss/python/langgraph/errors/INVALID_CHAT_HISTORY: the program adds its `ToolMessage`. The server is the one
for development, `langgraph dev`.
"""

from __future__ import annotations

import json

import service
from common import agent, answers_to_open_calls, said
from stage import FOLDER, GO_ON, book_train, look_up, main, seen

DESK = agent(look_up, book_train)
RUN = FOLDER / "run.json"


async def serve() -> None:
    """Serve."""
    await service.serve(__file__)


async def start() -> None:
    """Start a run in the server, and leave while its tool runs."""
    client = service.browser()
    thread = (await client.threads.create())["thread_id"]
    run = await client.runs.create(thread, "desk", input=said("Look up order 7, and book the train."))
    RUN.write_text(json.dumps([thread, run["run_id"]]))
    await seen("book_train")


async def stop() -> None:
    """Stop the run from this process."""
    thread, run = json.loads(RUN.read_text())
    await service.browser().runs.cancel(thread, run, wait=True)


async def go_on() -> None:
    """Answer the open call, and continue the conversation."""
    client, (thread, _) = service.browser(), json.loads(RUN.read_text())
    messages = (await client.threads.get_state(thread))["values"]["messages"]
    answers = [message.model_dump() for message in answers_to_open_calls(messages)]
    await client.runs.wait(thread, "desk", input={"messages": [*answers, *said(GO_ON)["messages"]]})


if __name__ == "__main__":
    main(serve, start, stop, go_on)
