"""A lamp shop behind the page: three agents and a scripted model that follows the words of the user.

`python -m tests.support.serve.playground PORT` serves it on loopback, `... PORT mounted` below /agents, with a token. The first known word of a message decides on the
answer: orders, refund, account, label, slow, stuck, broken, error, context, picture.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

import anyio
import uvicorn
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.routing import Mount

from aswarm import Agent, AsyncSwarm, Hold, Image, Result, ToolError, current_call, external_tool, tool
from aswarm.guards import CheckedInput, guard_input
from aswarm.runs import show_everything
from aswarm.serve import Playground, Service, bearer, create_app, local_only
from aswarm.testing import Failure, Request, ScriptedAnswer, ScriptedModel, call

ran: list[str] = []  # the functions that have run, in order


async def look_up_order(order_id: int) -> str:
    """Look up an order by its number."""
    ran.append("look_up_order")
    await anyio.sleep(0.5)
    return f'{{"order": {order_id}, "item": "Brass desk lamp", "price": 39.9, "status": "delivered"}}'


async def check_stock(item: str) -> str:
    """Return the number of an item in stock."""
    ran.append("check_stock")
    await anyio.sleep(0.8)
    return f"12 of {item} are in stock."


async def estimate_delivery(city: str) -> str:
    """Estimate when a parcel arrives in a city."""
    ran.append("estimate_delivery")
    await anyio.sleep(0.3)
    raise ValueError(f"no carrier delivers to {city}")


async def remember(customer: str, context_variables: Mapping[str, Any]) -> Result:
    """Remember what is known of the customer."""
    seen = [*context_variables.get("customers", []), customer]
    return Result(
        value=f"Remembered {customer}.", context_variables={"customer": customer, "customers": seen, "tier": "gold"}
    )


@tool(
    approve=lambda arguments, context: (
        f"{arguments['amount']} EUR is more than an agent may refund" if arguments["amount"] > 50 else False
    )
)
async def refund_order(order_id: int, amount: float, reason: str) -> str:
    """Give the customer the money for an order back."""
    ran.append("refund_order")
    await anyio.sleep(0.2)
    return f"Refunded {amount:.2f} EUR for order {order_id}."


@tool(may_wait=True)
async def pay_out(amount: float) -> str:
    """Pay money out to an account of the customer."""
    account = current_call().answer
    if account is None:
        raise Hold("To which account should the money go?", data={"accounts": ["giro", "savings"]})
    return f"Paid {amount:.2f} EUR to {account}."


@tool(abandon_on_cancel=True)
def print_invoice(order_id: int) -> str:
    """Print an invoice. The printer is slow, and cannot be stopped."""
    time.sleep(4)
    return f"Printed the invoice of order {order_id}."


DRAWING = (
    b'<svg xmlns="http://www.w3.org/2000/svg" width="60" height="40"><rect width="60" height="40" fill="teal"/></svg>'
)


async def draw_lamp() -> list[str | Image]:
    """Draw a lamp."""
    return ["A lamp.", Image(DRAWING, media_type="image/svg+xml")]


open_camera = external_tool(
    name="open_camera",
    description="Opens the camera of the customer, who shows the damage.",
    parameters={"type": "object", "properties": {"angle": {"type": "string"}}, "required": ["angle"]},
)


def back_to_triage() -> Agent:
    """Hand the customer back."""
    return triage


refunds = Agent(
    name="Refunds",
    model="gpt-4o-mini",
    instructions="You refund orders.\n\nAsk for the order number and the reason. Look the order up **first**, then refund it.",
    functions=[look_up_order, refund_order, pay_out, open_camera, back_to_triage],
)
orders = Agent(
    name="Orders",
    model="gpt-4o-mini",
    instructions=lambda context_variables: (
        f"You know everything about orders. The customer is {context_variables.get('customer', 'unknown')}."
    ),
    functions=[look_up_order, check_stock, estimate_delivery, print_invoice, refunds, back_to_triage],
)
triage = Agent(
    name="Triage",
    model="gpt-4o",
    instructions="You welcome the customers of a lamp shop, and hand them to the agent that can help.",
    functions=[remember, draw_lamp, orders, refunds],
)

ANSWER = """Here is what I found:

| Part | State |
| --- | --- |
| Lamp | **delivered** |
| Shade | 12 in stock |

1. The brass lamp costs `39.90 EUR`.
2. No carrier delivers to *Atlantis*, sorry.

