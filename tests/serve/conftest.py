"""The agents of most tests of services."""

from __future__ import annotations

import pytest

from tests.support.runs.kept_runs import Workshop


@pytest.fixture
def workshop() -> Workshop:
    """Agents with functions that wait, need an approval, or ask."""
    return Workshop()
