"""Fixtures for the tests that each implementation of `Runs` must pass. `kept_runs.KINDS` has the implementations."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from aswarm.testing import ScriptedAnswer, ScriptedModel, call
from tests.support.runs.kept_runs import Open, Place, Workshop, kinds, opened

LONG = [call("look", number=1), call("transfer_to_clerk"), ScriptedAnswer("All is well.")]


@pytest.fixture(params=kinds())
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name.startswith("durable"):
        pytest.importorskip("dbos", reason="durable runs need dbos")
    return name


@pytest.fixture
def anyio_backend(kind: str) -> str:
    return kind.partition("-")[2]


@pytest.fixture
def place(kind: str, request: pytest.FixtureRequest, tmp_path: Path, workshop: Workshop) -> Open:
    """Opens an implementation with a scripted model: `async with place([...]) as it: ...`."""

    def open_kind(script: Any = LONG, **settings: Any) -> AbstractAsyncContextManager[Place]:
        model = ScriptedModel(script, cut=4)
        return opened(kind, tmp_path, lambda: request.getfixturevalue("postgres"), model, workshop, **settings)

    return open_kind
