"""The report about a missed prompt cache: when it comes, what it names, and what it never contains."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aswarm import Agent, AsyncSwarm, CompletionError
from aswarm._wire.prefix import first_difference
from aswarm.conversations import without_tool_results
from aswarm.events import CacheMiss, CompletionFinished
from aswarm.extensions import CompletionRequest, Handlers
from aswarm.middleware import diagnose_cache, fallback, hedge, keep_prefix, redact, retry, summarize
from aswarm.testing import RawAnswer, ScriptedAnswer, call
from aswarm.testing._scripted_model import response
from aswarm.tools import agent_tool, tool
from tests.support.openai_rules import OpenAIRules
from tests.support.runtime.virtual_time import virtual_backend
from tests.support.wire.caching_model import CachingModel


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Both backends, in virtual time: waits take no time."""
    return virtual_backend(request.param)


LONG = "The customer asks about an order, and waits for an answer. " * 400  # 6,000 tokens
SECRET = "sk-secret"


def lookup(order: str) -> str:
    """Return the state of an order."""
    return LONG


async def misses(
    swarm: AsyncSwarm, agent: Agent, messages: Any, context: dict[str, Any] | None = None, **keywords: Any
) -> list[CacheMiss | None]:
    """Return the report of each completion of a run."""
    async with swarm.stream(agent, messages, context or {}, **keywords) as run:
        return [event.cache_miss async for event in run if isinstance(event, CompletionFinished)]


TURNS = [[("lookup", {"order": "1"})], [("lookup", {"order": "2"})], "Done."]


async def test_a_request_that_extends_the_last_request_has_no_report() -> None:
    agent = Agent(instructions=LONG, functions=[lookup])
    assert await misses(AsyncSwarm(CachingModel(TURNS)), agent, "Go") == [None, None, None]


async def test_instructions_with_a_counter_are_named_with_the_position() -> None:
    """The text of the instructions is not in the report."""
    numbers = count()
    agent = Agent(instructions=lambda: f"{SECRET} {next(numbers)} {LONG}", functions=[lookup])
    first, second, third = await misses(AsyncSwarm(CachingModel(TURNS)), agent, "Go")
    assert first is None
    assert second is not None
    assert third is not None
    assert second.kind == "changed"
    assert second.where == f"the instructions changed at character {len(SECRET) + 1}"
    assert second.kept_tokens < 200
    assert second.lost_tokens == pytest.approx(6_000, rel=0.1)
    assert third.lost_tokens == pytest.approx(12_000, rel=0.1)
    assert SECRET not in f"{second!r}{second}"


async def test_a_handoff_names_the_agent_and_the_first_difference() -> None:
    orders = Agent(name="Orders", instructions="Find orders.", functions=[lookup])

    def to_orders() -> Agent:
        return orders

    desk = Agent(name="Desk", instructions="Route.", functions=[to_orders])
    _, second = await misses(AsyncSwarm(CachingModel([[("to_orders", {})], "Done."])), desk, LONG)
    assert second is not None
    assert second.where == "handoff to Orders: tool 0 'lookup' was 'to_orders'"
    assert str(second) == f"cache miss (changed): {second.lost_tokens:,} tokens again, {second.where}"


async def test_a_provider_that_forgets_the_prompt() -> None:
    model = CachingModel(TURNS)

    def forgetful_lookup(order: str) -> str:
        """Return the state of an order."""
        model.forget()
        return "Sent."

    agent = Agent(instructions=LONG, functions=[tool(forgetful_lookup, name="lookup")])
    first, second, third = await misses(AsyncSwarm(model), agent, "Go")
    assert first is None
    assert second is not None
    assert third is not None
    assert (second.kind, second.where, second.kept_tokens) == ("expired", None, 0)
    assert str(third) == f"cache miss (expired): {third.lost_tokens:,} tokens again"


