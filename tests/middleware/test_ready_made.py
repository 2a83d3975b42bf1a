"""The middleware that comes with aswarm: fallback, cache, record and replay, redact, clip_results."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from openai import OpenAI

from aswarm import (
    Agent,
    AsyncSwarm,
    CompletionError,
    ConfigurationError,
    File,
    Image,
    Response,
    ResponsesSource,
    StreamInterrupted,
    Swarm,
)
from aswarm.middleware import (
    CompletionRequest,
    Handlers,
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
from aswarm.testing import Failure, RawAnswer, ScriptedAnswer, ScriptedModel, call, check_middleware
from tests.support.sampling import every

WAYS = pytest.mark.parametrize("way", ["run", "run(stream=True)", "stream"])


async def texts(swarm: AsyncSwarm, way: str = "run", agent: Agent | None = None, message: str = "Hi") -> str:
    """The answer of one run, in one of the three ways."""
    return (await finished(swarm, way, agent or Agent(), message)).text


async def finished(swarm: AsyncSwarm, way: str, agent: Agent, message: str = "Hi") -> Response:
    """The response of one run, in one of the three ways."""
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
    """A call with these arguments and its answer, between two messages of the user."""
    calls = [{"id": "c1", "type": "function", "function": {"name": "lookup", "arguments": arguments}}]
    return [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": calls, **more},
        {"role": "tool", "tool_call_id": "c1", "content": "found"},
        {"role": "user", "content": "And?"},
    ]


# --- every one of them obeys the rules ---


def changing(middleware: Middleware) -> Middleware:
    """The middleware inside another one that makes each request different from all others."""
    numbers = count()

    def wrap(handlers: Handlers) -> Handlers:
        inner = middleware(handlers)

        def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            request.body["user"] = str(next(numbers))
            return inner.complete(request)

        return replace(inner, complete=complete)

    return wrap


def replaying(path: Path) -> Middleware:
    """Each run replays the recording from its beginning; first it is made, with the runs of the check."""
    check_middleware(record(path), backends=["asyncio"])
    return lambda handlers: replay(path)(handlers)


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
    """`check_middleware` finds nothing."""
    check_middleware(READY_MADE[name](tmp_path), backends=[backend])


class _Forgetful(dict[str, str]):
    """A store that keeps nothing: every run of the check must ask the model."""

    def __setitem__(self, key: str, value: str) -> None:
        pass


# --- fallback ---


@pytest.mark.anyio
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
        RawAnswer([b'{"error": {"message": "no such model", "code": "model_not_found"}}'], "application/json"),
        ConnectionError("no"),
    ],
)
async def test_another_model_answers(way: str, failure: Any) -> None:
    """Where the first fails in a way that may pass, or is gone."""
    model = ScriptedModel([failure, "Hello"])
    swarm = AsyncSwarm(model.client(), middleware=[fallback("small")])
    assert await texts(swarm, way, Agent(model="large")) == "Hello"
    assert [request.body["model"] for request in model.requests] == ["large", "small"]


@pytest.mark.anyio
async def test_another_client_answers_with_its_own_model() -> None:
    """A pair of a client and a model; it gets the conversation without what only the first provider can read."""
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


@pytest.mark.anyio
@WAYS
@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_the_first_client_gets_no_reasoning_of_another(way: str, api: Any) -> None:
    """It could not read the items of the other provider, and would refuse the next turn."""
    answer = ScriptedAnswer("Wait", calls=[call("lookup", call_id="c1", x="a")], extra={"reasoning_content": "Hm"})
    first, second = ScriptedModel([Failure(503), "Done"], api=api), ScriptedModel([answer], api="responses", cut=2)
    swarm = AsyncSwarm(first.client(), middleware=[fallback((second.client(), "llama"))])
    response = await finished(swarm, way, Agent(functions=[lookup]))
    assert response.text == "Done"
    assert "responses_output" not in response.messages[0]
    assert response.messages[0]["tool_calls"][0]["id"] == "c1"
    assert "encrypted" not in json.dumps(first.requests[1].body.get("input") or first.requests[1].messages)


@pytest.mark.anyio
@WAYS
@pytest.mark.parametrize("body", [b"", b"{}", b'{"choices": []}'])
async def test_an_empty_answer_is_a_failure_too(way: str, body: bytes) -> None:
    """A server sends nothing with status 200, and another model answers."""
    model = ScriptedModel([RawAnswer([body], "application/json"), "Hello"])
    assert await texts(AsyncSwarm(model.client(), middleware=[fallback("small")]), way) == "Hello"


@pytest.mark.anyio
@WAYS
@pytest.mark.parametrize("order", ["inside", "outside"])
async def test_no_alternative_passes_a_redaction(way: str, order: str) -> None:
    """Wherever it stands, and for a fallback inside another one too."""
    first, second, third = ScriptedModel([Failure(503)]), ScriptedModel([Failure(503)]), ScriptedModel(["Done."])
    fallbacks = [fallback((third.client(), "llama")), fallback((second.client(), "qwen"))]
    hidden = redact(r"\d{16}")
    middleware = [*fallbacks, hidden] if order == "inside" else [hidden, *fallbacks]
    swarm = AsyncSwarm(first.client(), middleware=middleware)
    assert await texts(swarm, way, message="My card is 4111111111111111.") == "Done."
    sent = [json.dumps(each.messages) for model in (first, second, third) for each in model.requests]
    assert (len(sent), [text for text in sent if "4111" in text]) == (3, [])


@pytest.mark.anyio
async def test_a_model_of_the_same_client_behind_another_client() -> None:
    """An inner fallback to a model asks the client that the outer one has chosen."""
    first, second = ScriptedModel([Failure(503), Failure(503)]), ScriptedModel([Failure(503), "Done."])
    middleware = [fallback(second.client()), fallback("small")]
    assert await texts(AsyncSwarm(first.client(), middleware=middleware)) == "Done."
    models = [[each.body["model"] for each in model.requests] for model in (first, second)]
    assert models[0] == models[1] == [models[0][0], "small"]


@pytest.mark.anyio
async def test_a_cache_inside_a_fallback_keeps_no_completion_of_another_client() -> None:
    """The two are asked for a model of the same name, and the first must not get the output items of the second."""
    first, second = ScriptedModel([Failure(503), "First."]), ScriptedModel(["Second."])
    swarm = AsyncSwarm(first.client(), middleware=[fallback(second.client()), cache()])
    assert [await texts(swarm) for _ in range(3)] == ["Second.", "First.", "First."]


@pytest.mark.anyio
@pytest.mark.parametrize("setting", ["extra_query", "extra_headers"])
async def test_a_cache_tells_tenants_apart(setting: str) -> None:
    model = ScriptedModel(["One.", "Two."])
    swarm = AsyncSwarm(model.client(), middleware=[cache()])
    for tenant, answer in [("a", "One."), ("b", "Two."), ("a", "One."), ("b", "Two.")]:
        agent = Agent(model_settings={setting: {"x-tenant": tenant}})
        assert await texts(swarm, agent=agent) == answer


@pytest.mark.anyio
async def test_a_source_of_another_kind_in_a_fallback() -> None:
    """Chunks of any shape are passed on: the run says what is wrong with them."""

    class Odd:
        async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            yield {"object": "ping"}
            yield {"choices": ["odd"]}

    swarm = AsyncSwarm(ScriptedModel([Failure(503)]).client(), middleware=[fallback(Odd())])
    with pytest.raises(CompletionError, match="not a completion"):
        await texts(swarm, "stream")


@pytest.mark.anyio
async def test_an_error_inside_an_answer_is_a_failure_too() -> None:
    """Some servers report it with status 200; another client is asked for the same model."""
    body = b'{"error": {"message": "busy", "code": "server_error"}}'
    first, second = ScriptedModel([RawAnswer([body], "application/json")]), ScriptedModel(["Hello"])
    swarm = AsyncSwarm(first.client(), middleware=[fallback(second.client())])
    assert await texts(swarm, agent=Agent(model="same")) == "Hello"
    assert second.requests[0].body["model"] == "same"


@pytest.mark.anyio
async def test_each_completion_begins_at_the_first_model() -> None:
    """A failure of one turn says nothing of the next."""
    model = ScriptedModel([Failure(503), call("lookup", x="a"), "Done"])
    swarm = AsyncSwarm(model.client(), middleware=[fallback("small")])
    await swarm.run(Agent(model="large", functions=[lookup]), "Hi")
    assert [request.body["model"] for request in model.requests] == ["large", "small", "large"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("steps", "asked"),
    [([Failure(401)], 1), ([Failure(400)], 1), ([Failure(503), Failure(503)], 2)],
    ids=["refused", "bad request", "all fail"],
)
async def test_what_no_model_helps_with(steps: list[Any], asked: int) -> None:
    """A refusal is not tried elsewhere; the last failure is that of the run."""
    model = ScriptedModel(steps)
    with pytest.raises(CompletionError):
        await AsyncSwarm(model.client(), middleware=[fallback("small")]).run(Agent(), "Hi")
    assert len(model.requests) == asked


@pytest.mark.anyio
async def test_the_last_failure_names_the_earlier_ones() -> None:
    """As notes, which a traceback shows; a source that raises one error in two runs does not collect them."""

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


@pytest.mark.anyio
async def test_a_stream_that_has_begun_is_not_begun_again() -> None:
    """Its reader has seen a part of the first answer."""
    model = ScriptedModel([ScriptedAnswer("Hello", break_after=2), "Again"], cut=1)
    with pytest.raises(StreamInterrupted):
        await texts(AsyncSwarm(model.client(), middleware=[fallback("small")]), "stream")
    assert len(model.requests) == 1


def test_a_fallback_to_nothing() -> None:
    """It would do nothing, and is a mistake; so is what is no client."""
    with pytest.raises(ConfigurationError, match="needs another model"):
        fallback()
    with pytest.raises(ConfigurationError, match="client must be"):
        fallback(7)
    with pytest.raises(ConfigurationError, match="client must be"):
        fallback(("gpt-6-luna", "llama"))


@pytest.mark.parametrize("odd", ["", (), ("model",), (None, None), (None, 7), (None, ""), (None, "a", "b")])
def test_an_alternative_of_another_shape(odd: Any) -> None:
    """The text says what an alternative is, and shows the value."""
    with pytest.raises(ConfigurationError, match=re.escape(f"the name of its model, not {odd!r}")):
        fallback(odd)


@pytest.mark.parametrize("api", ["client", "responses"])
def test_a_fallback_to_a_blocking_client(api: str) -> None:
    """It would stop the event loop, also that of a `Swarm`; the text says which client to pass."""
    with OpenAI(api_key="x") as client, pytest.raises(ConfigurationError, match=r"pass AsyncOpenAI\(\.\.\.\)"):
        fallback((ResponsesSource(client) if api == "responses" else client, "llama"))


def test_a_fallback_in_a_swarm() -> None:
    """An `AsyncOpenAI` answers there too."""
    first, second = ScriptedModel([Failure(503)]), ScriptedModel(["Hello"])
    with Swarm(first.client(), middleware=[fallback((second.client(), "llama"))]) as swarm:
        assert swarm.run(Agent(), "Hi").text == "Hello"
    assert second.requests[0].body["model"] == "llama"


# --- cache ---


@pytest.mark.anyio
@WAYS
@pytest.mark.parametrize("kind", ["memory", "file", "mapping"])
async def test_an_equal_request_is_asked_once(way: str, kind: str, tmp_path: Path) -> None:
    """The second answer costs no tokens; another question is asked."""
    store = {"memory": None, "file": tmp_path / "cache.sqlite", "mapping": dict[str, str]()}[kind]
    model = ScriptedModel(["Hello", "Other"], cut=2)
    swarm = AsyncSwarm(model.client(), middleware=[cache(store)])
    assert [await texts(swarm, way), await texts(swarm, way), await texts(swarm, "run")] == ["Hello"] * 3
    assert (await swarm.run(Agent(), "Hi")).usage.total_tokens == 0
    assert await texts(swarm, way, message="What?") == "Other"
    assert len(model.requests) == 2


@pytest.mark.anyio
async def test_a_file_serves_the_next_process(tmp_path: Path) -> None:
    """Calls, ids and arguments come back as they were."""
    steps: list[Any] = [ScriptedAnswer("Let me see", calls=[call("lookup", x="a")]), "Done"]
    agent, model = Agent(functions=[lookup]), ScriptedModel(steps)
    first = await AsyncSwarm(model.client(), middleware=[cache(tmp_path / "c.sqlite")]).run(agent, "Hi")
    second = await AsyncSwarm(ScriptedModel([]).client(), middleware=[cache(tmp_path / "c.sqlite")]).run(agent, "Hi")
    assert second.messages == first.messages


@pytest.mark.anyio
async def test_a_failure_is_not_kept() -> None:
    """The next run asks again."""
    model = ScriptedModel([ScriptedAnswer("Hello", break_after=2), "Hello"], cut=1)
    swarm = AsyncSwarm(model.client(), middleware=[cache()])
    with pytest.raises(StreamInterrupted):
        await texts(swarm, "stream")
    assert await texts(swarm, "stream") == "Hello"


@pytest.mark.anyio
@pytest.mark.parametrize("reason", ["length", "content_filter"])
@WAYS
async def test_an_answer_that_was_cut_is_not_kept(way: str, reason: str) -> None:
    """The next run may have another limit, or more luck."""
    model = ScriptedModel([ScriptedAnswer("Hel", finish_reason=reason), "Hello"])
    swarm = AsyncSwarm(model.client(), middleware=[cache()])
    assert [await texts(swarm, way) for _ in range(3)] == ["Hel", "Hello", "Hello"]


@pytest.mark.anyio
async def test_a_store_that_fails_costs_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    """The model is asked, and the log says why."""

    class Broken(dict[str, str]):
        def get(self, key: str, default: Any = None) -> Any:
            raise OSError("disk full")

        def __setitem__(self, key: str, value: str) -> None:
            raise OSError("disk full")

    model = ScriptedModel(["Hello", "Hello"])
    swarm = AsyncSwarm(model.client(), middleware=[cache(Broken())])
    assert [await texts(swarm), await texts(swarm)] == ["Hello", "Hello"]
    assert "the cache failed: OSError: disk full" in caplog.text


@pytest.mark.anyio
@pytest.mark.parametrize("value", ["no JSON", "[]", '{"error": "busy"}'])
async def test_a_stored_value_that_is_not_a_completion(value: str, caplog: pytest.LogCaptureFixture) -> None:
    """The model is asked, its answer replaces the value, and the log says why."""
    store: dict[str, str] = {}
    swarm = AsyncSwarm(ScriptedModel(["One", "Two"]).client(), middleware=[cache(store)])
    await texts(swarm)
    store.update(dict.fromkeys(store, value))
    assert [await texts(swarm), await texts(swarm)] == ["Two", "Two"]
    assert caplog.text.count("the cache failed: ") == 1


def test_a_cache_that_cannot_be_opened(tmp_path: Path) -> None:
    """The text names the file."""
    with pytest.raises(ConfigurationError, match=r"c\.sqlite cannot be opened"):
        cache(tmp_path / "missing" / "c.sqlite")
    with pytest.raises(ConfigurationError, match="pass None to keep completions in memory"):
        cache(":memory:")


# --- record and replay ---


@pytest.mark.anyio
@WAYS
async def test_a_recording_answers_in_place_of_the_model(way: str, tmp_path: Path) -> None:
    """The same messages, without a request; functions run."""
    path, agent = tmp_path / "r.jsonl", Agent(functions=[lookup])
    model = ScriptedModel([call("lookup", x="a\u2028b"), "Done"], cut=2)
    expected = await texts(AsyncSwarm(model.client(), middleware=[record(path)]), way, agent)
    nobody = ScriptedModel([])
    assert await texts(AsyncSwarm(nobody.client(), middleware=[replay(path)]), way, agent) == expected == "Done"
    assert not nobody.requests
    assert [json.loads(line)["request"]["model"] for line in path.read_text().splitlines()] == [agent.model] * 2


@pytest.mark.anyio
@WAYS
@pytest.mark.parametrize("kind", ["recording", "cache"])
async def test_items_of_the_responses_api_come_back(way: str, kind: str, tmp_path: Path) -> None:
    """Reasoning and calls, in order; so the next request of a real run would send them as they came."""
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
    """The text of the error that ends a run in place of an answer."""
    with pytest.raises(ConfigurationError) as caught:
        await AsyncSwarm(ScriptedModel([]).client(), middleware=[replay(path)]).run(agent, messages)
    return str(caught.value)


@pytest.mark.anyio
async def test_a_request_that_was_not_recorded_says_how_it_differs(tmp_path: Path) -> None:
    """From the recorded request that is most like it: the line, the place and both values."""
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


@pytest.mark.anyio
async def test_a_request_that_is_asked_too_often(tmp_path: Path) -> None:
    """The text says that its answers were used; of an empty recording it says that it is empty."""
    path = tmp_path / "r.jsonl"
    agent = await recorded(path, "Hello")
    swarm = AsyncSwarm(ScriptedModel([]).client(), middleware=[replay(path)])
    assert (await swarm.run(agent, "Hi")).text == "Hello"
    with pytest.raises(ConfigurationError, match="all recorded answers to it were used"):
        await swarm.run(agent, "Hi")
    path.write_text("")
    assert "the recording is empty" in await refusal(path, agent, "Hi")


@pytest.mark.anyio
@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_a_recording_of_two_runs_with_equal_first_requests(api: str, tmp_path: Path) -> None:
    """Each run may get the other's answers: ids and encrypted reasoning are compared by their order in the request."""
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


