"""What the demo must have shown: the protocol, the arguments, the refund. Never the prose, which is a small model's."""

from __future__ import annotations

import json
import re
from typing import Any

from agents import Shop
from narrator import Narrator

from aswarm import Response
from aswarm.testing import check_history


class Checks:
    """Conditions that must hold; prints each, and remembers what failed."""

    def __init__(self) -> None:
        """Nothing has failed yet."""
        self.failures: list[str] = []

    def check(self, condition: bool, message: str) -> None:
        """Print whether `message` holds."""
        print(f"  {'ok    ' if condition else 'FAILED'} {message}", flush=True)
        if not condition:
            self.failures.append(message)
