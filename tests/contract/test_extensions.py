"""The extensions are written as a user would write them: what they take from private rooms is listed here.

`aswarm.extensions` has the parts of a run, of the rate limits and of the providers; import-linter holds that (see pyproject.toml).
From the rooms below, an extension takes only these helpers. A new name here is a gap in the public face: look there first.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import aswarm

SOURCE = Path(aswarm.__file__).parent
EXTENSIONS = [
    "_agent_tool",
    "batch",
    "cli",
    "code",
    "evals",
    "graph",
    "guards",
    "mcp",
    "middleware",
    "otel",
    "repl",
    "skills",
    "testing",
]
HELPERS = {
    # time, threads and files, which the simulation replaces
    "_runtime.clocks",
    "_runtime.seams",
    "_runtime.files.create_for_owner",
    "_runtime.files.lock",
    "_runtime.files.replacing",
    # tasks and event loops
    "_runtime.backend.HiddenGenerators",
    "_runtime.backend.PerLoop",
    "_runtime.backend.PerProcess",
    "_runtime.backend.TaskResult",
    "_runtime.backend.current_loop",
    "_runtime.backend.raise_if_own",
    "_runtime.backend.scheduler",
    # hints and schemas
    "_tools.answer_tool.response_format",
    "_tools.hints.resolve_hints",
    "_tools.hints.signature_of",
    "_tools.strict_schema.without_optional_nulls",
}
RECORDS = {  # the simulation and the page of recorded runs read records
    "_record.entries.Entry",
    "_record.entries.JOINED",
    "_record.entries.as_json",
    "_record.entries.now",
    "_record.entry_maker.EntryMaker",
    "_record.entry_maker.LiveState",
    "_record.fold.fold",
}
JOURNAL = {  # the journal of a batch keeps runs, as aswarm.runs does: on the log, with the recorder
    "_log.items.ItemFile",
    "_record.entry_recorder.EntryRecorder",
    "_record.facts.item_fingerprint",
    "_record.entry_maker.ItemMaker",
    "_run.options.RunOptions",
}
EVENT_LOOP_OF_SWARM = {  # each import of these has its reason in the contract of import-linter
    "_blocking.caller.in_callers_thread",
    "_blocking.sync_swarm.engine_of",
    "_blocking.sync_swarm.wait_on_event_loop",
}


def modules() -> Iterator[Path]:
    for room in EXTENSIONS:
        yield from (SOURCE / room).rglob("*.py") if (SOURCE / room).is_dir() else [SOURCE / f"{room}.py"]


def imports(path: Path) -> Iterator[str]:
    """The names that a module imports from aswarm, as `room.module.name`."""
    package = ["aswarm", *path.relative_to(SOURCE).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            room, *names = [*base, *(node.module or "").split(".")][: None if node.module else -1]
            if room == "aswarm":
                yield from (".".join([*names, alias.name]) for alias in node.names)
        elif isinstance(node, ast.Import):
            assert not any(alias.name.startswith("aswarm.") for alias in node.names), path


def taken() -> set[str]:
    """The names that the extensions import from private rooms, without values."""
    names = {name for path in modules() for name in imports(path)}
    own = ("__version__", "_values.", "_swarm.", "_agent_tool.")
    return {name for name in names if name[:1] == "_" and not name.startswith(own)}


def test_an_extension_takes_only_listed_names_from_private_rooms() -> None:
    assert taken() == HELPERS | RECORDS | JOURNAL | EVENT_LOOP_OF_SWARM


def test_the_list_of_helpers_is_short() -> None:
    assert len(HELPERS) <= 30
