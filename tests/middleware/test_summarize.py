"""`summarize`: a summary replaces older messages, rarely, and no call is separated from its answer."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aswarm import Agent, AsyncSwarm, Budget, CompletionError, ConfigurationError, RunError
from aswarm.middleware import CompletionRequest, fallback, summarize
from aswarm.testing import Failure, Request, ScriptedAnswer, ScriptedModel, Step, call, check_history, check_middleware
from tests.support.middleware.middlewares import asking_first
from tests.support.wire.response_bodies import check_body

Json = dict[str, Any]
WRITER = Agent(name="Summarizer", instructions="You summarize.", model="small")
HEADING = "Summary of the conversation so far:\n\n"
LONG = "word " * 80  # about 100 tokens


def user(text: str) -> Json:
    """A message of the user."""
    return {"role": "user", "content": text}


def exchange(number: int) -> list[Json]:
    """Return a question with a call, its answer, and an answer: about 200 tokens."""
    function = {"name": "look", "arguments": "{}"}
    return [
        user(f"question {number}"),
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": f"c{number}", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": f"c{number}", "content": LONG},
        {"role": "assistant", "content": f"answer {number}"},
    ]


def exchanges(count: int) -> list[Json]:
    """Return a history of this number of exchanges."""
    return [message for number in range(count) for message in exchange(number)]


def is_summary(request: Request) -> bool:
    return request.body["model"] == "small"


class Model(ScriptedModel):
    """Answers the summarizer with numbered summaries, or with the steps; and all others with "Done."."""

    def __init__(self, *steps: Step, **options: Any) -> None:
        self._left = list(steps)
        super().__init__(self._answer, **options)

    def _answer(self, request: Request) -> Step:
        if not is_summary(request):
            return "Done."
        return self._left.pop(0) if self._left else f"summary {len(self.summarized)}"

    @property
    def summarized(self) -> list[str]:
        """Return the requests to the summarizer, as texts."""
        return [request.messages[-1]["content"] for request in self.requests if is_summary(request)]

    @property
    def asked(self) -> list[list[Json]]:
        """Return the messages of the other requests, without the instructions."""
        return [request.messages[1:] for request in self.requests if not is_summary(request)]


def swarm_of(model: ScriptedModel, above: int = 900, **options: Any) -> AsyncSwarm:
    """Return a swarm that summarizes."""
    return AsyncSwarm(model.client(), middleware=[summarize(WRITER, above_tokens=above, **options)])


async def test_the_client_that_a_fallback_asks_writes_the_summary_too() -> None:
    """If the first client is down, the client of the fallback writes the summary with its model."""
    first, second = ScriptedModel(lambda _: Failure(503)), ScriptedModel(["summary", "Done."])
    middleware = [fallback((second.client(), "llama")), summarize(WRITER, above_tokens=900)]
    swarm = AsyncSwarm(first.client(), middleware=middleware)
    budget = Budget(cost=1, prices={"known": (1, 1), "small": (1, 1)})
    response = await swarm.run(Agent(model="known"), [*exchanges(6), user("And?")], budget=budget)
    assert response.text == "Done."
    assert [request.body["model"] for request in second.requests] == ["llama", "llama"]
    assert any("summary" in str(message["content"]) for message in second.requests[1].messages)


async def test_a_request_that_is_short_enough_is_sent_as_it_is() -> None:
    """A short request needs no summary."""
    model = Model()
    await swarm_of(model).run(Agent(), [*exchanges(3), user("And?")])
    assert model.summarized == []
    assert len(model.asked[0]) == 13


@pytest.mark.parametrize("stream", [False, True])
async def test_older_messages_are_replaced_by_a_summary(stream: bool) -> None:
    """The summarizer gets one text; the request has the summary and the newest messages unchanged."""
    model = Model(cut=3)
    history = [*exchanges(8), user("And?")]
    swarm = swarm_of(model)
    async with swarm.stream(Agent(), history, deltas=stream) as run:
        assert [event async for event in run]
    first, _ = model.requests
    assert first.messages[0]["content"] == "You summarize."
    assert "tools" not in first.body
    assert bool(first.body["stream"]) is stream
    for line in ("user: question 0", "assistant called look({})", f"result: {LONG}", "assistant: answer 0"):
        assert f"\n{line}\n" in model.summarized[0]
    sent = model.asked[0]
    assert sent[0] == user(f"{HEADING}summary 1")
    assert sent[1]["role"] == "user"  # whose question the rest answers
    assert sent[-1] == user("And?")
    check_history(sent)
    assert [message["content"] for message in run.response.messages] == ["Done."]


async def test_requests_start_with_the_same_messages_until_the_next_summary() -> None:
    """The next summary is written from the summary before and the messages after it."""
    model = Model()
    swarm = swarm_of(model)
    history: list[Json] = []
    for number in range(20):
        history += exchange(number)
        await swarm.run(Agent(), [*history, user("And?")])
    before = None
    summaries = 0
    for sent in model.asked:
        if before is not None and sent[: len(before) - 1] != before[:-1]:
            summaries += 1
            assert sent[0] == user(f"{HEADING}summary {summaries}")
        before = sent
    assert summaries == len(model.summarized) >= 3
    assert "<summary of what came before>\nsummary 1\n</summary of what came before>" in model.summarized[1]
    assert "question 0" not in model.summarized[1]


async def test_a_summary_is_kept_for_equal_messages_alone() -> None:
    """A run with equal older messages needs no new summary, and a run with others does."""
    model, store = Model(), dict[str, str]()
    history = [*exchanges(8), user("And?")]
    await swarm_of(model, store=store).run(Agent(), history)
    await swarm_of(model, store=store).run(Agent(), history)
    assert list(store.values()) == ["summary 1"]
    assert model.asked[0] == model.asked[1]
    await swarm_of(model, store=store).run(Agent(), [user("Hello"), *history])
    assert list(store.values()) == ["summary 1", "summary 2"]


@pytest.mark.slow
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_in_memory_the_newest_summaries_are_kept() -> None:
    """The memory of a service does not grow with the number of its conversations: it keeps 10,000 summaries."""
    summarized: list[str] = []

    class Source:
        async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            if request.body["model"] == "small":
                summarized.extend(re.findall(r"<(\d+)>", request.body["messages"][-1]["content"]))
            yield {"choices": [{"message": {"content": "text"}, "finish_reason": "stop"}]}

    swarm = AsyncSwarm(Source(), middleware=[summarize(WRITER, above_tokens=40)])
    for number in (*range(10_001), 10_000, 1, 0):
        await swarm.run(Agent(), [user(f"<{number}>"), user(LONG), user("And?")])
    assert summarized == [f"{number}" for number in (*range(10_001), 0)]


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_the_current_question_stays(api: Any) -> None:
    """A summary of a long turn with many calls keeps the message of the user, over both APIs."""

    async def look() -> str:
        return LONG

    steps: list[Step] = [*(call("look") for _ in range(12)), "Found."]
    model = ScriptedModel(lambda request: "a summary" if is_summary(request) else steps.pop(0), api=api)
    response = await swarm_of(model).run(Agent(functions=[look]), "What is there?")
    assert response.text == "Found."
    assert len(response.messages) == 25
    for request in model.requests:
        check_history(request.messages)
        assert is_summary(request) or user("What is there?") in request.messages[1:3]
        if api == "responses":
            check_body(request.body)
    assert sum(map(is_summary, model.requests)) == 2


async def test_a_text_that_a_summary_cannot_shorten_is_sent() -> None:
    """Long instructions, or one long message, are not summarized again and again."""
    model = Model()
    swarm = swarm_of(model, above=100)
    await swarm.run(Agent(instructions=LONG * 2), [])
    await swarm.run(Agent(instructions=LONG * 2), [user("Hi")])
    await swarm.run(Agent(), [user("Hi"), user(LONG * 2)])
    await swarm.run(Agent(), [{"role": "system", "content": LONG}, user("Hi"), user(LONG * 2)])
    assert model.summarized == []


async def test_other_parts_of_messages_are_in_the_text() -> None:
    """Images are named, and a refusal is a text."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    history = [
        {"role": "user", "content": [{"type": "text", "text": "See:"}, image]},
        {"role": "assistant", "content": None, "refusal": "I will not."},
        *exchanges(8),
    ]
    model = Model()
    await swarm_of(model).run(Agent(), [*history, user("And?")])
    assert "user: See: [image]\nassistant: I will not.\n" in model.summarized[0]


