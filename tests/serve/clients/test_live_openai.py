"""Clients of Chat Completions against a service on a socket: `llm` and `aider`."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from aswarm.testing import ScriptedAnswer, call
from tests.support.serve.served import Served, served

pytestmark = pytest.mark.asyncio
needs_llm = pytest.mark.skipif(shutil.which("llm") is None, reason="the command llm is not installed")
needs_aider = pytest.mark.skipif("AIDER" not in os.environ, reason="AIDER names the command aider")


async def command(*arguments: str, folder: Path, **environment: str) -> tuple[int | None, str]:
    """Run a command in a folder. Returns its exit code and its output."""
    pipe = asyncio.subprocess.PIPE
    variables = {**os.environ, "NO_PROXY": "127.0.0.1", "HOME": str(folder), **environment}
    process = await asyncio.create_subprocess_exec(
        *arguments,
        cwd=folder,
        env=variables,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=pipe,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(150):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        raise
    return process.returncode, output.decode()


def llm_settings(it: Served, folder: Path) -> dict[str, str]:
    """Return the environment of the command, after writing the files with the model and the key."""
    lines = ["- model_id: boss", "  model_name: Boss", f"  api_base: {it.url}/v1", "  api_key_name: swarm"]
    (folder / "extra-openai-models.yaml").write_text("\n".join(lines), encoding="utf-8")
    (folder / "keys.json").write_text('{"swarm": "token-of-ann"}', encoding="utf-8")
    return {"LLM_USER_PATH": str(folder), "PYTHONPATH": ""}


@needs_llm
@pytest.mark.parametrize("options", [[], ["--no-stream"]], ids=["stream", "whole"])
async def test_llm_asks_and_continues(options: list[str], tmp_path: Path) -> None:
    """The command prints the answer; `--continue` sends the history, which reaches the agent beside its instructions."""

    def script(request: Any) -> Any:
        return ScriptedAnswer(f"{len(request.body['messages'])} messages.")

    async with served(script, wires=["openai"]) as it:
        settings = llm_settings(it, tmp_path)
        ask = (str(shutil.which("llm")), "-m", "boss", *options)
        assert await command(*ask, "Hi!", folder=tmp_path, **settings) == (0, "2 messages.\n")
        assert await command(*ask, "--continue", "And?", folder=tmp_path, **settings) == (0, "4 messages.\n")


@needs_aider
async def test_aider_edits_a_file(tmp_path: Path) -> None:
    """The agent's text is an edit in aider's own form, and the file is changed. Its tools do not show in the answer."""
    (tmp_path / "greet.py").write_text('print("Hello")\n', encoding="utf-8")
    edit = 'greet.py\n```python\n<<<<<<< SEARCH\nprint("Hello")\n=======\nprint("Good day")\n>>>>>>> REPLACE\n```\n'
    flags = [
        "--no-git",
        "--yes-always",
        "--no-check-update",
        "--no-analytics",
        "--no-show-model-warnings",
        "--no-pretty",
    ]
    flags += ["--edit-format", "diff", "--map-tokens", "0", "--no-detect-urls", "--no-suggest-shell-commands"]
    async with served([call("look", number=1), edit], wires=["openai"], activity=True, cut=16) as it:
        settings = {"OPENAI_API_BASE": f"{it.url}/v1", "OPENAI_API_KEY": "token-of-ann", "PYTHONPATH": ""}
        ask = (os.environ["AIDER"], *flags, "--model", "openai/Boss", "--message", "Be more formal.", "greet.py")
        code, output = await command(*ask, folder=tmp_path, LITELLM_LOCAL_MODEL_COST_MAP="True", **settings)
        assert code == 0, output
        assert (tmp_path / "greet.py").read_text(encoding="utf-8") == 'print("Good day")\n', output
