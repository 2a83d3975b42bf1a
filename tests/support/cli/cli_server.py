"""A process of `aswarm serve` or `aswarm demo --serve`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager

URL = re.compile(r"http://\S+/")


@contextmanager
def running(*command: str) -> Generator[tuple[subprocess.Popen[str], str]]:
    """A command that serves, and its address."""
    environment = {**os.environ, "OPENAI_API_KEY": "none"}
    with subprocess.Popen(
        [sys.executable, "-m", "aswarm", *command, "--port", "0"], stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stderr is not None
            found = URL.search(process.stderr.readline())
            assert found is not None
            yield process, found.group()
        finally:
            process.kill()
