"""What importing the package costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes


def test_importing_conversations_imports_no_database() -> None:
    """A database is imported once a store is opened."""
    heavy = ("sqlite3", "psycopg", "openai", "httpx")
    code = f"import aswarm.conversations, sys; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_run_without_a_history_function_does_not_need_it() -> None:
    """`import aswarm` leaves the package out."""
    code = "import aswarm, sys; print('aswarm.conversations' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
