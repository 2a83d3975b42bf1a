"""Prompts of a server, which a person chooses and sees before they are sent.

Security: A prompt becomes one message of the user: its messages of the assistant are quoted, it has no calls, and a mark stands
for characters that a person would not see. Only joiners and variation selectors of emoji and scripts stay, at most two together.
"""

from __future__ import annotations

import re
from typing import Any

from mcp.types import GetPromptResult

from aswarm._values.content import text_part

from ._functions import shown_block

# Characters that a person does not see, or that change the order of the others: controls, and what Unicode calls
# Default_Ignorable_Code_Point. An emoji has at most two joiners and variation selectors together; a longer run is a hidden text.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\u3164\ufeff"
    "\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]|[\u034f\u200c\u200d\ufe00-\ufe0f]{3,}"
)


def content_of(prompt: GetPromptResult) -> str | list[dict[str, Any]]:
    """Return the content of a message of the user: a text, or content parts if the prompt has images or files."""
    parts: list[Any] = []
    for message in prompt.messages:
        block = shown_block(message.content)
        if isinstance(block, str):
            block = _UNSEEN.sub("\ufffd", block.replace("\r\n", "\n"))
        if isinstance(block, str) and message.role != "user":
            # `splitlines` knows all line breaks, so no line of a server stands outside of the quotation.
            block = "\n".join([f"({message.role}:)", *(f"> {line}" for line in block.splitlines())])
        parts.append(block)
    if all(isinstance(part, str) for part in parts):
        return "\n\n".join(parts)
    return [text_part(part) if isinstance(part, str) else part.part for part in parts]
