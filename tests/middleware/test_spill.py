"""`spill_results`: long results of tools outside of the history, and the two functions that read them."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aswarm import Agent, AsyncSwarm, ConfigurationError, Image, ToolError, tool
from aswarm._values.messages import HANDLE
from aswarm._values.text import sendable
from aswarm.conversations import MemoryStore, SQLStore, Store, last, without_tool_results
from aswarm.extensions import ResultStore
from aswarm.middleware import Handlers, spill_results, summarize
from aswarm.middleware._long_results import _folded, _Kept, _Memory, _ResultSearch
from aswarm.testing import Request, ScriptedModel, call, check_middleware
from aswarm.tools import agent_tool
from tests.support.code.coded import result_of

LETTERS = "aAbB\u0130\u03c2\u03a3\u03c3"  # some have several small forms
ROWS = "\n".join(f"row {number:06}" for number in range(20_000))


def rows() -> str:
    """Return many rows."""
    return ROWS


def results(messages: Sequence[dict[str, Any]]) -> list[str]:
    """The contents of the tool messages."""
    return [message["content"] for message in messages if message["role"] == "tool"]


def handle_in(text: Any) -> str:
    """The handle in a text."""
    found = re.search("r[0-9a-f]{16}", str(text))
    assert found is not None
    return found[0]


def reading(*asked: Any) -> ScriptedModel:
    """A model that calls `rows`, then these functions with its handle, and answers."""

    def answer(request: Request) -> Any:
        done = [message for message in request.messages if message["role"] == "tool"]
        if not done:
            return call("rows")
        if len(done) > len(asked):
            return "Done."
        name, arguments = asked[len(done) - 1]
        return call(name, **{key: handle_in(done[0]) if value is None else value for key, value in arguments.items()})

    return ScriptedModel(answer)


async def test_a_long_result_has_a_handle_and_its_rest_is_read() -> None:
    """The model gets the size, the start and the end, then a part by its position, and the places of a text."""
    model = reading(
        ("read_result", {"handle": None, "start": 110_000, "length": 21}),
        ("read_result", {"handle": None, "start": 10**30}),
        ("search_result", {"text": "ROW 012345", "handle": None}),
        ("search_result", {"text": "row 01999", "handle": ""}),
        ("search_result", {"text": "elsewhere"}),
    )
    response = await AsyncSwarm(model.client(), middleware=[spill_results(1_000)]).run(Agent(functions=[rows]), "Go")
    first, part, behind, place, places, nothing = results(response.messages)
    assert len(first) == 1_000
    assert re.match(r"\[result r[0-9a-f]{16}: 219,999 characters\]\nrow 000000\nrow 000001\n", first)
    assert "characters left out; read_result or search_result shows them" in first
    assert first.endswith("row 019999")
    assert part.partition("\n")[2] == ROWS[110_000:110_021]
    assert "to its end]" in behind
    assert place.startswith(f"{handle_in(first)} at 135,795: ")
    assert "row 012345" in place
    assert places.count(" at ") == 5  # of 1,000 characters
    assert nothing == "The text is not in the 1 results that were searched."
    assert {tuple(request.tool_names) for request in model.requests} == {("rows", "read_result", "search_result")}


async def test_what_a_model_may_ask_wrongly() -> None:
    """A wrong handle, position, length or text is an error for the model, and no handle is needed for a search."""
    foreign = "r0123456789abcdef"
    model = reading(
        ("read_result", {"handle": "the first one"}),
        ("read_result", {"handle": foreign}),
        ("read_result", {"handle": foreign, "start": 70_000}),
        ("search_result", {"text": "row", "handle": foreign}),
        ("read_result", {"handle": None, "start": -1}),
        ("search_result", {"text": ""}),
        ("search_result", {"text": "row", "handle": None}),
    )
    response = await AsyncSwarm(model.client(), middleware=[spill_results()]).run(Agent(functions=[rows]), "Go")
    _, handle, *gone, start, text, many = results(response.messages)
    assert "r0123456789abcdef; it is in the first line" in handle
    assert set(gone) == {f"there is no result {foreign} here, or it is no longer kept"}
    assert (start, text) == ("start must be at least 0, and length at least 1", "text must have 1 to 200 characters")
    assert many.count("\n") == 20
    assert many.endswith("[more hits may follow; search for a longer text]")


async def test_texts_beside_images_are_one_text_and_an_error_is_a_result_too() -> None:
    """The images stay. Short results do not change, and neither do the results of the two functions."""

    def chart() -> Any:
        """Draw."""
        return ["a" * 400, Image("data:image/png;base64,AA=="), "b" * 400]

    def label() -> Any:
        """Label."""
        return ["small", Image("data:image/png;base64,AA==")]

    def fails() -> str:
        """Fail."""
        raise ToolError("e" * 2_000)

    model = ScriptedModel([[call("chart"), call("label"), call("fails")], "Done."])
    agent = Agent(functions=[chart, label, fails])
    response = await AsyncSwarm(model.client(), middleware=[spill_results(500)]).run(agent, "Go")
    chart_parts, label_parts, error = (each["content"] for each in response.messages if each["role"] == "tool")
    assert [part["type"] for part in chart_parts] == ["text", "image_url"]
    assert len(chart_parts[0]["text"]) == 500
    assert [part["type"] for part in label_parts] == ["text", "image_url"]
    assert HANDLE.match(error)


async def test_code_gets_the_whole_data_and_its_print_is_shortened() -> None:
    """Code mode: a call inside code is not shortened, what the code prints is."""
    printed = await result_of("len(await rows()), await rows()", rows, swarm={"middleware": [spill_results(500)]})
    assert HANDLE.match(printed)
    assert "[219999" in printed.replace("(", "[")


async def test_a_run_inside_a_run_has_the_same_results() -> None:
    """The agent that asks reads a result of the agent that it asked, and a guess of another run reads nothing."""
    spill = spill_results(1_000)
    inner = Agent(name="Inner", functions=[rows])
    outer = Agent(name="Outer", functions=[agent_tool(inner)])

    def answer(request: Request) -> Any:
        done = results(request.messages)
        if "rows" in request.tool_names:
            return f"It is in {handle_in(done[0])}." if done else call("rows")
        if len(done) == 1:
            return call("read_result", handle=handle_in(done[0]), start=11, length=10)
        return "Done." if done else call("inner", request="Look.")

    swarm = AsyncSwarm(ScriptedModel(answer).client(), middleware=[spill])
    response = await swarm.run(outer, "Go")
    handle = handle_in(results(response.messages)[0])
    assert results(response.messages)[1].endswith("]\nrow 000001")
    guess = AsyncSwarm(ScriptedModel([call("read_result", handle=handle), "Done."]).client(), middleware=[spill])
    response = await guess.run(outer, "Go")
    assert "no longer kept" in results(response.messages)[0]


async def test_a_run_that_waits_keeps_its_results_and_the_others_free_the_memory() -> None:
    """`run_id` continues the same run. Without a store, results are in memory until the end of the run."""

    @tool(approve=True)
    async def pay() -> str:
        return "paid"

    agent, history = Agent(functions=[rows, pay]), [{"role": "user", "content": "Go"}]
    for same, found in ((True, " at 135,795"), (False, "not in the 0 results")):
        calls = [call("rows"), call("pay", call_id="pay"), call("search_result", text="row 012345"), "Done."]
        swarm = AsyncSwarm(ScriptedModel(calls).client(), middleware=[spill_results()])
        first = await swarm.run(agent, history, run_id="first")
        run_id = "first" if same else "second"
        second = await swarm.run(agent, [*history, *first.messages], resume={"pay": True}, run_id=run_id)
        assert found in results(second.messages)[1]

    memory = _Memory(100)
    for number in range(4):
        await memory.put("run:a", f"r{number}", ["x" * 40])
    assert await memory.handles("run:a") == ["r3", "r2"]  # the oldest are removed
    await memory.put("run:a", "r3", ["x" * 40])
    await memory.put("run:b", "r4", ["x" * 500])  # one text may be longer
    assert (await memory.handles("run:a"), await memory.read("run:b", "r4", 1)) == ([], None)
    memory.forget("run:b")
    assert memory._size == 0


@given(st.lists(st.text(st.sampled_from(LETTERS + "\u00df "), max_size=300), min_size=1, max_size=6), st.data())
async def test_a_search_finds_what_a_search_in_the_whole_text_finds(parts: list[str], data: st.DataObject) -> None:
    """At the borders of parts too; each hit names its position."""
    sought = data.draw(st.text(st.sampled_from(LETTERS), min_size=1, max_size=5))

    class Parts:
        async def put(self, owner: str, handle: str, parts: Sequence[str], /) -> None:
            raise NotImplementedError

        async def read(self, owner: str, handle: str, part: int, /) -> str | None:
            return parts[part] if part < len(parts) else None

        async def handles(self, owner: str, /) -> Sequence[str]:
            return ["r0"]

    whole, wanted, at = _folded("".join(parts)), list[int](), 0
    while (at := whole.find(_folded(sought), at)) >= 0 and len(wanted) < 20:
        wanted.append(at)
        at += len(sought)
    found = await _ResultSearch(_Kept(Parts(), "run:a"), sought, 100_000).run(None)
    assert [int(number.replace(",", "")) for number in re.findall(r"r0 at ([0-9,]+):", found)] == wanted


async def test_a_search_in_many_results_has_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stops after its hits or its characters, and names what it left out. A result that is removed meanwhile is no error."""

    class Removed(_Memory):
        async def handles(self, owner: str, /) -> list[str]:
            return ["r0", *await super().handles(owner)]

    kept = _Kept(Removed(10**9), "run:a")
    for number in range(30):
        await kept.put(f"needle {number} " * 50)
    full = await _ResultSearch(kept, "needle", 100_000).run(None)
    assert (full.count(" at "), full.rpartition("\n")[2]) == (20, "[more hits may follow; search for a longer text]")
    assert len(re.findall(" at ", await _ResultSearch(kept, "needle 7", 100_000).run(None))) == 20
    monkeypatch.setattr("aswarm.middleware._long_results._MOST_SEARCHED", 2_000)
    assert "[the 25 oldest results were not searched]" in await _ResultSearch(kept, "absent", 100_000).run(None)