async def test_a_provider_that_reports_no_cached_tokens() -> None:
    """The report names a changed prompt, and is silent about a kept one."""
    agent = Agent(instructions=LONG, functions=[lookup])
    assert await misses(AsyncSwarm(CachingModel(TURNS, reports=False)), agent, "Go") == [None, None, None]
    numbers = count()
    agent = Agent(instructions=lambda: f"{next(numbers)} {LONG}", functions=[lookup])
    first, second, _ = await misses(AsyncSwarm(CachingModel(TURNS, reports=False)), agent, "Go")
    assert first is None
    assert second is not None
    assert (second.kind, second.where) == ("unreported", "the instructions changed at character 0")


# --- pairs of features ------------------------------------------------------------------------------------------------


async def test_a_resumed_run_after_redaction_says_unknown() -> None:
    """The first request of a run has no last request. The report never has a redacted text, and a kept prompt has no report."""

    def pay(account: str) -> str:
        """Pay the invoice."""
        return "paid"

    agent = Agent(instructions=LONG, functions=[lookup, tool(pay, approve=True)])
    account = "DE89370400440532013000"
    model = CachingModel([[("lookup", {"order": "1"})], [("pay", {"account": account})], "Paid.", "Paid."])
    swarm = AsyncSwarm(model, middleware=[redact(r"DE\d{20}")])
    messages = [{"role": "user", "content": f"Pay to {account}"}]
    response = await swarm.run(agent, messages)
    assert response.stop == "waiting"
    history = [*messages, *response.messages]
    decisions = {call.id: True for call in response.waiting}
    assert await misses(swarm, agent, history, resume=decisions) == [None]
    assert account not in str(model.requests)
    model.forget()
    (miss,) = await misses(swarm, agent, history, resume=decisions)
    assert miss is not None
    assert (miss.kind, miss.where, miss.kept_tokens) == ("unknown", None, 0)
    assert miss.lost_tokens == pytest.approx(model.usages[1]["prompt_tokens"], rel=0.05)


async def test_the_next_run_of_a_chat() -> None:
    agent, model = Agent(instructions=LONG), CachingModel(["Hi.", "Hi again.", "Hi."])
    swarm = AsyncSwarm(model)
    chat = [{"role": "user", "content": LONG}]
    chat += (await swarm.run(agent, chat)).messages
    chat.append({"role": "user", "content": "And now?"})
    assert await misses(swarm, agent, chat) == [None]
    model.forget()
    (miss,) = await misses(swarm, agent, chat)
    assert miss is not None
    assert miss.kind == "unknown"


async def test_a_fallback_to_another_model_and_back() -> None:
    """The first model is asked again in the next turn, so both changes are named. The failed request counts for nothing."""
    model = CachingModel(TURNS)
    failures = iter([None, CompletionError("busy", retryable=True)])
    model.fails = lambda body: next(failures, None)
    agent = Agent(model="large", instructions=LONG, functions=[lookup])
    first, second, third = await misses(AsyncSwarm(model, middleware=[fallback("small")]), agent, "Go")
    assert first is None
    assert second is not None
    assert second.where == "the model is 'small' instead of 'large'"
    # The prompt of the first turn is still in the cache of the first model.
    assert third is not None
    assert third.where == "the model is 'large' instead of 'small'"
    assert third.kept_tokens > 5_900


async def test_another_client_of_a_fallback_is_seen() -> None:
    """The rate limits of the swarm do not send this request, but the report knows it."""
    first, other = CachingModel([]), CachingModel(TURNS)
    first.fails = lambda body: CompletionError("down", retryable=True)
    numbers = count()
    agent = Agent(instructions=lambda: f"{next(numbers)} {LONG}", functions=[lookup])
    _, second, _ = await misses(AsyncSwarm(first, middleware=[fallback((other, "local"))]), agent, "Go")
    assert second is not None
    assert second.where == "the instructions changed at character 0"


