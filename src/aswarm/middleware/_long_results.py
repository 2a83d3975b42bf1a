"""Long results of tools, as middleware: they are shortened, or kept outside of the history, where two functions read them."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import anyio.lowlevel

from aswarm._values.content import text_part
from aswarm._values.errors import ConfigurationError, ToolError, check_count
from aswarm.extensions import (
    Handlers,
    Middleware,
    MiddlewareWithTools,
    ResultStore,
    RunInfo,
    Started,
    ToolCall,
    ToolOutcome,
    current_call,
    tool,
)

_LEAST_CLIPPED = 100  # a shorter text has no space for the note
_LEAST = 500  # a shorter text has no space for the note and the texts around it
_PART = 65_536  # characters
_MOST_IN_MEMORY = 50_000_000  # characters
_MOST_SEARCHED = 100_000_000  # characters of one search, which takes about a second
_MOST_SOUGHT = 200  # characters
_MOST_HITS = 20
_AROUND = 100  # characters before and after a hit
_FURTHEST = 2**40  # a later position is behind the end of each text
_HANDLE = re.compile("r[0-9a-f]{16}")


def clip_results(characters: int) -> Middleware:
    """Return middleware that shortens the results of tools to this number of characters, at least 100.

    The model and the history get the start and the end of a longer text, with a note between them. In a result with images
    or files, each text is shortened separately. A call inside code (`call.parent`) keeps its result, because the code reads it and
    not the model; the result of the code is shortened. The definitions of found tools are not shortened. Raises ConfigurationError for a smaller number.
    """
    check_count("characters", characters, _LEAST_CLIPPED)

    def wrap(handlers: Handlers) -> Handlers:
        async def call_tool(call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
            outcome = await handlers.call_tool(call, context, started)
            if _is_for_code_or_search(call):
                return outcome
            if isinstance(outcome.content, str):
                return replace(outcome, content=_clipped(outcome.content, characters))
            parts = [
                {**part, "text": _clipped(part["text"], characters)} if isinstance(part.get("text"), str) else part
                for part in outcome.content
            ]
            return replace(outcome, content=parts)

        return replace(handlers, call_tool=call_tool)

    return wrap


def _is_for_code_or_search(call: ToolCall) -> bool:
    return call.parent is not None or (call.tool is not None and call.tool.is_search)


def _clipped(text: str, characters: int) -> str:
    if len(text) <= characters:
        return text
    return _without_middle(text, characters, f"{{:,}} of {len(text):,} characters left out")


def _without_middle(text: str, characters: int, note: str) -> str:
    """Return the start and the end of a longer text, with a note between them. `note`: has a place for the number left out."""
    note = f"\n[... {note} ...]\n"
    room = characters - len(note.format(len(text)))  # the number left out never has more digits than this number
    tail = room // 3  # most of the space is for the start of the text; but errors and totals are often at the end
    return text[: room - tail] + note.format(len(text) - room) + text[len(text) - tail :]


def spill_results(
    characters: int = 8_000, *, store: ResultStore | None = None, max_characters: int = 20_000_000
) -> MiddlewareWithTools:
    """Return middleware that keeps long results of tools outside of the history. The model reads more of them if it needs to.

        AsyncSwarm(middleware=[spill_results()])

    A result with more than `characters` is stored whole. The model and the history get a handle and the size in the first line,
    the start and the end. The functions `read_result` and `search_result` are always in the requests of agents with functions;
    they return at most `characters` at once. `search_result` also searches all results of the conversation, for a model that no
    longer sees their handles. Texts beside images and files are one text; the images and files stay.

    A conversation in a store keeps its results there, as long as the conversation exists: a fork copies the results that it shows,
    and deleting the conversation deletes them. A run of `aswarm.runs` without a conversation keeps them with its log, and an item of
    a batch in the journal. Any other run has them in the memory of this process, until it ends, for the last 50 million characters
    of all runs; resume a run that waits with the same `run_id`. A run inside a run uses the results of the outer run. Results that
    a client sends are not shortened, and neither are results of calls inside code: the code gets all data, and only what the code
    prints is shortened.

    Security: The functions read only the results of their own conversation, or of their own run if it has none.

    Args:
        characters: The length from which a result is stored, at least 500.
        store: A place for all results. By default, it belongs to the store of the conversation. A store of conversations does not
            know a place that is passed here: your program copies and deletes there, see `ResultStore`.
        max_characters: The length after which a stored text is cut; the model reads that it was.

    Raises:
        ConfigurationError: For a number that is too small. A run raises it if its conversation is in a store of your own that has
            no place for results.
    """
    for name, number, least in (("characters", characters, _LEAST), ("max_characters", max_characters, characters)):
        check_count(name, number, least)
    spill = _Spill(characters, max_characters, store)
    return MiddlewareWithTools(spill.wrap, spill.functions)


class _Spill:
    def __init__(self, characters: int, most: int, store: ResultStore | None) -> None:
        self._characters, self._most, self._store = characters, most, store
        self._memory = _Memory(_MOST_IN_MEMORY)
        self.functions = self._functions()

    def wrap(self, handlers: Handlers) -> Handlers:
        run = handlers.run
        kept, own = self._kept(run), [function.function for function in self.functions]
        if run.owner == f"run:{run.run_id}":  # no run around this one has the same results
            run.on_end(lambda response, _: None if response.stop == "waiting" else self._memory.forget(run.owner))

        async def call_tool(call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
            outcome = await handlers.call_tool(call, context, started)
            if _is_for_code_or_search(call) or (call.tool is not None and call.tool.function in own):
                return outcome
            content = outcome.content
            if isinstance(content, str):
                return replace(outcome, content=await self._short(kept, content)) if self._is_long(content) else outcome
            texts = [part["text"] for part in content if isinstance(part.get("text"), str)]
            if not self._is_long(text := "\n".join(texts)):
                return outcome
            others = [part for part in content if not isinstance(part.get("text"), str)]
            return replace(outcome, content=[text_part(await self._short(kept, text)), *others])

        return replace(handlers, call_tool=call_tool)

    def _is_long(self, text: str) -> bool:
        return len(text) > self._characters

    def _kept(self, run: RunInfo) -> _Kept:
        store = self._store or run.results
        if store is None and run.conversation is not None:
            raise ConfigurationError(
                f"the store of the conversation {run.conversation!r} has no place for long results; pass "
                "spill_results(store=...), or give the store a property `results`"
            )
        return _Kept(self._memory if store is None else store, run.owner)

    async def _short(self, kept: _Kept, text: str) -> str:
        """Store a text, and return its handle, its start and its end."""
        whole, cut = text[: self._most], ""
        if len(text) > self._most:
            cut = f" (only the first of {len(text):,}; the rest is lost)"
        handle = await kept.put(whole)
        first = f"[result {handle}: {len(whole):,} characters]{cut}\n"
        note = "{:,} characters left out; read_result or search_result shows them"
        return first + _without_middle(whole, self._characters - len(first), note)

    def _functions(self) -> tuple[Any, ...]:
        characters = self._characters

        @tool(repeatable=True)
        async def read_result(handle: str, start: int = 0, length: int = characters) -> str:
            """Read a part of a long result whose first line names a handle, such as r0123456789abcdef.

            Args:
                handle: The handle.
                start: The position of the first character.
                length: The number of characters.
            """
            if start < 0 or length < 1:
                raise ToolError("start must be at least 0, and length at least 1")
            kept = self._kept(current_call().run)
            name = _handle(handle)
            text = await kept.text(name, start, min(length, characters))
            end = f"{start + len(text):,}" if text else "its end"
            return f"[result {name} from {start:,} to {end}]\n{text}"

        @tool(repeatable=True)
        async def search_result(text: str, handle: str | None = None) -> str:
            """Search for a text in long results. Upper and lower case are equal; there are no wildcards.

            Args:
                text: The text, at most 200 characters.
                handle: The handle of one result; without it, all long results of this conversation are searched.
            """
            if not 0 < len(text) <= _MOST_SOUGHT:
                raise ToolError(f"text must have 1 to {_MOST_SOUGHT} characters")
            return await _ResultSearch(self._kept(current_call().run), text, characters).run(
                _handle(handle) if handle else None
            )

        return read_result, search_result


class _Kept:
    """The results of one owner."""

    def __init__(self, store: ResultStore, owner: str) -> None:
        self._store, self._owner = store, owner

    async def put(self, text: str) -> str:
        """Store a text, and return its handle. The same text of the same owner has the same handle, so a replay stores nothing."""
        parts = [text[start : start + _PART] for start in range(0, len(text), _PART)]
        digest = blake2b(f"{self._owner}\0".encode(), digest_size=8)
        for part in parts:
            digest.update(part.encode())
            await anyio.lowlevel.checkpoint()  # a long text must not block the event loop
        handle = f"r{digest.hexdigest()}"
        await self._store.put(self._owner, handle, parts)
        return handle

    async def handles(self) -> Sequence[str]:
        """Return the handles of the owner, the newest first."""
        return await self._store.handles(self._owner)

    async def part(self, handle: str, number: int) -> str | None:
        """Return a part of a text, or None behind its end. Raises ToolError if there is no such text."""
        part = await self._store.read(self._owner, handle, number)
        if part is None and (number == 0 or await self._store.read(self._owner, handle, 0) is None):
            raise ToolError(f"there is no result {handle} here, or it is no longer kept")
        return part

    async def text(self, handle: str, start: int, length: int) -> str:
        """Return a part of a text by its position; empty behind the end."""
        number, offset = divmod(min(start, _FURTHEST), _PART)
        text = ""
        while len(text) < offset + length and (part := await self.part(handle, number)) is not None:
            text, number = text + part, number + 1
        return text[offset : offset + length]


class _ResultSearch:
    """One search. Its time is linear in the length of the texts, and a part of a text blocks the event loop for a millisecond."""

    def __init__(self, kept: _Kept, text: str, characters: int) -> None:
        self._kept, self._sought, self._room = kept, _folded(text), characters
        self._searched = 0
        self._hits: list[str] = []

    async def run(self, handle: str | None) -> str:
        """Search in one text, or in all, and return the hits for the model."""
        handles = await self._kept.handles() if handle is None else [handle]
        done = 0
        for each in handles:
            if self._is_full or self._searched > _MOST_SEARCHED:
                break
            try:
                await self._search(each)
            except ToolError:  # without a handle, it was removed meanwhile
                if handle is not None:
                    raise
            done += 1
        if not self._hits:
            self._hits.append(f"The text is not in the {done} results that were searched.")
        if self._is_full:
            self._hits.append("[more hits may follow; search for a longer text]")
        elif done < len(handles):
            self._hits.append(f"[the {len(handles) - done} oldest results were not searched]")
        return "\n".join(self._hits)

    @property
    def _is_full(self) -> bool:
        return len(self._hits) >= _MOST_HITS or self._room <= 0

    async def _search(self, handle: str) -> None:
        text, first, done = "", 0, 0  # the position of the text, and the position up to which it was searched
        number = 0
        while True:
            part = await self._kept.part(handle, number)
            text += part or ""
            self._searched += len(part or "")
            # A hit at the end waits for the next part, which has the text around it.
            end = first + len(text) - (0 if part is None else _AROUND + len(self._sought))
            folded = _folded(text)
            while not self._is_full and done <= (at := first + folded.find(self._sought, done - first)) < end:
                done = at + len(self._sought)
                around = text[max(0, at - first - _AROUND) : done - first + _AROUND]
                self._add(f"{handle} at {at:,}: {' '.join(around.split())}")
            if part is None or self._is_full:
                return
            number, done = number + 1, max(done, end)
            kept = max(0, done - first - _AROUND)
            text, first = text[kept:], first + kept

    def _add(self, hit: str) -> None:
        self._hits.append(hit)
        self._room -= len(hit)


def _folded(text: str) -> str:
    """Return the text for a comparison without upper case, with the same length."""
    # `lower` makes two characters of one letter, and the form of another depends on its neighbours.
    return text.replace("\u0130", "i").lower().replace("\u03c2", "\u03c3")


def _handle(text: str) -> str:
    if (found := _HANDLE.search(text)) is None:
        raise ToolError(
            "a handle is the letter r and 16 digits, such as r0123456789abcdef; it is in the first line of the result"
        )
    return found[0]


class _Memory:
    """The results of runs without a store. If there are too many characters, the oldest texts are removed."""

    def __init__(self, most: int) -> None:
        self._most, self._size = most, 0
        self._texts: dict[tuple[str, str], Sequence[str]] = {}
        self._lock = threading.Lock()  # a swarm may be used by several event loops

    async def put(self, owner: str, handle: str, parts: Sequence[str], /) -> None:
        with self._lock:
            if (owner, handle) not in self._texts:
                self._texts[owner, handle] = parts
                self._size += sum(map(len, parts))
            while self._size > self._most and len(self._texts) > 1:
                self._remove(next(iter(self._texts)))

    async def read(self, owner: str, handle: str, part: int, /) -> str | None:
        await anyio.lowlevel.checkpoint()  # as above, for a search
        parts = self._texts.get((owner, handle), ())
        return parts[part] if part < len(parts) else None

    async def handles(self, owner: str, /) -> list[str]:
        with self._lock:
            return [handle for each, handle in reversed(self._texts) if each == owner]

    def forget(self, owner: str) -> None:
        """Remove the texts of a run that has ended."""
        with self._lock:
            for key in [key for key in self._texts if key[0] == owner]:
                self._remove(key)

    def _remove(self, key: tuple[str, str]) -> None:
        self._size -= sum(map(len, self._texts.pop(key)))