def test_no_character_changes_its_length_when_it_is_compared() -> None:
    """So a position in the compared text is a position in the result."""
    assert all(len(_folded(chr(code))) == 1 for code in range(sys.maxunicode + 1))


@given(st.text(max_size=40), st.integers(1, 6_000), st.integers(0, 400_000), st.integers(1, 200_000))
async def test_each_part_of_a_text_is_read_as_it_was(piece: str, times: int, start: int, length: int) -> None:
    """With any characters, NUL too, across the parts of the store."""
    whole = sendable(piece) * times
    kept = _Kept(_Memory(10**9), "run:a")
    handle = await kept.put(whole or "x")
    assert await kept.text(handle, start, length) == (whole or "x")[start : start + length]
    assert await kept.put(whole or "x") == handle


async def test_a_text_that_is_too_long_is_cut_and_the_model_knows() -> None:
    """`max_characters`."""
    model = reading(("search_result", {"text": "row 019999"}), ("read_result", {"handle": None, "start": 2_990}))
    swarm = AsyncSwarm(model.client(), middleware=[spill_results(1_000, max_characters=3_000)])
    first, found, end = results((await swarm.run(Agent(functions=[rows]), "Go")).messages)
    assert ": 3,000 characters] (only the first of 219,999; the rest is lost)\n" in first
    line = HANDLE.match(first)
    assert line is not None
    assert line[0] == first.partition("\n")[0]  # so a history without the result still tells it
    assert found.startswith("The text is not in")
    assert end.partition("\n")[2] == ROWS[2_990:3_000]


