"""Prints the CPU seconds of this process from its start to the answer of its first conversation: `first_answer.py CONTENDER URL`.

This program imports only modules that the contender needs.
"""

from __future__ import annotations

import asyncio
import sys
import time

from scenario import ANSWER, TALLY, opener_of


async def _converse() -> None:
    session = await opener_of(sys.argv[1])(sys.argv[2])
    answer = await session.converse(session.prepare(()))
    spent = time.process_time()
    if answer != ANSWER or set(TALLY.calls.values()) != {1}:
        raise RuntimeError(f"the answer was {answer!r}, and the calls were {TALLY.calls}")
    print(spent, file=_OUTPUT, flush=True)
    await session.close()


if __name__ == "__main__":
    _OUTPUT, sys.stdout = sys.stdout, sys.stderr  # the output of a framework is not a result
    asyncio.run(_converse())