async def test_a_retry_and_a_hedged_stream_send_the_same_prompt() -> None:
    model = CachingModel(TURNS)
    failures = iter([CompletionError("busy", retryable=True), None, CompletionError("busy", retryable=True)])
    model.fails = lambda body: next(failures, None)
    swarm = AsyncSwarm(model, middleware=[hedge(after_seconds=5, share=1), retry()])
    assert await misses(swarm, Agent(instructions=LONG, functions=[lookup]), "Go") == [None, None, None]


async def test_a_summary_is_no_request_of_the_conversation() -> None:
    """The summary has another prompt, and no report. The next request of the conversation has the summary, and is named."""
    model = CachingModel([[("lookup", {"order": "1"})], [("lookup", {"order": "2"})], "A summary.", "Done."])
    agent = Agent(instructions="Help.", functions=[lookup])
    first, second, third = await misses(
        AsyncSwarm(
            model, middleware=[summarize(Agent(name="Summarizer", instructions="Summarize."), above_tokens=11_000)]
        ),
        agent,
        "Go",
    )
    assert len(model.requests) == 4
    assert (first, second) == (None, None)
    assert third is not None
    assert third.where is not None
    assert third.where.startswith("messages[1] changed")


async def test_a_judge_with_the_same_agent_is_no_request_of_the_conversation() -> None:
    """A middleware that asks for the same agent with `for_agent` changes no report."""

    def judge(handlers: Handlers) -> Handlers:
        async def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            async for chunk in handlers.complete(request):
                yield chunk
            question = [{"role": "user", "content": "Is this polite?"}]
            async for _ in handlers.complete(request.for_agent(request.agent, question)):
                pass

        return replace(handlers, complete=complete)

    turns = [TURNS[0], "yes", TURNS[1], "yes", "Done.", "yes"]
    agent = Agent(instructions=LONG, functions=[lookup])
    assert await misses(AsyncSwarm(CachingModel(turns), middleware=[judge]), agent, "Go") == [None, None, None]


async def test_an_agent_as_a_tool_has_its_own_conversation() -> None:
    inner = Agent(name="Reader", instructions=f"Read. {LONG}", functions=[lookup])
    turns = [[("ask_reader", {"request": "Read."})], TURNS[0], "Read.", "Done."]
    agent = Agent(instructions=LONG, functions=[agent_tool(inner, name="ask_reader")])
    assert await misses(AsyncSwarm(CachingModel(turns)), agent, "Go") == [None, None]


async def test_a_trimmed_history() -> None:
    """The tokens of the removed messages are not lost, because no request needs them."""
    agent = Agent(instructions="Help.", functions=[lookup], history=without_tool_results(keep=1, step=1))
    turns = [*[[("lookup", {"order": str(at)})] for at in range(3)], "Done."]
    reports = await misses(AsyncSwarm(CachingModel(turns)), agent, "Go")
    named = [miss.where for miss in reports if miss is not None]
    assert named
    assert all(where is not None and where.startswith("messages[") for where in named)


async def test_a_handoff_with_a_kept_prefix_has_no_report() -> None:
    """With `keep_prefix`, the request after a handoff extends the last one."""
    orders = Agent(name="Orders", instructions="Find orders.", functions=[lookup])
    desk = Agent(name="Desk", instructions="Route.", functions=[orders])
    turns = [[("transfer_to_orders", {})], [("lookup", {"order": "1"})], "Done."]
    model = CachingModel(turns)
    assert await misses(AsyncSwarm(model, middleware=[keep_prefix(desk, orders)]), desk, LONG) == [None, None, None]
    assert model.usages[1]["prompt_tokens_details"]["cached_tokens"] > 5_000


