"""Real processes: killed at random moments, and two that work on one conversation."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes


@pytest.mark.heavy
@pytest.mark.slow
def test_a_process_that_is_killed_leaves_valid_conversations() -> None:
    """A process may be killed at any moment; `conversation_kills 500 1` does it more often."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.conversations.conversation_kills", "12", "3"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith("12 kills")
