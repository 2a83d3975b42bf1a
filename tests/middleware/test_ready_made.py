"""The middleware that comes with aswarm: fallback, cache, record and replay, redact, clip_results."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from aswarm import Agent, AsyncSwarm, CompletionError, ConfigurationError, File, Image, Response
from aswarm.errors import StreamInterrupted
from aswarm.middleware import (
    CompletionRequest,
    Middleware,
    cache,
    clip_results,
    fallback,
    hedge,
    record,
    redact,
    replay,
    retry,
)
from aswarm.sources import ResponsesSource
from aswarm.testing import Failure, RawAnswer, ScriptedAnswer, ScriptedModel, call, check_middleware
from tests.support.middleware.middlewares import asking_first
from tests.support.sampling import every

WAYS = pytest.mark.parametrize("way", ["run", "run(stream=True)", "stream"])


async def texts(swarm: AsyncSwarm, way: str = "run", agent: Agent | None = None, message: str = "Hi") -> str:
    """Return the answer of one run, in one of the three ways."""
    return (await finished(swarm, way, agent or Agent(), message)).text


async def finished(swarm: AsyncSwarm, way: str, agent: Agent, message: str = "Hi") -> Response:
    """Return the response of one run, in one of the three ways."""
    if way == "run":
        return await swarm.run(agent, message)
    if way == "stream":
        async with swarm.stream(agent, message) as run:
            async for _ in run:
                pass
        return run.response
    found = [event["response"] async for event in swarm.run(agent, message, stream=True) if "response" in event]
    return found[0]


def lookup(x: str = "") -> str:
    """Look something up."""
    return f"found {x}" * 200


def history(arguments: str, **more: Any) -> list[dict[str, Any]]:
    """Return a call with these arguments and its answer, between two messages of the user."""
    calls = [{"id": "c1", "type": "function", "function": {"name": "lookup", "arguments": arguments}}]
    return [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": calls, **more},
        {"role": "tool", "tool_call_id": "c1", "content": "found"},
        {"role": "user", "content": "And?"},
    ]


def replaying(path: Path) -> Middleware:
    """Each run replays the recording from its start; first the runs of the check make the recording."""
    check_middleware(record(path), backends=["asyncio"])
    return lambda handlers: replay(path)(handlers)


def changing(middleware: Middleware) -> Middleware:
    """The middleware inside another one that makes each request different from all others."""
    numbers = count()
    return lambda handlers: asking_first(lambda body: body.update(user=f"{next(numbers)}"))(middleware(handlers))


READY_MADE: dict[str, Callable[[Path], Middleware]] = {
    "fallback": lambda _: fallback("gpt-6-luna"),
    "retry": lambda _: retry(1),
    "cache": lambda _: cache(_Forgetful()),
    "cache hit": lambda _: cache(),
    "cache file": lambda folder: changing(cache(folder / "cache.sqlite")),
    "cache file hit": lambda folder: cache(folder / "cache.sqlite"),
    "record": lambda folder: record(folder / "recording.jsonl"),
    "replay": lambda folder: replaying(folder / "recording.jsonl"),
    "hedge": lambda _: hedge(after_seconds=1e-9, share=1),
    "redact": lambda _: redact("secret"),
    "clip_results": lambda _: clip_results(100),
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "backend"), every(2, READY_MADE, ["asyncio", "trio"]))
def test_all_of_them_may_be_left_at_any_moment(name: str, backend: str, tmp_path: Path) -> None:
    """`check_middleware` finds no fault in the middleware that comes with aswarm."""
    check_middleware(READY_MADE[name](tmp_path), backends=[backend])


class _Forgetful(dict[str, str]):
    """A store that keeps nothing: every run of the check must ask the model."""

    def __setitem__(self, key: str, value: str) -> None:
        pass


@WAYS
@pytest.mark.parametrize(
    "failure",
    [
        Failure(503),
        Failure(429),
        Failure(404),
        Failure(410),
        Failure(400, code="model_not_found"),
        Failure(400, code="model_decommissioned"),
        *(
            RawAnswer([body], "application/json")
            for body in (
                b'{"error": {"message": "no such model", "code": "model_not_found"}}',
                b'{"error": {"message": "busy", "code": "server_error"}}',
                *(b"", b"{}", b'{"choices": []}'),
            )
        ),
        ConnectionError("no"),
    ],
)
async def test_another_model_answers(way: str, failure: Any) -> None:
    """A fallback asks another model if the first one fails for a time, or does not exist any more."""
    model = ScriptedModel([failure, "Hello"])
    swarm = AsyncSwarm(model.client(), middleware=[fallback("small")])
    assert await texts(swarm, way, Agent(model="large")) == "Hello"
    assert [request.body["model"] for request in model.requests] == ["large", "small"]


async def test_another_client_answers_with_its_own_model() -> None:
    """Another client gets the conversation without the parts that only the first provider can read."""
    first, second = ScriptedModel([Failure(500)]), ScriptedModel(["Hello"])
    swarm = AsyncSwarm(first.client(), middleware=[fallback((second.client(), "llama"))])
    history = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yes", "responses_output": [{"type": "reasoning"}]},
        {"role": "user", "content": "And?"},
    ]
    assert (await swarm.run(Agent(), history)).text == "Hello"
    assert second.requests[0].body["model"] == "llama"
    assert all("responses_output" not in message for message in second.requests[0].messages)


@WAYS
@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_the_first_client_gets_no_reasoning_of_another(way: str, api: Any) -> None:
    """The first client could not read the items of the other provider, and would refuse the next turn."""
    answer = ScriptedAnswer("Wait", calls=[call("lookup", call_id="c1", x="a")], extra={"reasoning_content": "Hm"})
    first, second = ScriptedModel([Failure(503), "Done"], api=api), ScriptedModel([answer], api="responses", cut=2)
    swarm = AsyncSwarm(first.client(), middleware=[fallback((second.client(), "llama"))])
    response = await finished(swarm, way, Agent(functions=[lookup]))
    assert response.text == "Done"
    assert "responses_output" not in response.messages[0]
    assert response.messages[0]["tool_calls"][0]["id"] == "c1"
    assert "encrypted" not in json.dumps(first.requests[1].body.get("input") or first.requests[1].messages)


@WAYS
@pytest.mark.parametrize("order", ["inside", "outside"])
async def test_no_alternative_passes_a_redaction(way: str, order: str) -> None:
    """A redaction holds for each client of a fallback, wherever it stands in the list."""
    first, second, third = ScriptedModel([Failure(503)]), ScriptedModel([Failure(503)]), ScriptedModel(["Done."])
    fallbacks = [fallback((third.client(), "llama")), fallback((second.client(), "qwen"))]
    hidden = redact(r"\d{16}")
    middleware = [*fallbacks, hidden] if order == "inside" else [hidden, *fallbacks]
    swarm = AsyncSwarm(first.client(), middleware=middleware)
    assert await texts(swarm, way, message="My card is 4111111111111111.") == "Done."
    sent = [json.dumps(each.messages) for model in (first, second, third) for each in model.requests]
    assert (len(sent), [text for text in sent if "4111" in text]) == (3, [])


async def test_a_model_of_the_same_client_behind_another_client() -> None:
    """An inner fallback to a model asks the client that the outer fallback has chosen."""
    first, second = ScriptedModel([Failure(503), Failure(503)]), ScriptedModel([Failure(503), "Done."])
    middleware = [fallback(second.client()), fallback("small")]
    assert await texts(AsyncSwarm(first.client(), middleware=middleware)) == "Done."
    models = [[each.body["model"] for each in model.requests] for model in (first, second)]
    assert models[0] == models[1] == [models[0][0], "small"]


async def test_a_cache_inside_a_fallback_keeps_no_completion_of_another_client() -> None:
    """Two clients with a model of the same name do not share cached completions."""
    first, second = ScriptedModel([Failure(503), "First."]), ScriptedModel(["Second."])
    swarm = AsyncSwarm(first.client(), middleware=[fallback(second.client()), cache()])
    assert [await texts(swarm) for _ in range(3)] == ["Second.", "First.", "First."]


@pytest.mark.parametrize("setting", ["extra_query", "extra_headers"])
async def test_a_cache_separates_tenants(setting: str) -> None:
    """Requests with different headers or query parameters have different entries in a cache."""
    model = ScriptedModel(["One.", "Two."])
    swarm = AsyncSwarm(model.client(), middleware=[cache()])
    for tenant, answer in [("a", "One."), ("b", "Two."), ("a", "One."), ("b", "Two.")]:
        agent = Agent(model_settings={setting: {"x-tenant": tenant}})
        assert await texts(swarm, agent=agent) == answer


async def test_a_source_of_another_kind_in_a_fallback() -> None:
    """A fallback passes on chunks of any shape, and the run reports their fault."""

    class Odd:
        async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            yield {"object": "ping"}
            yield {"choices": ["odd"]}

    swarm = AsyncSwarm(ScriptedModel([Failure(503)]).client(), middleware=[fallback(Odd())])
    with pytest.raises(CompletionError, match="not a completion"):
        await texts(swarm, "stream")


@pytest.mark.parametrize(
    ("steps", "asked"),
    [([Failure(401)], 1), ([Failure(400)], 1), ([Failure(503), Failure(503)], 2)],
    ids=["refused", "bad request", "all fail"],
)
async def test_a_failure_that_no_other_model_can_help_with(steps: list[Any], asked: int) -> None:
    """A fallback does not try a refused request elsewhere; the run raises the last failure."""
    model = ScriptedModel(steps)
    with pytest.raises(CompletionError):
        await AsyncSwarm(model.client(), middleware=[fallback("small")]).run(Agent(), "Hi")
    assert len(model.requests) == asked


async def test_the_last_failure_names_the_earlier_ones() -> None:
    """An error has the earlier failures as notes, and does not collect notes over two runs."""

    class Refusing:
        error = CompletionError("no such key", status_code=401)

        def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            raise self.error

    swarm = AsyncSwarm(ScriptedModel([Failure(503)] * 2).client(), middleware=[fallback((Refusing(), "llama"))])
    for _ in range(2):
        with pytest.raises(CompletionError, match="no such key") as caught:
            await swarm.run(Agent(), "Hi")
        (note,) = caught.value.__notes__
        assert note.startswith("failed before: the provider failed: InternalServerError: ")


async def test_a_stream_that_has_started_is_not_started_again() -> None:
    """A reader that has seen a part of the first answer gets no second answer."""
    model = ScriptedModel([ScriptedAnswer("Hello", break_after=2), "Again"], cut=1)
    with pytest.raises(StreamInterrupted):
        await texts(AsyncSwarm(model.client(), middleware=[fallback("small")]), "stream")
    assert len(model.requests) == 1


@pytest.mark.parametrize(
    "odd", ["", (), ("model",), (None, None), (None, 7), (None, ""), (None, "a", "b"), ["a", "b"], []]
)
def test_an_alternative_of_another_shape(odd: Any) -> None:
    """The error describes an alternative, and shows the value."""
    with pytest.raises(ConfigurationError, match=re.escape(f"the name of its model, not {odd!r}")):
        fallback(odd)


def test_a_fallback_needs_an_alternative_and_a_client() -> None:
    """A fallback without another model, or with an object that is not a client, is a mistake."""
    with pytest.raises(ConfigurationError, match="needs another model"):
        fallback()
    for wrong in (7, ("gpt-6-luna", "llama")):
        with pytest.raises(ConfigurationError, match="client must be"):
            fallback(wrong)


@pytest.mark.parametrize("api", ["client", "responses"])
def test_a_fallback_to_a_blocking_client(api: str) -> None:
    """A blocking client would stop the event loop, so the error names the client to pass."""
    with OpenAI(api_key="x") as client, pytest.raises(ConfigurationError, match=r"pass AsyncOpenAI\(\.\.\.\)"):
        fallback((ResponsesSource(client) if api == "responses" else client, "llama"))


@WAYS
@pytest.mark.parametrize("kind", ["memory", "file", "mapping"])
async def test_an_equal_request_is_asked_once(way: str, kind: str, tmp_path: Path) -> None:
    """The second answer costs no tokens, and another question is sent to the model."""
    store = {"memory": None, "file": tmp_path / "cache.sqlite", "mapping": dict[str, str]()}[kind]
    model = ScriptedModel(["Hello", "Other"], cut=2)
    swarm = AsyncSwarm(model.client(), middleware=[cache(store)])
    assert [await texts(swarm, way), await texts(swarm, way), await texts(swarm, "run")] == ["Hello"] * 3
    assert (await swarm.run(Agent(), "Hi")).usage.total_tokens == 0
    assert await texts(swarm, way, message="What?") == "Other"
    assert len(model.requests) == 2


async def test_a_failure_is_not_kept() -> None:
    """A cache does not keep a failure, so the next run asks again."""
    model = ScriptedModel([ScriptedAnswer("Hello", break_after=2), "Hello"], cut=1)
    swarm = AsyncSwarm(model.client(), middleware=[cache()])
    with pytest.raises(StreamInterrupted):
        await texts(swarm, "stream")
    assert await texts(swarm, "stream") == "Hello"


@pytest.mark.parametrize("reason", ["length", "content_filter"])
@WAYS
async def test_an_answer_that_was_cut_is_not_kept(way: str, reason: str) -> None:
    """A cache does not keep an answer that a limit or a filter has cut."""
    model = ScriptedModel([ScriptedAnswer("Hel", finish_reason=reason), "Hello"])
    swarm = AsyncSwarm(model.client(), middleware=[cache()])
    assert [await texts(swarm, way) for _ in range(3)] == ["Hel", "Hello", "Hello"]


async def test_a_store_that_fails_costs_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    """If the store of a cache fails, the model is asked, and the log has the reason."""

    class Broken(dict[str, str]):
        def get(self, key: str, default: Any = None) -> Any:
            raise OSError("disk full")

        def __setitem__(self, key: str, value: str) -> None:
            raise OSError("disk full")

    model = ScriptedModel(["Hello", "Hello"])
    swarm = AsyncSwarm(model.client(), middleware=[cache(Broken())])
    assert [await texts(swarm), await texts(swarm)] == ["Hello", "Hello"]
    assert "the cache failed: OSError: disk full" in caplog.text


@pytest.mark.parametrize("value", ["no JSON", "[]", '{"error": "busy"}'])
async def test_a_stored_value_that_is_not_a_completion(value: str, caplog: pytest.LogCaptureFixture) -> None:
    """The model is asked, its answer replaces the value, and the log has the reason."""
    store: dict[str, str] = {}
    swarm = AsyncSwarm(ScriptedModel(["One", "Two"]).client(), middleware=[cache(store)])
    await texts(swarm)
    store.update(dict.fromkeys(store, value))
    assert [await texts(swarm), await texts(swarm)] == ["Two", "Two"]
    assert caplog.text.count("the cache failed: ") == 1


def test_a_cache_that_cannot_be_opened(tmp_path: Path) -> None:
    """The error of a cache that cannot be opened names the file."""
    with pytest.raises(ConfigurationError, match=r"c\.sqlite cannot be opened"):
        cache(tmp_path / "missing" / "c.sqlite")
    with pytest.raises(ConfigurationError, match="pass None to keep completions in memory"):
        cache(":memory:")


@WAYS
async def test_a_recording_answers_in_place_of_the_model(way: str, tmp_path: Path) -> None:
    """A replay has the same messages without a request, and runs the functions. The folder of the file is made."""
    path, agent = tmp_path / "cassettes" / "r.jsonl", Agent(functions=[lookup])
    model = ScriptedModel([call("lookup", x="a\u2028b"), "Done"], cut=2)
    expected = await texts(AsyncSwarm(model.client(), middleware=[record(path)]), way, agent)
    nobody = ScriptedModel([])
    assert await texts(AsyncSwarm(nobody.client(), middleware=[replay(path)]), way, agent) == expected == "Done"
    assert not nobody.requests
    assert [json.loads(line)["request"]["model"] for line in path.read_text().splitlines()] == [agent.model] * 2


@WAYS
@pytest.mark.parametrize("kind", ["recording", "cache"])
async def test_items_of_the_responses_api_come_back(way: str, kind: str, tmp_path: Path) -> None:
    """Reasoning and calls come back in order, so a later request can send them unchanged."""
    path, agent = tmp_path / "file", Agent(functions=[lookup])
    answer = ScriptedAnswer(calls=[call("lookup", x="a")], extra={"reasoning_content": "Hm"})
    first, second = (record(path), replay) if kind == "recording" else (cache(path), cache)
    model = ScriptedModel([answer, "Done"], cut=2, api="responses")
    expected = await finished(AsyncSwarm(model.client(), middleware=[first]), way, agent)
    again = ScriptedModel([], api="responses")
    found = await finished(AsyncSwarm(again.client(), middleware=[second(path)]), way, agent)
    assert found.messages == expected.messages
    assert [item["type"] for item in found.messages[0]["responses_output"]] == ["reasoning", "function_call"]


async def recorded(path: Path, *steps: Any) -> Agent:
    """Record one run with these steps."""
    agent = Agent(functions=[lookup])
    await AsyncSwarm(ScriptedModel(steps).client(), middleware=[record(path)]).run(agent, "Hi")
    return agent


async def refusal(path: Path, agent: Agent, messages: Any) -> str:
    """Return the text of the error that ends a run in place of an answer."""
    with pytest.raises(ConfigurationError) as caught:
        await AsyncSwarm(ScriptedModel([]).client(), middleware=[replay(path)]).run(agent, messages)
    return str(caught.value)


async def test_a_request_that_was_not_recorded_says_how_it_differs(tmp_path: Path) -> None:
    """The error shows the line, the place and both values of the most similar recorded request."""
    path = tmp_path / "r.jsonl"
    agent = await recorded(path, call("lookup", x="a", call_id="c1"), "Done")
    first = "the most similar request is in line 1, but the request"
    assert f"{first}['messages'][1]['content'] is 'Ho', and 'Hi' in the recording" in await refusal(path, agent, "Ho")
    assert f"{first}['model'] is 'other', and" in await refusal(path, Agent(model="other", functions=[lookup]), "Hi")
    second = "the most similar request is in line 2, but the request['messages']"
    longer, other = history('{"x": "a"}'), history('{"x": "b"}')[:3]
    longer[2]["content"] = lookup("a")
    assert f"{second} has 5 items, and 4 in the recording" in await refusal(path, agent, longer)
    assert f"{second}[2]['tool_calls'][0]['function']['arguments'] is " in await refusal(path, agent, other)


async def test_a_request_that_is_asked_too_often(tmp_path: Path) -> None:
    """The error of a replay names a used or an empty recording."""
    path = tmp_path / "r.jsonl"
    agent = await recorded(path, "Hello")
    swarm = AsyncSwarm(ScriptedModel([]).client(), middleware=[replay(path)])
    assert (await swarm.run(agent, "Hi")).text == "Hello"
    with pytest.raises(ConfigurationError, match="all recorded answers to it were used"):
        await swarm.run(agent, "Hi")
    path.write_text("")
    assert "the recording is empty" in await refusal(path, agent, "Hi")


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_a_recording_of_two_runs_with_equal_first_requests(api: str, tmp_path: Path) -> None:
    """Runs may swap answers, because ids and encrypted reasoning are compared by their order."""
    path = tmp_path / "r.jsonl"
    answers = [
        ScriptedAnswer(
            calls=[call("lookup", x="a", call_id=f"c{n}"), call("lookup", x="b", call_id=f"d{n}")],
            extra={"reasoning_content": "Hm"} if api == "responses" else {"reasoning_details": [{"signature": f"{n}"}]},
        )
        for n in range(3)
    ]
    model, agent = ScriptedModel([*answers, "Done"], api=api), Agent(functions=[lookup])
    swarm = AsyncSwarm(model.client(), middleware=[record(path)])
    for turns in (1, 1, 3):  # the first two runs end before the second request
        await swarm.run(agent, "Hi", max_turns=turns)
    again = AsyncSwarm(ScriptedModel([], api=api).client(), middleware=[replay(path)])
    assert (await again.run(agent, "Hi", max_turns=3)).text == "Done"


async def test_a_result_of_one_call_is_not_the_recorded_result_of_another_call(tmp_path: Path) -> None:
    """A replay numbers ids instead of ignoring them."""
    path = tmp_path / "r.jsonl"
    calls = [{"id": n, "type": "function", "function": {"name": "lookup", "arguments": "{}"}} for n in ("a", "b")]
    start = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None, "tool_calls": calls}]
    results = [{"role": "tool", "tool_call_id": n, "content": n} for n in ("a", "b")]
    swapped = [{**results[0], "tool_call_id": "b"}, {**results[1], "tool_call_id": "a"}]
    await AsyncSwarm(ScriptedModel(["Yes"]).client(), middleware=[record(path)]).run(Agent(), [*start, *results])
    assert "['content'] is 'b', and 'a' in the recording" in await refusal(path, Agent(), [*start, *swapped])
    again = AsyncSwarm(ScriptedModel([]).client(), middleware=[replay(path)])
    renamed = json.dumps([*start, *results]).replace('"id": "a"', '"id": "x"').replace('_id": "a"', '_id": "x"')
    assert (await again.run(Agent(), json.loads(renamed))).text == "Yes"


async def test_a_recording_begins_with_its_first_request(tmp_path: Path) -> None:
    """The file stays until the first request replaces it; the next requests are added."""
    path = tmp_path / "r.jsonl"
    await recorded(path, "Hello")
    before = path.read_text()
    swarm = AsyncSwarm(ScriptedModel(["One", "Two"]).client(), middleware=[record(path)])
    assert path.read_text() == before
    await swarm.run(Agent(), "1")
    await swarm.run(Agent(), "2")
    lines = [json.loads(line)["request"]["messages"][1]["content"] for line in path.read_text().splitlines()]
    assert lines == ["1", "2"]


async def test_recordings_that_cannot_be_used(tmp_path: Path) -> None:
    """A recording that cannot be used is an error before a request is sent."""
    model = ScriptedModel([])
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"r\.jsonl cannot be written: Not a directory"):
        await AsyncSwarm(model.client(), middleware=[record(tmp_path / "file" / "cassettes" / "r.jsonl")]).run(
            Agent(), "Hi"
        )
    assert not model.requests
    with pytest.raises(ConfigurationError, match="cannot be read"):
        replay(tmp_path / "r.jsonl")
    (tmp_path / "r.jsonl").write_text("{")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        replay(tmp_path / "r.jsonl")


NO_ENTRY = "line 3 is not an object with a request and"


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        *((line, NO_ENTRY) for line in ("[]", "7", "{}", '{"request": {}, "completion": []}', '{"completion": {}}')),
        ('{"request": nul}', r"line 3 is not JSON: .* \(column 13\)"),
        ("[" * 100_000, "line 3 is nested"),
    ],
)
def test_a_line_that_is_not_an_entry(line: str, fault: str, tmp_path: Path) -> None:
    """The error names the line of the file and the fault; an empty line, or white space, is no entry."""
    path = tmp_path / "r.jsonl"
    path.write_text('{"request": {}, "completion": {}}\n \n' + line)
    with pytest.raises(ConfigurationError, match=rf"r\.jsonl cannot be read: {fault}"):
        replay(path)


@WAYS
async def test_no_match_reaches_the_provider(way: str) -> None:
    """Messages, arguments and results are redacted for the provider; the history, ids and names stay."""
    model = ScriptedModel([call("lookup", x="4111-1111", call_id="4111-1111"), "Done"])
    swarm = AsyncSwarm(model.client(), middleware=[redact([re.compile(r"\d{4}-\d{4}")])])
    response = await finished(swarm, way, Agent(functions=[lookup]), "My card is 4111-1111")
    sent = model.requests[1].messages
    assert sent[1]["content"] == "My card is [redacted]"
    assert sent[2]["tool_calls"][0]["function"] == {"name": "lookup", "arguments": '{"x": "[redacted]"}'}
    assert sent[2]["tool_calls"][0]["id"] == sent[3]["tool_call_id"] == "4111-1111"
    assert "4111" not in sent[3]["content"]
    assert "4111-1111" in response.messages[1]["content"]


APIS = pytest.mark.parametrize("api", ["chat", "responses"])


@APIS
@pytest.mark.parametrize(
    ("pattern", "arguments", "sent"),
    [
        (r"\d{4}-\d{4}", '{"x": "4111-1111", "n": 1}', '{"x": "****", "n": 1}'),
        (r"\d{8}", '{"x": [41111111, true, null], "41111111": 1.5}', '{"x": ["****", true, null], "****": 1.5}'),
        (r"4111", '{"x": "\\u00341\\u00311 é"}', '{"x": "**** é"}'),
        (r"4111", '{ "x":"\\u00e9" , "y": 1.10 }', '{ "x":"\\u00e9" , "y": 1.10 }'),
        (r'"[a-z ]+"', '{"x": "a b"}', '{"arguments": "{****: ****}"}'),
        (r"password\W+\w+", '{"password": "abc"}', '{"arguments": "{\\"****\\"}"}'),
        (r"secret", '{"x": "secret", "x": "b"}', '{"arguments": "{\\"x\\": \\"****\\", \\"x\\": \\"b\\"}"}'),
        (r"4111", '{"id": "4111", "url": "data:4111"}', '{"id": "****", "url": "data:****"}'),
    ],
)
async def test_redacted_arguments_are_still_json(api: Any, pattern: str, arguments: str, sent: str) -> None:
    """Texts, numbers and keys are replaced one by one; arguments without a match are sent byte by byte."""
    model = ScriptedModel(["Done"], api=api)
    await AsyncSwarm(model.client(), middleware=[redact(pattern, "****")]).run(Agent(), history(arguments))
    found = model.requests[0].messages[2]["tool_calls"][0]["function"]["arguments"]
    assert found == sent
    assert isinstance(json.loads(found), dict)


@APIS
@pytest.mark.parametrize(
    ("pattern", "result", "sent"),
    [
        ("Müller", '{"name": "M\\u00fcller", "n": 1}', '{"name": "****", "n": 1}'),
        (r"KEY-\n\w+", ' [{"key": "KEY-\\nabc"}]', '[{"key": "****"}]'),
        ("Müller", '{ "name": "\\u00e9", "M\\u00fcller": 1.10 }', '{"name": "é", "****": 1.1}'),
        ("Müller", '{ "name":"\\u00e9", "n": 1.10 }', '{ "name":"\\u00e9", "n": 1.10 }'),
        ("4111", '{"n": 4111, "name": "\\u00e9"}', '{"n": "****", "name": "é"}'),
        ("4111", '{"n": 4111}', '{"n": ****}'),
        ("4111", '{"n": "\\u00e9" 4111', '{"n": "\\u00e9" ****'),
        ("é", '{"a": "é", "a": "b\\n"}', '{"a": "****", "a": "b\\n"}'),
    ],
)
async def test_a_match_in_escaped_json(api: Any, pattern: str, result: str, sent: str) -> None:
    """The escapes of a JSON result are decoded for the match; text without a match is sent unchanged."""
    messages = [*history("{}")[:2], {"role": "tool", "tool_call_id": "c1", "content": result}]
    model = ScriptedModel(["Done"], api=api)
    await AsyncSwarm(model.client(), middleware=[redact(pattern, "****")]).run(Agent(), messages)
    assert model.requests[0].messages[3]["content"] == sent


@APIS
async def test_bytes_of_images_and_files_stay_as_they_are(api: Any) -> None:
    """Base64 data is not redacted; an address, a file name and a text that looks like data: are."""
    model = ScriptedModel(["Done"], api=api)
    parts = [
        Image(b"abc").part,
        Image("https://host/?key=YWJj").part,
        File(b"abc", name="YWJj.pdf").part,
        {"type": "text", "text": "data: YWJj"},
    ]
    swarm = AsyncSwarm(model.client(), middleware=[redact("YWJj", "****")])
    await swarm.run(Agent(), [{"role": "user", "content": parts}])
    image, address, file, text = model.requests[0].messages[1]["content"]
    assert "data:image/png;base64,YWJj" in json.dumps(image)
    assert "https://host/?key=****" in json.dumps(address)
    inner = file.get("file") or file
    assert (inner["file_data"], inner["filename"]) == ("data:application/pdf;base64,YWJj", "****.pdf")
    assert text["text"] == "data: ****"


async def test_items_of_the_provider_that_repeat_the_text_are_not_sent() -> None:
    """Over the Responses API, a redacted message is sent in its plain form."""
    model = ScriptedModel(["The card 4111-1111 is valid", "Done"], api="responses")
    swarm = AsyncSwarm(model.client(), middleware=[redact(r"\d{4}-\d{4}", "****")])
    first = await swarm.run(Agent(model="gpt-6-luna"), "Hi")
    await swarm.run(Agent(model="gpt-6-luna"), [*first.messages, {"role": "user", "content": "And?"}])
    parts = [{"type": "output_text", "text": "The card **** is valid"}]
    assert model.requests[1].body["input"][0] == {"type": "message", "role": "assistant", "content": parts}


@APIS
@pytest.mark.parametrize(
    "more",
    [
        {"summary": [{"type": "summary_text", "text": "The card is 4111"}]},
        {"summary": [], "content": [{"type": "reasoning_text", "text": "The card is 4111"}]},
        {"summary": [], "arguments": "{no JSON 4111"},
    ],
    ids=["summary", "text", "arguments"],
)
async def test_reasoning_items_leak_nothing(api: Any, more: dict[str, Any]) -> None:
    """Reasoning is left out with the other items of its message if one of them has a match."""
    call_item = {"type": "function_call", "call_id": "c1", "name": "lookup", "arguments": '{"x": "a"}'}
    items = [{"type": "reasoning", "id": "rs_1", "encrypted_content": "4111", **more}, call_item]
    model = ScriptedModel(["Done"], api=api)
    messages = history('{"x": "a"}', reasoning_content="The card is 4111", responses_output=items)
    await AsyncSwarm(model.client(), middleware=[redact("4111")]).run(Agent(model="gpt-6-luna"), messages)
    assert "4111" not in json.dumps(model.requests[0].body)
    assert "reasoning" not in {item.get("type") for item in model.requests[0].body.get("input", ())}
    assert "reasoning_content" not in model.requests[0].messages[2]


async def test_items_without_a_match_are_sent_as_they_came() -> None:
    """Encrypted reasoning and ids are not searched for matches."""
    model = ScriptedModel([ScriptedAnswer("Yes", extra={"reasoning_content": "Hm"}), "Done"], api="responses")
    swarm = AsyncSwarm(model.client(), middleware=[redact([r"encrypted \w+", "item_0"])])
    first = await swarm.run(Agent(model="gpt-6-luna"), "Hi")
    await swarm.run(Agent(model="gpt-6-luna"), [*first.messages, {"role": "user", "content": "And?"}])
    assert model.requests[1].body["input"][:2] == first.messages[0]["responses_output"]


def text_parts(*texts: str) -> list[dict[str, Any]]:
    """Return text parts, the last one with a key of its provider."""
    parts: list[dict[str, Any]] = [{"type": "text", "text": text} for text in texts]
    return [*parts[:-1], {**parts[-1], "cache_control": {"type": "ephemeral"}}]


@APIS
@pytest.mark.parametrize(
    ("pattern", "texts", "sent"),
    [
        (r"\d{4}-\d{4}", ["My card: 4111-", "1111", " ok"], ["My card: ****", " ok"]),
        (r"\d{4}-\d{4}", ["a 4", "1", "11-1111, 4222-", "2222 b"], ["a ****", ", ****", " b"]),
        (r"4111(-1111)?", ["4111", "-1111 ok"], ["****", " ok"]),
        (r"(?<=card )\d{8}", ["card ", "4111", "1111"], ["card ", "****"]),
        (r"(?m)^key: \w+|\b\d{8}\b", ["Hello", "key: abc", "no", "41111111"], ["Hello", "****", "no", "****"]),
        (r"\d{4}-\d{4}", ["4111-1111", "a", "", "b"], ["****", "a", "", "b"]),
        ([r"4111-1111", r"\*{4}x"], ["4111-", "1111", "x", "y"], ["****", "y"]),
    ],
)
async def test_a_match_across_adjacent_parts(api: Any, pattern: Any, texts: list[str], sent: list[str]) -> None:
    """A match across text parts is replaced, because a server joins them; other parts stay."""
    model = ScriptedModel(["Done"], api=api)
    await AsyncSwarm(model.client(), middleware=[redact(pattern, "****")]).run(
        Agent(), [{"role": "user", "content": text_parts(*texts)}]
    )
    assert [part["text"] for part in model.requests[0].messages[1]["content"]] == sent


async def test_a_match_across_the_parts_of_a_result() -> None:
    """Parts on both sides of an image are not adjacent."""

    def lookup_card() -> list[Any]:
        return ["4111-", "1111", Image(b"abc"), "4111-", Image(b"abc"), "1111"]

    model = ScriptedModel([call("lookup_card"), "Done"], api="responses")
    agent = Agent(model="gpt-6-luna", functions=[lookup_card])
    response = await AsyncSwarm(model.client(), middleware=[redact(r"\d{4}-\d{4}", "****")]).run(agent, "Hi")

    def texts_of(parts: Any) -> list[str]:
        return [part["text"] for part in parts if "text" in part]

    assert texts_of(response.messages[1]["content"]) == ["4111-", "1111", "4111-", "1111"]
    assert texts_of(model.requests[1].body["input"][-1]["output"]) == ["****", "4111-", "1111"]


@WAYS
async def test_a_long_result_keeps_its_head_and_its_tail(way: str) -> None:
    """A clipped result names its length, and a short result stays."""
    model = ScriptedModel([[call("lookup", x="a"), call("short")], "Done"])

    def short() -> str:
        return "short"

    swarm = AsyncSwarm(model.client(), middleware=[clip_results(200)])
    response = await finished(swarm, way, Agent(functions=[lookup, short]))
    clipped, whole = response.messages[1]["content"], response.messages[2]["content"]
    assert len(clipped) <= 200
    assert clipped.startswith("found a")
    assert clipped.endswith("found a")
    assert re.search(r"\[\.\.\. 1,2\d\d of 1,400 characters left out", clipped)
    assert whole == "short"


async def test_a_long_text_beside_an_image_is_shortened_too() -> None:
    """Each text of a result is clipped by itself; images and short texts stay."""

    def chart() -> list[Any]:
        return ["short", "x" * 1_000, Image(b"abc")]

    swarm = AsyncSwarm(ScriptedModel([call("chart"), "Done"]).client(), middleware=[clip_results(100)])
    short, long, image = (await swarm.run(Agent(functions=[chart]), "Hi")).messages[1]["content"]
    assert short == {"type": "text", "text": "short"}
    assert len(long["text"]) <= 100
    assert "of 1,000 characters left out" in long["text"]
    assert image == Image(b"abc").part


@pytest.mark.parametrize("pattern", ["(", 7])
def test_a_pattern_that_is_not_a_regular_expression(pattern: Any) -> None:
    """`redact` refuses it when the middleware is made."""
    with pytest.raises(ConfigurationError, match="redact needs valid regular expressions"):
        redact(pattern)


@pytest.mark.parametrize("characters", [99, "200", True])
def test_a_length_that_could_not_hold_the_note(characters: Any) -> None:
    """A clipped result has at least 100 characters."""
    with pytest.raises(ConfigurationError, match="from 100"):
        clip_results(characters)
