"""The README's code does what the README says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from loopback import serve, sse

from aswarm.testing import Answer, call

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
BLOCKS: list[str] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def block_with(text: str) -> str:
    """The one block of code that has this text in it."""
    (found,) = [block for block in BLOCKS if text in block]
    return found


@pytest.mark.asyncio
async def test_the_first_example_runs_as_it_stands(tmp_path: Path) -> None:
    """Copied word for word into an empty folder, with the environment set, it streams, hands over, and leaves nothing."""
    (tmp_path / "first.py").write_text(block_with("asyncio.run(main())\n"), encoding="utf-8")
    steps = iter([call("transfer_to_orders"), call("look_up_order", order_id=42), "It came yesterday."])

    def reply(_: object) -> object:
        step = next(steps)
        return sse(Answer(step) if isinstance(step, str) else Answer(calls=[step]), cut=4)

    async with serve(reply) as server:
        done = await anyio.run_process(
            [sys.executable, "-W", "error", "first.py"],
            cwd=tmp_path,
            env={**os.environ, "OPENAI_API_KEY": "x", "OPENAI_BASE_URL": server.base_url},
            stderr=subprocess.STDOUT,
        )
    assert done.stdout.decode().splitlines() == [
        "[transfer_to_orders({})]",
        "[Orders takes over]",
        '[look_up_order({"order_id": 42})]',
        "It came yesterday.",
        "45 tokens",
    ]


def test_the_example_of_a_test_passes() -> None:
    """The test of the README is a test that passes."""
    namespace: dict[str, object] = {}
    exec(block_with("def test_orders"), namespace)  # the block is ours
    test = namespace["test_orders"]
    assert callable(test)
    test()