@pytest.mark.parametrize("numbers", [(499,), ("8000",), (8_000, 7_999)])
def test_numbers_that_cannot_be_used(numbers: tuple[Any, ...]) -> None:
    """A limit without space for the note."""
    with pytest.raises(ConfigurationError, match="must be a whole number from"):
        spill_results(numbers[0], **({"max_characters": numbers[1]} if len(numbers) > 1 else {}))


async def test_a_store_of_a_user_needs_a_place_for_results() -> None:
    """A run does not lose results in silence: it is refused before a request, or uses `store=`, or the property of the store."""

    class OwnStore(MemoryStore):
        results = Store.results  # as a class of a user has it

    class Place(_Memory):
        def __init__(self) -> None:
            super().__init__(10**9)

    place: ResultStore = Place()
    for own, taken in ((None, False), (place, True)):
        model = reading(("search_result", {"text": "row 012345"}))
        swarm = AsyncSwarm(model.client(), middleware=[spill_results(store=own)])
        chat = OwnStore().conversation("c", swarm, agent=Agent(functions=[rows]))
        if not taken:
            with pytest.raises(
                ConfigurationError, match="the store of the conversation 'c' has no place for long results"
            ):
                await chat.run("Go")
            assert not model.requests
        else:
            assert " at 135,795" in results((await chat.run("Go")).messages)[1]
    assert len(await place.handles("conversation:c")) == 1
    assert isinstance(MemoryStore().results, ResultStore)
    assert SQLStore.results is not Store.results


