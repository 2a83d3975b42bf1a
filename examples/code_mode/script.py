"""The scripted model. With plain tools it calls ten functions in a message, as models do; with code it writes one snippet.

It reports a token for every four characters, and takes the time of a fast model: 0.4 s, and 0.01 s for each token.
"""

from __future__ import annotations

import json
import re
from typing import Any

from aswarm.testing import Request, ScriptedAnswer, ScriptedCall, ScriptedModel, call

TOGETHER = 10
CODE = """\
async def compare(number):
    order, delivery = await asyncio.gather(get_order(number), get_delivery(number))
    missing = order["items"] - delivery["items"]
    return {"order": number, "owed": missing * order["price"]} if missing else None

found = await asyncio.gather(*[compare(number) for number in await list_orders()])
[each for each in found if each]"""


def script() -> ScriptedModel:
    """Return the model."""
    return ScriptedModel(_answer)


def _answer(request: Request) -> ScriptedAnswer:
    names = {tool["function"]["name"] for tool in request.body["tools"]}
    made = _code(request) if "list_orders" not in names else _tools(request)
    text = made if isinstance(made, str) else json.dumps([each.arguments for each in made])
    prompt, completion = len(json.dumps(request.body)) // 4, len(text) // 4
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    delay = 0.4 + 0.01 * completion
    if isinstance(made, str):
        return ScriptedAnswer(made, usage=usage, delay=delay)
    return ScriptedAnswer(calls=made, usage=usage, delay=delay)


def _code(request: Request) -> str | list[ScriptedCall]:
    last = request.messages[-1]
    if last["role"] != "tool":
        name = request.body["tools"][0]["function"]["name"]
        return [call(name, code=CODE)]
    return _report(json.loads(last["content"]))


def _tools(request: Request) -> str | list[ScriptedCall]:
    results = [json.loads(each["content"]) for each in request.messages if each["role"] == "tool"]
    if not results:
        return [call("list_orders")]
    numbers: list[int] = results[0] if isinstance(results[0], list) else results[0]["orders"]
    done = len(results) - 1
    if done < 2 * len(numbers):
        name = "get_order" if done < len(numbers) else "get_delivery"
        start = done % len(numbers)
        return [call(name, order=number) for number in numbers[start : start + TOGETHER]]
    orders, deliveries = results[1 : len(numbers) + 1], results[len(numbers) + 1 :]
    owed = [
        {"order": order["id"], "owed": (order["items"] - delivery["items"]) * order["price"]}
        for order, delivery in zip(orders, deliveries, strict=True)
    ]
    return _report([each for each in owed if each["owed"]])


def _report(found: list[dict[str, Any]]) -> str:
    owed = ", ".join(f"{each['owed']} for order {each['order']}" for each in found)
    return re.sub(r", (?=[^,]*$)", " and ", f"Items are missing in {len(found)} orders. We owe {owed}.")