@pytest.mark.anyio
async def test_a_recording_tells_a_result_from_that_of_another_call(tmp_path: Path) -> None:
    """Ids are numbered, not ignored: a result of the first call is none of the second."""
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


@pytest.mark.anyio
async def test_a_recording_begins_with_its_first_request(tmp_path: Path) -> None:
    """Making the middleware leaves the file as it is; the first request replaces it, and the next ones add to it."""
    path = tmp_path / "r.jsonl"
    await recorded(path, "Hello")
    before = path.read_text()
    swarm = AsyncSwarm(ScriptedModel(["One", "Two"]).client(), middleware=[record(path)])
    assert path.read_text() == before
    await swarm.run(Agent(), "1")
    await swarm.run(Agent(), "2")
    lines = [json.loads(line)["request"]["messages"][1]["content"] for line in path.read_text().splitlines()]
    assert lines == ["1", "2"]


@pytest.mark.anyio
async def test_runs_that_record_at_the_same_time(tmp_path: Path) -> None:
    """Each line is whole, however long it is."""
    path, long = tmp_path / "r.jsonl", "x" * 50_000
    swarm = AsyncSwarm(ScriptedModel(lambda _: long).client(), middleware=[record(path)])
    async with swarm.batch(Agent(), [f"{number}" for number in range(20)]) as outcomes:
        assert len([outcome async for outcome in outcomes]) == 20
    assert len([json.loads(line) for line in path.read_text().splitlines()]) == 20


