"""The scripted model of the support bot. It answers any text, so that `--chat` works offline too.

Only the model is a script. The search is real, and the answers come from the articles that the search finds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from aswarm.testing import Request, ScriptedCall, ScriptedModel, call


def script() -> ScriptedModel:
    """Return the model."""
    return ScriptedModel(_answer, cut=9)


def _answer(request: Request) -> str | Sequence[ScriptedCall]:
    if request.tool_names == ["transfer_to_help_centre"]:
        return [call("transfer_to_help_centre")]
    results = _results(request)
    said = next(message["content"] for message in reversed(request.messages) if message["role"] == "user")
    return _conclude(results) if results else _act(said, request)


def _results(request: Request) -> list[str]:
    """Return the results of the calls since the customer's message, without handoffs."""
    results: list[str] = []
    for message in reversed(request.messages):
        if message["role"] == "user":
            break
        if message["role"] == "tool" and not message["content"].startswith('{"assistant"'):
            results.insert(0, message["content"])
    return results


def _act(said: str, request: Request) -> list[ScriptedCall]:
    if "human" in said:
        return [call("submit_ticket", summary="The light blinks red", details=said)]
    if "mail" in said and (articles := _articles(request)):
        best = max(articles, key=lambda article: len(_words(said) & _words(article)))
        return [call("send_email", subject=best.splitlines()[0].removeprefix("# "), text=best)]
    questions = re.findall(r"[^.!?]+[.?]", said) or [said]
    return [call("query_docs", question=question.strip()) for question in questions]


def _articles(request: Request) -> list[str]:
    """Return all articles that were found in this conversation."""
    results = [message["content"] for message in request.messages if message["role"] == "tool"]
    return [article for text in results if text.startswith("# ") for article in text.split("\n\n---\n\n")]


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]{4,}", text.lower()))


def _conclude(results: list[str]) -> str:
    return " ".join(map(_in_short, results))


def _in_short(result: str) -> str:
    """Return the first sentence of the first article that was found. Return any other result unchanged."""
    if not result.startswith("# "):
        return f"Done. {result}."
    paragraph = result.split("\n\n")[1].replace("\n", " ")
    return re.split(r"(?<=[.!?]) ", paragraph)[0]
