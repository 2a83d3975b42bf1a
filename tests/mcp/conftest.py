"""These tests need the SDK of MCP, which does not run on the oldest versions that aswarm promises."""

from __future__ import annotations

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("mcp") else ["test_*.py"]