@pytest.mark.anyio
async def test_recordings_that_cannot_be_used(tmp_path: Path) -> None:
    """Before a request is sent."""
    model = ScriptedModel([])
    with pytest.raises(ConfigurationError, match=r"r\.jsonl cannot be written: No such file"):
        await AsyncSwarm(model.client(), middleware=[record(tmp_path / "missing" / "r.jsonl")]).run(Agent(), "Hi")
    assert not model.requests
    with pytest.raises(ConfigurationError, match="cannot be read"):
        replay(tmp_path / "r.jsonl")
    (tmp_path / "r.jsonl").write_text("{")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        replay(tmp_path / "r.jsonl")


@pytest.mark.parametrize("line", ["[]", "7", "{}", '{"request": {}, "completion": []}', '{"completion": {}}'])
def test_a_line_that_is_not_an_entry(line: str, tmp_path: Path) -> None:
    """The text names the line."""
    path = tmp_path / "r.jsonl"
    path.write_text('{"request": {}, "completion": {}}\n\n' + line)
    with pytest.raises(
        ConfigurationError, match=r"r\.jsonl cannot be read: line 3 is not an object with a request and"
    ):
        replay(path)


@pytest.mark.parametrize(
    ("line", "fault"),
    [('{"request": nul}', r"line 3 is not JSON: .* \(column 13\)"), ("[" * 100_000, "line 3 is nested")],
)
def test_a_line_that_is_not_json(line: str, fault: str, tmp_path: Path) -> None:
    """The text names the line of the file and the fault. Lines with only white space do not count as entries."""
    path = tmp_path / "r.jsonl"
    path.write_text('{"request": {}, "completion": {}}\n \n' + line)
    with pytest.raises(ConfigurationError, match=rf"r\.jsonl cannot be read: {fault}"):
        replay(path)


