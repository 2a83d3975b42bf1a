"""`AnthropicSource`: each client of the package, pauses, refused thinking, errors, limits and the traces of the SDK."""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anthropic
import anyio
import pytest

from aswarm import Agent, AsyncSwarm, Budget, BudgetError, CompletionError, RateLimits, Swarm, agent_tool
from aswarm.errors import ConfigurationError
from aswarm.middleware import record, replay
from aswarm.sources import AnthropicSource
from aswarm.testing import check_history
from tests.support.anthropic_rules import Answer, AnthropicRules, Failure, Step, text, thinking, use
from tests.support.otel.traces import traced

HTTP = importlib.import_module(anthropic.DefaultHttpxClient.__mro__[1].__module__.partition(".")[0])
SEARCH = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": []}
Json = dict[str, Any]
TOOLS = [{"type": "web_search_20250305", "name": "web_search"}]
PAUSED = Answer([text("I search."), SEARCH], stop_reason="pause_turn")


def weather(city: str) -> str:
    return f"Rain in {city}"


def conversation() -> list[Step]:
    return [Answer([thinking(), text("Wait."), use("weather", city="Oslo")]), Answer([thinking(), text("Rain.")])]


def agent(model: str = "claude-sonnet-4-6", **settings: Any) -> Agent:
    return Agent(model=model, functions=[weather], model_settings=settings)


async def answered(swarm: AsyncSwarm, *, stream: bool, **settings: Any) -> Any:
    async with swarm.stream(agent(**settings), "Weather?", deltas=stream) as run:
        async for _ in run:
            pass
    check_history(run.response.messages)
    return run.response


def in_form_of_claude(rules: AnthropicRules, seen: list[str]) -> Callable[[Any], Any]:
    """Return the handler of a cloud, which has the model and the stream in the path, and a version in the body."""

    async def handle(request: Any) -> Any:
        seen.append(request.url.path)
        body = json.loads(request.content)
        body.pop("anthropic_version", None)
        body.pop("anthropic_beta", None)
        body = {"model": "claude-sonnet-4-6", "stream": "stream" in request.url.path.lower(), **body}
        return await rules._handle(HTTP.Request("POST", request.url, headers=request.headers, json=body))

    return handle


