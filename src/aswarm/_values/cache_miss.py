"""`CacheMiss`: a prompt cache of the provider that an answer has missed."""

from dataclasses import dataclass
from typing import Literal

MissKind = Literal["changed", "expired", "compacted", "unreported", "unknown"]


@dataclass(frozen=True, slots=True)
class CacheMiss:
    """Tokens of a prompt that the provider has evaluated again, although the last answer of the conversation had used them.

    It has names, indexes, positions and counts, and never a text of the request. A miss of less than 2,000 tokens, or of less
    than 5 % of the tokens of the last request, is not reported.

    Args:
        kind: "changed": the request does not extend the last request. "expired": it does, but the provider no longer had the
            tokens. "compacted": the provider has replaced earlier messages by a shorter item. "unreported": the request
            does not extend the last request, and the provider does not report cached tokens. "unknown": the first request of
            a run that continues a conversation, so the last request is not known.
        where: The first difference, such as "tool 3 'track' has another description"; None if there is none.
        kept_tokens: The tokens from the cache. For "unreported", an estimate.
        lost_tokens: The tokens that were evaluated again. For "unreported" and "unknown", an estimate.
    """

    kind: MissKind
    where: str | None
    kept_tokens: int
    lost_tokens: int

    def __str__(self) -> str:
        """Return the miss as a text, such as "cache miss (changed): 2,093 tokens again, the instructions changed at character 4"."""
        text = f"cache miss ({self.kind}): {self.lost_tokens:,} tokens again"
        return text if self.where is None else f"{text}, {self.where}"