async def test_an_answer_without_its_call_is_left_out() -> None:
    """Another middleware may have left it, and no API takes it."""
    lost = {"role": "tool", "tool_call_id": "lost", "content": "lost"}
    model = Model()
    careless = asking_first(lambda body: body["messages"].insert(1, lost))
    swarm = AsyncSwarm(model.client(), middleware=[careless, summarize(WRITER, above_tokens=900)])
    await swarm.run(Agent(), [user(LONG * 12), user("And?")])
    assert len(model.summarized) == 1
    check_history(model.asked[0])


async def test_its_tokens_are_counted() -> None:
    """The usage and the cost of the run include the summary, at the price of its model."""
    model = Model()
    swarm = swarm_of(model)
    budget = Budget(cost=1, prices={"small": (1.0, 1.0), "big": (0.0, 0.0)})
    history = [*exchanges(8), user("And?")]
    with_summary = await swarm.run(Agent(model="big"), history, budget=budget)
    without = await swarm.run(Agent(model="big"), history, budget=budget)
    assert (with_summary.usage.requests, with_summary.usage.total_tokens) == (2, 30)
    assert (without.usage.requests, without.usage.total_tokens) == (1, 15)
    with pytest.raises(ConfigurationError, match="small"):
        await swarm_of(Model()).run(Agent(model="big"), history, budget=Budget(cost=1, prices={"big": (1.0, 1.0)}))


