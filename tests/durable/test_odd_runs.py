"""Missing packages of the extra."""

from __future__ import annotations

import subprocess
import sys

import pytest

from aswarm import Agent, AsyncSwarm, ConfigurationError
from aswarm.durable import DurableRuns

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize(
    ("package", "url"), [("psycopg", "postgresql://x"), ("dbos", "postgresql://x"), ("dbos", "sqlite:///runs.db")]
)
async def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, package: str, url: str) -> None:
    """When the object is made, without a package of the extra; the import needs none."""
    find = __import__("importlib.util").util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == package else find(name))
    with pytest.raises(ConfigurationError, match=f'need the package {package}: install the extra "durable"'):
        DurableRuns(AsyncSwarm(), agents=Agent(), store=url, version="1")


@pytest.mark.heavy
@pytest.mark.processes
async def test_the_import_needs_no_package_of_the_extra() -> None:
    """In a process of its own, without dbos, SQLAlchemy and psycopg."""
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['dbos', 'sqlalchemy', 'psycopg', 'starlette']))\n"
        "import aswarm.durable; print(aswarm.durable.DurableRuns.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("DurableRuns\n", "")
