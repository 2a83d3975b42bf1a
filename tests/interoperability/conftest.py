"""Servers and clients that others made. `nox -s tests` leaves them out (norecursedirs in pyproject.toml)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.interoperability import aimock


@pytest.fixture(scope="session")
def running() -> Iterator[aimock.Relay]:
    """aimock, behind a relay."""
    if aimock.PROGRAM is None:
        pytest.skip("aimock is not installed here; `nox -s deep -- providers` installs it, with npm")
    with aimock.aimock(Path(__file__).with_name("aimock.json")) as relay:
        yield relay


@pytest.fixture
def server(running: aimock.Relay) -> aimock.Relay:
    """The same, which has seen nothing yet."""
    running.seen.clear()
    return running


@pytest.fixture
def anyio_backend() -> str:
    """Most clients of others know asyncio only."""
    return "asyncio"