@pytest.mark.anyio
async def test_a_recording_that_cannot_be_continued(tmp_path: Path) -> None:
    """Here its folder was removed while the model was asked; the error is that of a file that cannot be made."""
    folder = tmp_path / "folder"
    folder.mkdir()

    def answer(_: object) -> str:
        (folder / "r.jsonl").unlink()
        folder.rmdir()
        return "Hello"

    swarm = AsyncSwarm(ScriptedModel(answer).client(), middleware=[record(folder / "r.jsonl")])
    with pytest.raises(ConfigurationError, match=r"r\.jsonl cannot be written: No such file"):
        await swarm.run(Agent(), "Hi")


@pytest.mark.anyio
async def test_a_missing_request_is_compared_beside_the_event_loop(tmp_path: Path) -> None:
    """In a worker thread, which a run waits for here: a long recording takes long to compare."""
    await recorded(tmp_path / "r.jsonl", "Hello")
    swarm = AsyncSwarm(ScriptedModel([]).client(), middleware=[replay(tmp_path / "r.jsonl")])
    limiter = anyio.to_thread.current_default_thread_limiter()
    taken = [object() for _ in range(int(limiter.available_tokens))]
    for owner in taken:
        limiter.acquire_on_behalf_of_nowait(owner)

    async def ask() -> None:
        with pytest.raises(ConfigurationError, match="the most similar request is in line 1"):
            await swarm.run(Agent(), "Ho")

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        waiting = limiter.statistics().tasks_waiting
        for owner in taken:
            limiter.release_on_behalf_of(owner)
    assert waiting == 1


