"""The scripted model: the editor writes one snippet of code, and each reader opens its document."""

from __future__ import annotations

import re

from aswarm.testing import Request, ScriptedAnswer, ScriptedModel, Step, call

CODE = """\
async def hours(number):
    return int(await read(request=f"For how many hours did the pump run? Document {number}"))

found = await asyncio.gather(*[hours(number) for number in await list_documents()])
await publish("The pump", sum(found))"""


def script() -> ScriptedModel:
    """Return the model."""
    return ScriptedModel(_answer)


def _answer(request: Request) -> Step:
    last = request.messages[-1]
    if "run_code" in request.tool_names:
        return ScriptedAnswer(last["content"]) if last["role"] == "tool" else call("run_code", code=CODE)
    if last["role"] == "user":
        return call("open_document", number=int(re.findall(r"\d+", last["content"])[-1]))
    (hours,) = re.findall(r"(\d+) hours", last["content"])
    return str(hours)
