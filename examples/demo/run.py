"""The demo: a customer's sentence, two agents, a real refund. `--scripted` needs no model.

The program starts the model's server, runs the agents with streaming, prints each event, checks the result, and always stops the
server. Exit codes: 0: all checks passed. 1: the run or a check failed. 2: the model cannot be started. 130: stopped by Ctrl-C.
143: stopped by SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager

from agents import Shop, triage
from checks import check_run
from model_server import ModelUnavailableError, model_server
from narrator import Narrator
from openai import AsyncOpenAI
from script import scripted_model

from aswarm import AswarmError, AsyncSwarm, Response

SENTENCE = "Hello, the lamp from order {order} arrived broken. Please give me my money back."
REQUEST_SECONDS = 120
MAX_TURNS = 6


def main() -> int:
    """Run the demo and return its exit code."""
    options = _options()
    signal.signal(signal.SIGTERM, _exit_on_sigterm)
    try:
        with _client(scripted=options.scripted) as client:
            return asyncio.run(_demo(client, options.order))
    except ModelUnavailableError as error:
        print(f"cannot start the model: {error}; run `nox -s demo -- --scripted` instead", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130


def _exit_on_sigterm(*_: object) -> None:
    sys.exit(128 + signal.SIGTERM)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scripted", action="store_true", help="a scripted model instead of SmolLM2")
    parser.add_argument("--order", type=int, default=4711, help="the order number in the customer's sentence")
    return parser.parse_args()


@contextmanager
def _client(*, scripted: bool) -> Generator[AsyncOpenAI]:
    if scripted:
        print("model: a script, no network")
        yield scripted_model().client()
        return
    os.environ["no_proxy"] = "127.0.0.1"  # a proxy set for this machine cannot reach its loopback
    print("model: SmolLM2-135M-Instruct on llama.cpp, starting ...", flush=True)
    with model_server() as url:
        print(f"model: healthy at {url}", flush=True)
        # This server drops the connection after every stream, although its header promises to keep it; a request directly
        # after it would be lost.
        headers = {"Connection": "close"}
        yield AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=REQUEST_SECONDS, default_headers=headers)


async def _demo(client: AsyncOpenAI, order: int) -> int:
    sentence, narrator = SENTENCE.format(order=order), Narrator()
    shop = Shop({1001: 1250, order: 3990, order + 1: 500})
    async with client:
        try:
            response = await _run(client, sentence, shop, narrator)
        except AswarmError as error:
            narrator.line(f"the run failed: {type(error).__name__}: {error}")
            return 1
    seconds = narrator.seconds
    print("checks:")
    failures = check_run(sentence, order, shop, response, narrator)
    print(f"{narrator.turns} turns, {response.usage.total_tokens} tokens, {seconds:.1f} s, refunds: {shop.refunds}")
    return 1 if failures else 0


async def _run(client: AsyncOpenAI, sentence: str, shop: Shop, narrator: Narrator) -> Response:
    narrator.line(f"customer: {sentence}")
    swarm = AsyncSwarm(client=client)
    async with swarm.stream(triage, sentence, {"shop": shop}, max_turns=MAX_TURNS) as run:
        async for event in run:
            narrator.show(event)
    return run.response


if __name__ == "__main__":
    sys.exit(main())