# --- redact ---


@pytest.mark.anyio
@WAYS
async def test_what_matches_never_reaches_the_provider(way: str) -> None:
    """In messages, arguments and results; the history and the function have it, and ids and names stay."""
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


@pytest.mark.anyio
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
    """Texts, numbers and keys are replaced one by one; arguments without a match are sent to the byte as they came."""
    model = ScriptedModel(["Done"], api=api)
    await AsyncSwarm(model.client(), middleware=[redact(pattern, "****")]).run(Agent(), history(arguments))
    found = model.requests[0].messages[2]["tool_calls"][0]["function"]["arguments"]
    assert found == sent
    assert isinstance(json.loads(found), dict)


@pytest.mark.anyio
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
    """A model reads the escapes of a JSON result. Text without a match is sent to the byte as it came."""
    messages = [*history("{}")[:2], {"role": "tool", "tool_call_id": "c1", "content": result}]
    model = ScriptedModel(["Done"], api=api)
    await AsyncSwarm(model.client(), middleware=[redact(pattern, "****")]).run(Agent(), messages)
    assert model.requests[0].messages[3]["content"] == sent


@pytest.mark.anyio
@APIS
async def test_bytes_of_images_and_files_stay_as_they_are(api: Any) -> None:
    """A match in base64 means nothing; one in an address, a file's name or a text that looks like data: is replaced."""
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


