"""These tests need the SDK of MCP, which does not run on the oldest versions that aswarm promises."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

collect_ignore_glob = [] if importlib.util.find_spec("mcp") else ["test_*.py"]


@pytest.fixture(autouse=True)
def _no_server_is_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    # The streams of the SDK treat the end of any uvicorn in the process as their own end, also in later servers.
    from sse_starlette.sse import AppStatus

    monkeypatch.setattr(AppStatus, "should_exit", False)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """A file in which the server of another process writes its calls."""
    path = tmp_path / "calls.txt"
    path.touch()
    return path
