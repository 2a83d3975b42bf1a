"""The same with the command: `aswarm batch agents.py:router tickets.jsonl`, and what stands behind `command.py`."""

from __future__ import annotations

import sys
from pathlib import Path

from aswarm.cli import main

HERE = Path(__file__).parent

if __name__ == "__main__":
    sys.argv[1:1] = ["batch", f"{HERE / 'agents.py'}:router", str(HERE / "tickets.jsonl")]
    main()