@pytest.mark.anyio
async def test_items_of_the_provider_that_repeat_the_text_are_not_sent() -> None:
    """Over the Responses API the message is sent in its plain form."""
    model = ScriptedModel(["The card 4111-1111 is valid", "Done"], api="responses")
    swarm = AsyncSwarm(model.client(), middleware=[redact(r"\d{4}-\d{4}", "****")])
    first = await swarm.run(Agent(model="gpt-6-luna"), "Hi")
    await swarm.run(Agent(model="gpt-6-luna"), [*first.messages, {"role": "user", "content": "And?"}])
    parts = [{"type": "output_text", "text": "The card **** is valid"}]
    assert model.requests[1].body["input"][0] == {"type": "message", "role": "assistant", "content": parts}


@pytest.mark.anyio
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
    """They are left out with the other items of their message, and their text too."""
    call_item = {"type": "function_call", "call_id": "c1", "name": "lookup", "arguments": '{"x": "a"}'}
    items = [{"type": "reasoning", "id": "rs_1", "encrypted_content": "4111", **more}, call_item]
    model = ScriptedModel(["Done"], api=api)
    messages = history('{"x": "a"}', reasoning_content="The card is 4111", responses_output=items)
    await AsyncSwarm(model.client(), middleware=[redact("4111")]).run(Agent(model="gpt-6-luna"), messages)
    assert "4111" not in json.dumps(model.requests[0].body)
    assert "reasoning" not in {item.get("type") for item in model.requests[0].body.get("input", ())}
    assert "reasoning_content" not in model.requests[0].messages[2]


