"""The scripted model: it loads a skill, reads the two files that the skill names, and runs its code."""

from __future__ import annotations

from aswarm.testing import Request, ScriptedCall, ScriptedModel, call


def script() -> ScriptedModel:
    """Return the model."""
    return ScriptedModel(_answer)


def _answer(request: Request) -> str | list[ScriptedCall]:
    results = [message["content"] for message in request.messages if message["role"] == "tool"]
    match results:
        case []:
            return [call("load_skill", name="quote")]
        case [_]:
            paths = ("references/discounts.md", "snippets/total.txt")
            return [call("read_skill_file", name="quote", path=path) for path in paths]
        case [_, discounts, code]:
            percent = discounts.partition("From 3 items: ")[2].partition(" %")[0]
            filled = code.replace("[], 0", f"['desk lamp', 'floor lamp', 'bulb'], {percent}")
            return [call("run_code", code=filled)]
        case _:
            return f"Together they cost {int(results[-1]) / 100:.2f} euros. This includes a discount of 10 % from three items."