async def test_an_agent_without_a_model_uses_the_model_of_the_request() -> None:
    """The model of the agent that answers writes the summary too."""
    model = ScriptedModel(lambda _: "Done.")
    swarm = AsyncSwarm(model.client(), middleware=[summarize(Agent(), above_tokens=900)], model="theirs")
    await swarm.run(Agent(), [*exchanges(8), user("And?")])
    assert [request.body["model"] for request in model.requests] == ["theirs", "theirs"]


async def test_a_failure_of_the_summarizer_names_it() -> None:
    """The CompletionError has the facts of the failure, and no summary is kept."""
    store = dict[str, str]()
    swarm = swarm_of(Model(Failure(503, "busy")), store=store)
    with pytest.raises(CompletionError, match=r"'Summarizer' could not summarize the conversation: .*busy") as caught:
        await swarm.run(Agent(), [*exchanges(8), user("And?")])
    assert (caught.value.status_code, caught.value.retryable) == (503, True)
    assert store == {}


async def test_an_empty_summary_is_an_error() -> None:
    """An empty text never replaces older messages."""
    model = Model(ScriptedAnswer("  "))
    with pytest.raises(RunError, match="'Summarizer' should summarize the conversation, but wrote no text"):
        await swarm_of(model).run(Agent(), [*exchanges(8), user("And?")])


@pytest.mark.parametrize(
    ("writer", "above", "text"),
    [
        (WRITER, 0, "above_tokens must be a whole number from 1, not 0"),
        (WRITER, 1.5, "not 1.5"),
        ("Summarizer", 100, "needs an Agent that writes the summaries, not 'Summarizer'"),
        (Agent(functions=[user]), 100, "must have no functions"),
        (Agent(output=int), 100, "no output"),
        (Agent(instructions=lambda: "Hi"), 100, "its instructions must be a str"),
    ],
)
def test_wrong_arguments_are_refused(writer: Any, above: Any, text: str) -> None:
    """The error comes when the middleware is made."""
    with pytest.raises(ConfigurationError, match=text):
        summarize(writer, above_tokens=above)


@pytest.mark.slow
@pytest.mark.parametrize("above", [1, 100_000])
def test_it_keeps_the_rules_of_middleware(above: int) -> None:
    """Runs can be left at any moment, also during a summary."""
    check_middleware(summarize(WRITER, above_tokens=above))


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.sampled_from(["user", "assistant", "calls", "system"]), st.integers(1, 400)), max_size=25),
    st.integers(50, 600),
)
def test_any_history_is_sent_in_a_valid_request(messages: list[tuple[str, int]], above: int) -> None:
    """Each request is valid, has the last message of the user, and keeps its start until the next summary."""

    async def check() -> None:
        model, history = Model(), list[Json]()
        swarm = swarm_of(model, above)
        for number, (kind, size) in enumerate(messages):
            text = f"{number} " + "x" * size
            made = exchange(number)[1:3] if kind == "calls" else [{"role": kind, "content": text}]
            history += made
            before, count = model.asked[-1:], len(model.summarized)
            await swarm.run(Agent(), history)
            sent = model.asked[-1]
            check_history(sent)
            users = [message for message in history if message["role"] == "user"]
            assert not users or users[-1] in sent
            if before and len(model.summarized) == count:
                assert sent == before[0] + made

    anyio.run(check)