CLOUDS: dict[str, dict[str, Any]] = {
    "AsyncAnthropic": {"api_key": "k"},
    "AsyncAnthropicFoundry": {"api_key": "k", "resource": "r"},
    "AsyncAnthropicAWS": {"api_key": "k", "aws_region": "us-east-1", "workspace_id": "w"},
    "AsyncAnthropicBedrockMantle": {"api_key": "k", "aws_region": "us-east-1"},
    "AsyncAnthropicVertex": {"region": "us-east5", "project_id": "p", "access_token": "t"},
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("kind", CLOUDS)
async def test_a_client_of_the_package_is_called_through_post(kind: str, stream: bool) -> None:
    """The classes of the clouds compute the path from the body. Thinking is sent back, so that the server accepts the history."""
    rules, seen = AnthropicRules(conversation()), list[str]()
    transport = HTTP.AsyncClient(transport=HTTP.MockTransport(in_form_of_claude(rules, seen)))
    async with getattr(anthropic, kind)(**CLOUDS[kind], http_client=transport, max_retries=0) as client:
        assert AnthropicSource(client)._is_plain
        response = await answered(AsyncSwarm(client), stream=stream)
    assert [message["content"] for message in response.messages] == ["Wait.", "Rain in Oslo", "Rain."]
    assert (response.usage.requests, response.usage.total_tokens, rules.refused) == (2, 30, [])
    assert all("messages" in path or "claude-sonnet-4-6:" in path for path in seen)


async def test_only_some_servers_have_the_newest_features() -> None:
    """Others get neither messages with the role `system` nor `block_binding`, which they may refuse."""
    clients = {kind: getattr(anthropic, kind)(**options) for kind, options in CLOUDS.items()}
    newest = {kind for kind, client in clients.items() if AnthropicSource(client)._is_claude_api}
    assert newest == {"AsyncAnthropic", "AsyncAnthropicAWS", "AsyncAnthropicBedrockMantle"}
    proxy = anthropic.AsyncAnthropic(api_key="k", base_url="https://claude.example")
    assert not AnthropicSource(proxy)._is_claude_api


async def test_a_server_that_cannot_drop_blocks_gets_no_thinking() -> None:
    """The request is repeated once, without thinking, and so without the field."""
    thought = [{"type": "thinking", "thinking": "Hm.", "signature": ""}, {"type": "text", "text": "One."}]
    refusal = Failure(400, "invalid_request_error", "thinking.block_binding: Extra inputs are not permitted")
    rules = AnthropicRules([thought, refusal, "Two."])
    swarm = AsyncSwarm(rules.client())
    history: list[Any] = [{"role": "user", "content": "Hi"}]
    history += (await swarm.run(agent("claude-opus-5-5"), history)).messages
    response = await swarm.run(agent("claude-opus-5-5"), [*history, {"role": "user", "content": "More"}])
    assert response.text == "Two."
    assert "thinking" in rules.requests[1]
    assert "thinking" not in rules.requests[2]


async def test_bedrock_is_called_through_create() -> None:
    """It streams frames of AWS. A long answer is streamed although the run wants it whole, so this one is short."""
    rules = AnthropicRules(conversation())
    transport = HTTP.AsyncClient(transport=HTTP.MockTransport(in_form_of_claude(rules, [])))
    async with anthropic.AsyncAnthropicBedrock(api_key="k", aws_region="us-east-1", http_client=transport) as client:
        assert not AnthropicSource(client)._is_plain
        response = await answered(AsyncSwarm(client), stream=False, max_tokens=100)
    assert response.text == "Rain."


class Other:
    """An object of another library, with `messages.create`."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.messages = self

    async def create(self, **body: Any) -> Any:
        return await self._client.messages.create(**body)


class Unreadable(Other):
    """An object whose `create` has no signature, and no `extra_body`."""

    @property
    def create(self) -> Any:
        async def create(**body: Any) -> Any:
            return await self._client.messages.create(**body)

        create.__signature__ = "unreadable"  # type: ignore[attr-defined]
        return create


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("kind", ["patched", "other", "unreadable", "wrapped"])
async def test_another_client_is_called_through_create(kind: str, stream: bool) -> None:
    """A patched client, an object of another library, and a wrapper. A field that `create` does not have is in `extra_body`."""
    rules = AnthropicRules([*conversation(), Failure(400)])
    client = rules.client()
    original = client.messages.create
    bodies: list[Json] = []

    @functools.wraps(original)
    async def create(**body: Any) -> Any:
        bodies.append(body)
        return await original(**body)

    given: Any = client
    if kind == "patched":
        client.messages.create = create
    elif kind == "unreadable":
        given = Unreadable(client)
    elif kind == "other":
        given = Other(client)
    else:
        given = AnthropicSource(Other(client))
    response = await answered(AsyncSwarm(given), stream=stream, max_tokens=100)
    assert response.text == "Rain."
    assert response.messages[0]["anthropic_output"][0]["signature"]
    assert AnthropicSource(client).max_retries == AnthropicSource(Other(client)).max_retries == 0
    if kind == "patched":
        with pytest.raises(CompletionError, match="400"):
            await AsyncSwarm(client).run(agent(future_field=1), "Hi")
        assert bodies[-1]["extra_body"] == {"future_field": 1}


class Patched(anthropic.AsyncAnthropic):
    """A class of a user that changes how requests are sent."""

    async def post(self, *arguments: Any, **options: Any) -> Any:
        return await super().post(*arguments, **options)


@pytest.mark.parametrize("through", ["post", "create"])
async def test_the_retries_of_the_client_are_off_if_others_retry(through: str) -> None:
    """With rate limits, the limiter retries in place of the client."""
    rules = AnthropicRules([Failure(529), Answer("Hi")])
    client = rules.client(max_retries=2)
    if through == "create":
        client = Patched(api_key="k", max_retries=2, http_client=client._client)
    swarm = AsyncSwarm(client, rate_limits=RateLimits(requests_per_minute=1000))
    response = await swarm.run(agent(), "Hi")
    assert response.text == "Hi"


def test_a_blocking_client_is_for_swarm() -> None:
    """Whole and streamed. AsyncSwarm refuses it."""
    rules = AnthropicRules([*conversation(), *conversation()])

    def handle(request: Any) -> Any:
        reply = rules.reply(json.loads(request.content), frozenset())
        return HTTP.Response(200, headers={"content-type": reply.content_type}, content=b"".join(reply.pieces))

    transport = HTTP.Client(transport=HTTP.MockTransport(handle))
    with anthropic.Anthropic(api_key="k", http_client=transport) as client:
        swarm = Swarm(client)
        assert swarm.run(agent(max_tokens=100), "Weather?").text == "Rain."
        with swarm.stream(agent(), "Weather?") as run:
            assert [*run]
        assert run.response.text == "Rain."
        with pytest.raises(ConfigurationError, match=r"chat\.completions\.create"):
            swarm.get_chat_completion(agent(), [], {}, None, stream=False, debug=False)
        for given in (client, AnthropicSource(client)):
            with pytest.raises(ConfigurationError, match="AsyncAnthropic is needed"):
                AsyncSwarm(given)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_pause_is_continued_five_times(stream: bool) -> None:
    """The answer is one message. A sixth pause ends it."""
    rules = AnthropicRules([PAUSED, Answer([FOUND, text("Found.")])])
    response = await answered(AsyncSwarm(rules.client()), stream=stream, tools=TOOLS)
    assert response.text == "I search.\n\nFound."
    assert (response.usage.requests, len(response.messages)) == (2, 1)
    assert rules.requests[1]["messages"][-1] == {"role": "assistant", "content": [text("I search."), SEARCH]}
    searches = [{**SEARCH, "id": f"srv_{at}"} for at in range(7)]
    results = [[{**FOUND, "tool_use_id": f"srv_{at - 1}"}] if at else [] for at in range(7)]
    rules = AnthropicRules([Answer([*results[at], searches[at]], stop_reason="pause_turn") for at in range(7)])
    finished: list[Any] = []
    async with AsyncSwarm(rules.client()).stream(agent(tools=TOOLS), "Go", deltas=stream) as run:
        finished += [event.finish_reason async for event in run if hasattr(event, "finish_reason")]
    assert (finished, len(rules.requests), run.response.usage.requests) == (["pause_turn"], 6, 6)


async def test_each_request_of_a_pause_counts() -> None:
    """For a budget of turns, and for the rate limits, which delay it."""
    rules = AnthropicRules([PAUSED, Answer([FOUND, use("weather", city="Oslo")]), Answer("Rain.")])
    response = await AsyncSwarm(rules.client()).run(agent(tools=TOOLS), "Go", budget=Budget(turns=2))
    assert (response.stop, response.spent, len(rules.requests)) == ("budget", "turns", 2)
    assert response.usage.requests == 2
    rules = AnthropicRules([PAUSED, Answer([FOUND, text("Found.")])])
    swarm = AsyncSwarm(rules.client(), rate_limits=RateLimits(requests_per_minute=1, tokens_per_minute=10**9))
    with anyio.move_on_after(0.3) as scope:
        await swarm.run(agent(tools=TOOLS), "Go")
    assert (scope.cancelled_caught, len(rules.requests)) == (True, 1)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_budget_ends_a_pause(stream: bool, tmp_path: Path) -> None:
    """No request exceeds the limit, also of an outer run. The rest of the history is valid."""
    search = [Answer([{**SEARCH, "id": f"srv_{at}"}, text(f"Part {at}.")], stop_reason="pause_turn") for at in range(9)]
    for then, stop, count in (("stop", "budget", 3), ("answer", "budget", 4)):
        rules = AnthropicRules([*search[:3], "In short."])
        claude, budget = agent(tools=TOOLS), Budget(turns=3, then=then)  # type: ignore[arg-type]
        async with AsyncSwarm(rules.client(), budget=budget).stream(claude, "Go", deltas=stream) as run:
            async for _ in run:
                pass
        assert (run.response.stop, run.response.spent, len(rules.requests)) == (stop, "turns", count)
        assert run.response.usage.requests == count
        check_history(run.response.messages)
    assert run.response.text == "In short."
    rules, budget = AnthropicRules([*search[:3], "In short."]), Budget(turns=3, then="answer")
    for kept in (record, replay):  # a replay stops in the same way, without a request
        swarm = AsyncSwarm(rules.client(), middleware=[kept(tmp_path / "run.jsonl")])
        response = await swarm.run(claude, "Go", budget=budget)
        assert (response.stop, response.text, len(rules.requests)) == ("budget", "In short.", 4)
    rules = AnthropicRules([*search])
    with pytest.raises(BudgetError) as caught:
        await AsyncSwarm(rules.client()).run(agent(tools=TOOLS), "Go", budget=Budget(turns=2, then="raise"))
    assert (len(rules.requests), caught.value.response.usage.requests) == (2, 2)
    rules = AnthropicRules([[use("ask", message="Go")], *search])
    outer = Agent(model="claude-sonnet-4-6", functions=[agent_tool(agent(tools=TOOLS), name="ask")])
    response = await AsyncSwarm(rules.client()).run(outer, "Go", budget=Budget(turns=3))
    assert (response.stop, response.spent, len(rules.requests)) == ("budget", "turns", 3)


@pytest.mark.parametrize("eager", [False, "always"])
@pytest.mark.parametrize("stream", [True, False])
async def test_the_calls_of_a_refused_answer_do_not_run(stream: bool, eager: Any) -> None:
    """The server may refuse an answer in its middle, after a whole call."""
    ran: list[str] = []

    def pay(to: str) -> None:
        ran.append(to)

    details = {"type": "refusal", "category": "cyber", "explanation": "No."}
    answer = Answer([text("Sure."), use("pay", to="x")], stop_reason="refusal", extra={"stop_details": details})
    rules = AnthropicRules([answer, "Hi."])
    swarm = AsyncSwarm(rules.client(), eager_tools=eager)
    model = "claude-sonnet-5-5"
    async with swarm.stream(Agent(model=model, functions=[pay]), "Go", deltas=stream) as run:
        async for _ in run:
            pass
    (message,) = run.response.messages
    assert (ran, len(rules.requests), message["refusal"], message["tool_calls"]) == ([], 1, "No.", None)
    history = [{"role": "user", "content": "Go"}, message, {"role": "user", "content": "Hi"}]
    assert (await swarm.run(Agent(model=model), history)).text == "Hi."


SKILLS = {"skills": [{"type": "anthropic", "skill_id": "pptx", "version": "latest"}]}


@pytest.mark.parametrize(
    ("own", "sent"),
    [(None, "box_1"), (SKILLS, {"id": "box_1", **SKILLS}), ("box_of_user", "box_of_user")],
    ids=["none", "skills", "another"],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_code_that_waits_for_a_call_keeps_its_container(stream: bool, own: Any, sent: Any) -> None:
    """Also after a second call, whose answer does not name the container again, and after a pause. A later turn has none."""
    code = {"type": "server_tool_use", "id": "srv_code", "name": "code_execution", "input": {"code": "weather()"}}
    ended = {"type": "code_execution_tool_result", "tool_use_id": "srv_code", "content": {
        "type": "code_execution_result", "stdout": "", "stderr": "", "return_code": 0, "content": []
    }}  # fmt: skip
    caller = {"type": "code_execution_20260120", "tool_id": "srv_code"}
    calls = [{**use("weather", number, city="Oslo"), "caller": caller} for number in (1, 2)]
    pause = Answer([ended, SEARCH], stop_reason="pause_turn")
    rules = AnthropicRules(
        [
            Answer([code, calls[0]], extra={"container": {"id": "box_1"}}),
            calls[1:],
            pause,
            [FOUND, text("Done.")],
            "Hi.",
        ]
    )
    settings = {"tools": [*TOOLS, {"type": "code_execution_20260120", "name": "code_execution"}]}
    claude, swarm = agent(**settings, **({"container": own} if own else {})), AsyncSwarm(rules.client())
    async with swarm.stream(claude, "Weather?", deltas=stream) as run:
        async for _ in run:
            pass
    assert [body.get("container") for body in rules.requests] == [own, sent, sent, sent]
    history = [{"role": "user", "content": "Weather?"}, *run.response.messages, {"role": "user", "content": "Hi"}]
    await swarm.run(claude, history)
    assert rules.requests[-1].get("container") == own


async def test_refused_thinking_is_left_out_once() -> None:
    """A server that cannot drop blocks refuses the history of another program. The second request has no thinking."""
    refusal = "messages.1.content.0: Invalid `signature` in `thinking` block"
    rules = AnthropicRules([*conversation(), Failure(400, "invalid_request_error", refusal), Answer("Fine.")])
    swarm = AsyncSwarm(rules.client(), rate_limits=RateLimits(requests_per_minute=1000))
    first = await swarm.run(agent(), "Weather?")
    history = [{"role": "user", "content": "Weather?"}, *first.messages, {"role": "user", "content": "And now?"}]
    second = await swarm.run(agent(), history)
    assert second.text == "Fine."
    kinds = [[block["type"] for block in message["content"]] for message in rules.requests[-1]["messages"]]
    assert not any("thinking" in each for each in kinds)
    rules = AnthropicRules([Failure(400, "invalid_request_error", refusal)] * 3)
    with pytest.raises(CompletionError, match="signature") as caught:
        await AsyncSwarm(rules.client()).run(agent(), history)
    assert (caught.value.status_code, len(rules.requests)) == (400, 2)


@pytest.mark.parametrize("through", ["post", "create"])
async def test_errors(through: str) -> None:
    """Status, Retry-After, the id of the request and the usual cause; an error in a stream may pass."""
    limited = Failure(429, "rate_limit_error", "Slow down", {"retry-after": "7"})
    rules = AnthropicRules([limited, Failure(401, "authentication_error", "Bad key"), Failure(in_stream=True)])
    client: Any = rules.client()
    if through == "create":
        client = Other(client)
    swarm = AsyncSwarm(client)
    with pytest.raises(CompletionError, match=r"Slow down.*req_error") as caught:
        await swarm.run(agent(), "Hi")
    assert (caught.value.status_code, caught.value.retryable, caught.value.retry_after) == (429, True, 7)
    with pytest.raises(CompletionError, match="ANTHROPIC_API_KEY") as caught:
        await swarm.run(agent(), "Hi")
    assert (caught.value.status_code, caught.value.retryable) == (401, False)
    with pytest.raises(CompletionError, match="Overloaded") as caught:
        await answered(swarm, stream=True)
    assert caught.value.retryable


async def test_the_header_for_betas_has_those_of_the_user() -> None:
    """Of the agent, else of the client; a field that `create` does not have is in `extra_body`."""
    own = {"thinking": {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}}
    rules = AnthropicRules(lambda body: Answer("Hi"))
    headers = {"Anthropic-Beta": "one-2026-01-01"}
    await AsyncSwarm(rules.client(default_headers=headers)).run(agent("claude-opus-5-5", **own), "Hi")
    of_agent = agent("claude-opus-5-5", **own, extra_headers={"anthropic-beta": "two-2026-01-01", "x-own": "1"})
    await AsyncSwarm(rules.client(default_headers=headers)).run(of_agent, "Hi")
    binding = "thinking-binding-controls-2026-08-01"
    assert rules.betas == [{"one-2026-01-01", binding}, {"two-2026-01-01", binding}]


@pytest.mark.parametrize("kind", ["AsyncAnthropic", "AsyncAnthropicBedrock"])
async def test_a_request_makes_one_span(kind: str) -> None:
    """The SDK traces its own methods, and not `post` without a name. Bedrock is called through `create` of a copy."""
    rules = AnthropicRules([Answer("Hi")])
    transport = HTTP.AsyncClient(transport=HTTP.MockTransport(in_form_of_claude(rules, [])))
    region = {"aws_region": "us-east-1"} if kind == "AsyncAnthropicBedrock" else {}
    with traced() as traces:
        own = {"open_telemetry": {"tracer_provider": traces.provider}}
        has_spans = "open_telemetry" in inspect.signature(getattr(anthropic, kind)).parameters
        client = getattr(anthropic, kind)(api_key="k", http_client=transport, **region, **(own if has_spans else {}))
        await AsyncSwarm(client, middleware=[traces.middleware()]).run(agent(max_tokens=100), "Hi")
    assert [span.name.split()[0] for span in traces.ended] == ["chat", "invoke_agent"]


# --- the default client -----------------------------------------------------------------------------------------------


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


async def test_the_default_client(environment: pytest.MonkeyPatch) -> None:
    """A key of the environment is enough. Without one, or without the package, the error says what to do."""
    environment.setenv("ANTHROPIC_API_KEY", " key-of-a-test\n")
    async with AsyncSwarm(api="anthropic") as swarm:
        assert type(swarm.client) is anthropic.AsyncAnthropic
        assert (swarm.client.api_key, getattr(swarm.client.timeout, "connect", None)) == ("key-of-a-test", 60)
    environment.delenv("ANTHROPIC_API_KEY")
    with pytest.raises(ConfigurationError, match="set ANTHROPIC_API_KEY"):
        await AsyncSwarm(api="anthropic").run(agent(), "Hi")
    with pytest.raises(ConfigurationError, match="set ANTHROPIC_API_KEY"):
        Swarm(api="anthropic").run(agent(), "Hi")
    environment.setenv("ANTHROPIC_AUTH_TOKEN", "token")
    async with AsyncSwarm(api="anthropic") as swarm:
        assert swarm.client.auth_token == "token"
    environment.setitem(sys.modules, "anthropic", None)
    with pytest.raises(ConfigurationError, match='the extra "anthropic"'):
        await AsyncSwarm(api="anthropic").run(agent(), "Hi")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: AsyncSwarm(api="anthropic", transport="direct")._open_client(), "for the APIs of OpenAI"),
        (lambda: AsyncSwarm(anthropic.AsyncAnthropic(api_key="k"), api="chat"), "not an API of AsyncAnthropic"),
        (lambda: AsyncSwarm(object(), api="anthropic"), "needs a client with messages.create; got object"),
        (lambda: AnthropicSource("claude"), "needs a client with messages.create; got str"),
    ],
)
async def test_mistakes(make: Callable[[], Any], words: str) -> None:
    """Each names the fault."""
    with pytest.raises(ConfigurationError, match=words):
        make()
