"""The same batch as a command: `aswarm batch agents.py:router tickets.jsonl`, with the arguments of this script."""

from __future__ import annotations

import sys
from pathlib import Path

from aswarm.cli import main

HERE = Path(__file__).parent

if __name__ == "__main__":
    sys.argv[1:1] = ["batch", f"{HERE / 'agents.py'}:router", str(HERE / "tickets.jsonl")]
    main()