@pytest.mark.anyio
async def test_items_without_a_match_are_sent_as_they_came() -> None:
    """Encrypted reasoning and ids are not read."""
    model = ScriptedModel([ScriptedAnswer("Yes", extra={"reasoning_content": "Hm"}), "Done"], api="responses")
    swarm = AsyncSwarm(model.client(), middleware=[redact([r"encrypted \w+", "item_0"])])
    first = await swarm.run(Agent(model="gpt-6-luna"), "Hi")
    await swarm.run(Agent(model="gpt-6-luna"), [*first.messages, {"role": "user", "content": "And?"}])
    assert model.requests[1].body["input"][:2] == first.messages[0]["responses_output"]


def text_parts(*texts: str) -> list[dict[str, Any]]:
    """Text parts, the last one with a key of its provider."""
    parts: list[dict[str, Any]] = [{"type": "text", "text": text} for text in texts]
    return [*parts[:-1], {**parts[-1], "cache_control": {"type": "ephemeral"}}]


@pytest.mark.anyio
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
    """A server joins them. A part without a match stays as it is, and so does a match in one part."""
    model = ScriptedModel(["Done"], api=api)
    await AsyncSwarm(model.client(), middleware=[redact(pattern, "****")]).run(
        Agent(), [{"role": "user", "content": text_parts(*texts)}]
    )
    assert [part["text"] for part in model.requests[0].messages[1]["content"]] == sent


@pytest.mark.anyio
async def test_a_match_across_the_parts_of_a_result() -> None:
    """Parts on both sides of an image are not adjacent."""

    def lookup_card() -> list[Any]:
        return ["4111-", "1111", Image(b"abc"), "4111-", Image(b"abc"), "1111"]

    model = ScriptedModel([call("lookup_card"), "Done"], api="responses")
    agent = Agent(model="gpt-6-luna", functions=[lookup_card])
    response = await AsyncSwarm(model.client(), middleware=[redact(r"\d{4}-\d{4}", "****")]).run(agent, "Hi")
    assert [part["text"] for part in response.messages[1]["content"] if "text" in part] == [
        "4111-",
        "1111",
        "4111-",
        "1111",
    ]
    assert [part["text"] for part in model.requests[1].body["input"][-1]["output"] if "text" in part] == [
        "****",
        "4111-",
        "1111",
    ]


def test_a_pattern_that_is_none() -> None:
    """The text of `re` says what is wrong with it."""
    for pattern in ("(", 7):
        with pytest.raises(ConfigurationError, match="redact needs valid regular expressions"):
            redact(pattern)  # type: ignore[arg-type]


# --- clip_results ---


@pytest.mark.anyio
@WAYS
async def test_a_long_result_keeps_its_head_and_its_tail(way: str) -> None:
    """And says how much there was; a short one stays."""
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


@pytest.mark.anyio
async def test_a_long_text_beside_an_image_is_shortened_too() -> None:
    """Each text by itself; the image and a short text stay."""

    def chart() -> list[Any]:
        return ["short", "x" * 1_000, Image(b"abc")]

    swarm = AsyncSwarm(ScriptedModel([call("chart"), "Done"]).client(), middleware=[clip_results(100)])
    short, long, image = (await swarm.run(Agent(functions=[chart]), "Hi")).messages[1]["content"]
    assert short == {"type": "text", "text": "short"}
    assert len(long["text"]) <= 100
    assert "of 1,000 characters left out" in long["text"]
    assert image == Image(b"abc").part


@pytest.mark.parametrize("characters", [99, "200", True])
def test_a_length_that_could_not_hold_the_note(characters: Any) -> None:
    """At least 100."""
    with pytest.raises(ConfigurationError, match="from 100"):
        clip_results(characters)
