"""`CodeLimits`: the limits of one snippet."""

from __future__ import annotations

from dataclasses import dataclass, fields

from aswarm._values.errors import ConfigurationError
from aswarm._values.json import shown

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeLimits:
    """The limits of one snippet. Code that reaches a limit stops, and the model reads the reason.

    Args:
        seconds: Seconds of execution, without the time of its calls.
        memory_bytes: Memory for the values of the code.
        calls: The number of tool calls.
        output_characters: The length of the result; more characters are cut off.
        recursion: The depth of nested function calls.

    Raises:
        ConfigurationError: For a limit that is not a positive number.
    """

    seconds: float = 5.0
    memory_bytes: int = 64 * _MIB
    calls: int = 500
    output_characters: int = 20_000
    recursion: int = 200

    def __post_init__(self) -> None:
        for field in fields(self):
            value: object = getattr(self, field.name)
            kinds = (int, float) if field.name == "seconds" else (int,)
            if type(value) not in kinds or not 0 < value < float("inf"):  # type: ignore[operator]
                raise ConfigurationError(
                    f"CodeLimits({field.name}=...) must be a positive number, not {shown(value, 80)}"
                )