async def test_handles_stay_when_the_history_is_shortened() -> None:
    """In the note of a result that is left out, in a summary, and after `last` by a search without a handle."""
    model = ScriptedModel([call("rows"), "One.", call("search_result", text="row 012345"), "Two."])
    agent = Agent(functions=[rows], history=without_tool_results(1, step=1))
    store = MemoryStore()
    chat = store.conversation("c", AsyncSwarm(model.client(), middleware=[spill_results(1_000)]), agent=agent)
    line = results((await chat.run("Go")).messages)[0].partition("\n")[0]
    await chat.run("And then?")
    left_out = results(model.requests[-1].messages)[0]
    assert left_out == f"{line}\n(this earlier result is left out)"

    agent.history = last(1)
    model = ScriptedModel([call("search_result", text="row 000999"), "Found."])
    chat = store.conversation("c", AsyncSwarm(model.client(), middleware=[spill_results(1_000)]), agent=agent)
    assert " at 10,989: " in results((await chat.run("Where?")).messages)[0]

    writer = Agent(name="Writer")
    numbers = count()
    model = ScriptedModel(lambda request: f"{next(numbers)} {'Yes. ' * 60}")
    swarm = AsyncSwarm(model.client(), middleware=[spill_results(1_000), summarize(writer, above_tokens=400)])
    agent.history = None
    chat = store.conversation("c", swarm, agent=agent)
    for question in ("a" * 900, "b" * 900, "c" * 900):
        await chat.run(question)
    summaries = [
        message["content"]
        for request in model.requests
        for message in request.messages
        if str(message["content"]).startswith("Summary of the conversation")
    ]
    assert len(set(summaries)) > 1  # the second summary replaces the first
    assert all(summary.count(line) == 1 for summary in summaries)


def test_the_middleware_keeps_the_rules() -> None:
    """It leaves a run in every way, at every moment."""
    check_middleware(spill_results())


async def test_the_owner_of_a_run() -> None:
    """A middleware reads the user and the conversation; a plain run has neither, and owns its results itself."""
    seen: list[tuple[Any, ...]] = []

    def note(handlers: Handlers) -> Handlers:
        run = handlers.run
        seen.append((run.user, run.conversation, run.owner, run.results is None))
        return handlers

    async with MemoryStore() as store:
        swarm = AsyncSwarm(ScriptedModel(lambda _: "Hi").client(), middleware=[note])
        await swarm.run(Agent(), "Hi", run_id="plain")
        await store.conversation("c", swarm, agent=Agent()).run("Hi")
    assert seen == [(None, None, "run:plain", True), (None, "c", "conversation:c", False)]
    assert json.dumps(seen)