```json
{"order": 4711}
```
Is there [anything else](https://example.invalid/help)?"""
PICTURES = f"""![A drawing]({Image(DRAWING, media_type="image/svg+xml").part["image_url"]["url"]})

![A photo](https://example.invalid/photo.png)

```
code
```
> a quote"""
USAGE = {
    "prompt_tokens": 412,
    "completion_tokens": 58,
    "total_tokens": 470,
    "prompt_tokens_details": {"cached_tokens": 128},
}


def say(text: str | None = None, *calls: Any, pause: float = 0.0, **more: Any) -> ScriptedAnswer:
    return ScriptedAnswer(text, list(calls), usage=USAGE, pause=pause, **more)


def steps(word: str) -> list[Any]:
    """Return the steps of the model after a message with this word, one for each turn."""
    transfer = say("Let me pass you on to our order desk.", call("transfer_to_orders"))
    to_refunds = say(None, call("transfer_to_refunds"))
    match word:
        case "orders":
            together = [
                call("look_up_order", order_id=4711),
                call("check_stock", item="lamp shades"),
                call("estimate_delivery", city="Atlantis"),
            ]
            thinking = {"reasoning_content": "The customer wants three things. I can ask for all of them at once."}
            return [
                transfer,
                say("I will look at three things at once.", *together, extra=thinking, pause=0.01),
                say(ANSWER, pause=0.005),
            ]
        case "refund":
            asked = call("refund_order", order_id=4711, amount=80, reason="arrived broken")
            return [
                to_refunds,
                say("I look the order up.", call("look_up_order", order_id=4711)),
                say(None, asked),
                say("Your refund is settled."),
            ]
        case "account":
            return [to_refunds, say(None, call("pay_out", amount=12.5)), say("The money is on its way.")]
        case "label":
            return [to_refunds, say(None, call("open_camera", angle="top")), say("Thank you, I see the damage.")]
        case "slow":
            return [say(" ".join(f"word{number}" for number in range(120)), pause=0.03)]
        case "stuck":
            return [transfer, say("I print the invoice.", call("print_invoice", order_id=4711)), say("Done.")]
        case "broken":
            return [transfer, say(None, call("look_up_order", '{"order_id": "47')), say("I could not do that.")]
        case "error":
            return [Failure(400, "the prompt has too many tokens for this model")]
        case "context":
            return [
                say(None, call("remember", customer="Ada Lovelace")),
                say(None, call("remember", customer="Grace Hopper")),
                say("Noted."),
            ]
        case "picture":
            return [say(None, call("draw_lamp")), say(PICTURES)]
        case _:
            return [say("Hello! I can look up **orders**, and refund them.")]


WORDS = ("orders", "refund", "account", "label", "slow", "stuck", "broken", "error", "context", "picture")


def script(request: Request) -> Any:
    """Return the step for a request."""
    messages = [message for message in request.messages if message["role"] != "system"]
    # A request has the images of tools in messages of the user.
    users = [at for at, message in enumerate(messages) if message["role"] == "user"]
    last = max(at for at in users if "From the result of the tool call" not in str(messages[at]["content"]))
    text = str(messages[last]["content"]).lower()
    word = min((each for each in WORDS if each in text), key=text.index, default="")
    turn = sum(message["role"] == "assistant" for message in messages[last:])
    found = steps(word)
    made = [each["function"]["name"] for message in messages[last:] for each in message.get("tool_calls") or ()]
    handoffs = [each.name for each in getattr(found[0], "calls", ()) if each.name.startswith("transfer_to_")]
    # The agent that the first step hands off to may be the active one already.
    skipped = int(bool(handoffs) and not set(handoffs) & {*made, *request.tool_names})
    return found[min(turn + skipped, len(found) - 1)]


def no_homework(checked: CheckedInput) -> None:
    """Let each message pass."""


class Argument(BaseModel):
    """An argument of a prompt."""

    name: str
    description: str = ""
    required: bool = False


class Prompt(BaseModel):
    """A prompt of a server, in the form of the SDK of MCP, which these tests do not need."""

    name: str
    title: str | None = None
    description: str | None = None
    arguments: list[Argument] | None = None


class Desk:
    """A server with prompts."""

    async def prompts(self) -> list[Prompt]:
        """Return two prompts."""
        city = Argument(name="city", description="Where?", required=True)
        return [
            Prompt(name="hello"),
            Prompt(name="weather", title="The weather", description="Ask.", arguments=[city, Argument(name="day")]),
        ]

    async def prompt(self, name: str, arguments: Mapping[str, str]) -> Any:
        """Return the content; "nowhere" is an error."""
        if name == "hello":
            return [{"type": "text", "text": "hello, a picture"}, Image(b"<svg/>", media_type="image/svg+xml").part]
        if arguments["city"] == "nowhere":
            raise ToolError("there is no such city")
        return f"hello, {arguments}"


PAGE = Playground(
    prompts=[Desk()],
    models=["gpt-4o", "gpt-4o-mini", "gpt-5"],
    context_edits=True,
    questions=["Where are my orders?", "I want a refund for a lamp that arrived broken", "Remember the context"],
)


def make_service(**settings: Any) -> Service:
    """Return the service with the page."""
    swarm = AsyncSwarm(ScriptedModel(script, cut=5).client(), middleware=[guard_input(no_homework)])
    return create_app(
        swarm,
        **{"agents": [triage, orders, refunds], "auth": local_only, "page": PAGE, "show": show_everything, **settings},
    )


def make_mounted() -> Starlette:
    """Return the same below a path of another app, for users with the token "secret"."""
    service = make_service(auth=bearer("secret"), page=Playground(models="any"))
    return Starlette(routes=[Mount("/agents", service)], lifespan=service.lifespan)


if __name__ == "__main__":
    app = make_mounted() if "mounted" in sys.argv else make_service()
    uvicorn.run(app, port=int(sys.argv[1]), log_level="warning")