async def test_a_compaction_item_of_the_provider() -> None:
    """The provider has replaced the earlier messages by an item, so its prompt is another one, on purpose."""

    class Compacting(CachingModel):
        async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            async for chunk in super().complete(request):
                chunk["choices"][0]["message"]["responses_output"] = [{"type": "compaction", "encrypted_content": "x"}]
                self.forget()
                yield chunk

    agent = Agent(instructions=LONG, functions=[lookup])
    first, second, _ = await misses(AsyncSwarm(Compacting(TURNS)), agent, "Go")
    assert first is None
    assert second is not None
    assert (second.kind, second.where) == ("compacted", None)


def function(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


@pytest.mark.parametrize(
    ("before", "now", "where"),
    [
        ({"tools": [function("a")]}, {}, "tool 0 'a' is gone"),
        ({}, {"tools": [function("a")]}, "tool 0 'a' is new"),
        ({"tools": [function("a", description="x")]}, {"tools": [function("a")]}, "tool 0 'a' has another description"),
        ({"tools": [function("a", parameters={})]}, {"tools": [function("a")]}, "tool 0 'a' has other parameters"),
        ({"tools": [function("a", strict=True)]}, {"tools": [function("a")]}, "tool 0 'a' changed"),
        ({"tools": [{"type": "web_search"}]}, {"tools": ["odd"]}, "tool 0 'None' was 'web_search'"),
        ({"verbosity": "low"}, {}, "the setting 'verbosity' changed"),
        ({"tool_choice": "required"}, {}, "the setting 'tool_choice' changed"),
        ({"messages": [{"role": "system", "content": SECRET}]}, {}, "the instructions are gone"),
        ({}, {"messages": [{"role": "developer", "content": SECRET}]}, "the instructions are new"),
        (
            {"messages": [{"role": "system", "content": SECRET}]},
            {"messages": [{"role": "system", "content": [{"type": "text", "text": SECRET}]}]},
            "the instructions changed",
        ),
    ],
)
def test_each_difference_has_its_name(before: dict[str, Any], now: dict[str, Any], where: str) -> None:
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    difference = first_difference({**body, **before}, {**body, **now})
    assert difference is not None
    assert difference.where == where


# --- properties -------------------------------------------------------------------------------------------------------

_TOOL = st.fixed_dictionaries(
    {
        "type": st.just("function"),
        "function": st.fixed_dictionaries(
            {
                "name": st.sampled_from(["a", "b"]),
                "description": st.sampled_from(["x", SECRET]),
                "parameters": st.just({}),
            }
        ),
    }
)
_TEXTS = st.sampled_from(["hello", SECRET, "hello " * 50])
_MESSAGE = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system"]), "content": _TEXTS})
_PARTS = st.fixed_dictionaries(
    {"role": st.just("user"), "content": st.just([{"type": "image_url"}, {"type": "text", "text": SECRET}])}
)
_BODY = st.fixed_dictionaries(
    {
        "model": st.just("m"),
        "tools": st.lists(_TOOL, max_size=3),
        "messages": st.lists(_MESSAGE | _PARTS, min_size=1, max_size=5),
    },
    optional={"verbosity": st.just("low"), "tool_choice": st.sampled_from(["auto", "required"])},
)


@given(_BODY, _BODY)
def test_the_first_difference_is_the_first(before: dict[str, Any], now: dict[str, Any]) -> None:
    """There is no difference exactly if one request extends the other. The report has no text, and a share."""
    difference = first_difference(before, now)
    settings = [
        {**body, "tools": 0, "messages": 0, "tool_choice": body.get("tool_choice", "auto")} for body in (before, now)
    ]
    length = min(len(before["messages"]), len(now["messages"]))
    is_same = before["tools"] == now["tools"] and before["messages"][:length] == now["messages"][:length]
    assert (difference is None) == (is_same and settings[0] == settings[1])
    assert difference is None or (SECRET not in difference.where and 0 <= difference.kept <= 1)


@given(st.lists(st.sampled_from(["extend", "forget", "edit"]), min_size=1, max_size=6), st.booleans())
async def test_a_report_comes_exactly_for_lost_tokens(steps: list[str], is_long: bool) -> None:
    model = CachingModel([*[[("lookup", {"order": "1"})] for _ in steps], "Done."])
    version, plan = [0], iter(steps)

    def step(order: str) -> str:
        """Return the state of an order."""
        match next(plan):
            case "forget":
                model.forget()
            case "edit":
                version[0] += 1
            case _:
                pass
        return LONG if is_long else "Sent."

    agent = Agent(instructions=lambda: f"{version[0]} {LONG[:12_000]}", functions=[tool(step, name="lookup")])
    first, *reports = await misses(AsyncSwarm(model), agent, "Go")
    assert first is None
    for before, now, miss, done in zip(model.usages, model.usages[1:], reports, steps, strict=False):
        cached = now["prompt_tokens_details"]["cached_tokens"]
        lost = before["prompt_tokens"] - cached
        assert (miss is not None) == (lost >= 2_000 and lost > 0.05 * before["prompt_tokens"])
        if miss is not None:
            assert (miss.kept_tokens, miss.lost_tokens) == (cached, lost)
            assert miss.kind == {"forget": "expired", "edit": "changed"}[done]


# --- the diagnosis of the provider ------------------------------------------------------------------------------------


def diagnosed(number: int, diagnosis: Any, *, streamed: bool) -> RawAnswer:
    """An answer of the Responses API with 9,000 tokens of input, none of them from the cache."""
    calls = [call("lookup", order="1")] if number < 4 else []
    whole = response(ScriptedAnswer(None if calls else "Done.", calls=calls, usage=None))
    usage = {"input_tokens": 9_000, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 0}}
    whole |= {"id": f"resp_{number}", "usage": usage, "prompt_cache_diagnostics": diagnosis}
    if not streamed:
        return RawAnswer([json.dumps(whole).encode()], "application/json")
    return RawAnswer([b"data: %b\n\n" % json.dumps({"type": "response.completed", "response": whole}).encode()])


