"""The scripted model: its answers in the order of the conversation in `run.py`.

Only the model is replaced: the library makes the handoffs, and each agent answers in its own language.
"""

# ruff: noqa: RUF001 - Chinese has its own punctuation

from __future__ import annotations

from aswarm.testing import ScriptedModel, call


def script() -> ScriptedModel:
    """Return a model that recognises the language of a message. If the agent has another language, it hands off."""
    return ScriptedModel(
        [
            "Good morning! Every day but Monday, from 10 to 18.",
            call("transfer_to_spanish_agent"),
            "Son 16 euros: los adultos pagan 8 cada uno y los niños entran gratis.",
            call("transfer_to_chinese_agent"),
            "不好意思，狗不能进馆，只能在外面等。",
            call("transfer_to_english_agent"),
            "On Mondays the museum is closed.",
        ],
        cut=4,
    )
