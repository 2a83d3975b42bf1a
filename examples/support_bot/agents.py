"""The support of Fernsprout, a maker of self-watering planters: a first agent, and an agent with the help articles.

The functions get their tools from the program, in the context variables:

- `help_centre`: a `HelpCentre`, which finds articles;
- `outbox`: an `Outbox` for tickets and emails;
- `email`: the address of the customer who is logged in. A customer can trick a model into any address, so the model never gets
  this address.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from aswarm import Agent

Context = Mapping[str, Any]


async def query_docs(question: Annotated[str, "One question, in whole words"], context_variables: Context) -> str:
    """Search the help articles. For two different matters, call this twice."""
    # It waits and only reads its context variables (a Mapping), so several calls of one turn run at the same time.
    articles = await context_variables["help_centre"].search(question)
    return "\n\n---\n\n".join(article.text.strip() for article in articles)


def submit_ticket(summary: str, details: str, context_variables: Context) -> str:
    """Hand the matter to a colleague, who answers within one working day."""
    # A plain function may block, here on the disk: it runs in a worker thread, and the event loop continues.
    return "Filed as " + context_variables["outbox"].put_ticket(context_variables["email"], summary, details)


def send_email(subject: str, text: str, context_variables: Context) -> str:
    """Send the customer an email."""
    address = context_variables["email"]
    return f"Queued for {address} as " + context_variables["outbox"].put_email(address, subject, text)


help_centre = Agent(
    name="Help Centre",
    instructions="You answer questions about Fernsprout's self-watering planters.\n"
    "Look into the help articles before you answer, and say only what they say. Search again in other words when the "
    "articles that came back do not fit.\n"
    "When the articles do not answer the question, say so and offer a ticket. File a ticket only when the customer "
    "agrees, or asks for a human. Send an email only when the customer asks for one.\n"
    "Answer in two or three sentences.",
    functions=[query_docs, submit_ticket, send_email],
)

user_interface = Agent(
    name="User Interface",
    instructions="You are the first to speak to Fernsprout's customers. Greet them, find out what they need, and pass "
    "every question about planters, orders, accounts or money on to the help centre. Do not answer those yourself.",
    functions=[help_centre],
)