@pytest.mark.parametrize("streamed", [False, True])
async def test_the_diagnosis_of_the_provider_wins(streamed: bool) -> None:
    """Each request names the last response. The reason of the provider is first, and a hit is no report."""
    compacted = {"type": "cache_miss", "reason": "context_compacted", "cache_missed_tokens": 8_000}
    changed = {"type": "cache_miss", "reason": "input_changed", "cache_missed_tokens": 5_000}
    small = {"type": "cache_miss", "reason": "input_changed", "cache_missed_tokens": 10}
    answers = [None, {"type": "cache_hit"}, compacted, changed, small]
    model = OpenAIRules([diagnosed(at, each, streamed=streamed) for at, each in enumerate(answers)])
    agent = Agent(
        model="gpt-5.6", instructions="Help.", functions=[tool(lambda order: order, name="lookup", description="Look up.")],
        model_settings={"prompt_cache_options": {"ttl": "30m"}},
    )  # fmt: skip
    swarm = AsyncSwarm(model.client(), api="responses", middleware=[diagnose_cache()])
    reports = await misses(swarm, agent, "Go", deltas=streamed)
    assert reports == [
        None,
        None,
        CacheMiss("compacted", "context_compacted", 0, 8_000),
        CacheMiss("changed", "input_changed", 0, 5_000),
        None,
    ]
    asked = [request.body["prompt_cache_options"].get("comparison_response_id") for request in model.requests]
    assert asked == [None, "resp_0", "resp_1", "resp_2", "resp_3"]
    assert all(request.body["prompt_cache_options"]["ttl"] == "30m" for request in model.requests)


async def test_only_the_responses_api_is_asked_for_a_diagnosis() -> None:
    """A chat completion has another id, and a request to another client of a fallback has no field."""
    model = CachingModel(TURNS)
    agent = Agent(instructions=LONG, functions=[lookup])
    assert await misses(AsyncSwarm(model, middleware=[diagnose_cache()]), agent, "Go") == [None, None, None]
    assert not any("prompt_cache_options" in body for body in model.requests)
