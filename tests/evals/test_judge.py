"""The judge: its question, and its verdicts. An answer without a verdict is an error, never a pass."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aswarm import Agent, AsyncSwarm
from aswarm.evals import Case, evaluate
from aswarm.testing import Failure, Request, ScriptedAnswer, ScriptedModel, Step, call
from tests.support.evals.evaluated import desk, one

QUESTION = "Is the answer polite?"
YES = '{"reason": "It greets.", "value": true}'


@pytest.mark.parametrize(
    ("verdict", "outcome", "reason"),
    [
        (YES, "passed", "the judge said yes: It greets."),
        ('{"value": false, "reason": "It is rude."}', "failed", "the judge said no: It is rude."),
        ('{"value": false}', "failed", "the judge said no: it gave no reason"),
        (f"```json\n{YES}\n```", "passed", "the judge said yes: It greets."),
        (f"<think>{{hm}} a {{ and [1]</think> So:\n{YES}", "passed", "the judge said yes: It greets."),
        (f"{YES} {YES}", "passed", "the judge said yes: It greets."),
        ('{"reason": "a\nb", "value": "True"}', "passed", "the judge said yes: a\nb"),
        ("false", "failed", "the judge said no: it gave no reason"),
        (" Yes.\n", "passed", "the judge said yes: it gave no reason"),
        ("It is polite.", "error", "the judge gave no verdict: 'It is polite.'"),
        ("", "error", "the judge gave no verdict: ''"),
        ('{"value": 1}', "error", "the judge gave no verdict: '{\"value\": 1}'"),
        ('{"value": null}', "error", "the judge gave no verdict: '{\"value\": null}'"),
        ('{"value": "perhaps"}', "error", 'the judge gave no verdict: \'{"value": "perhaps"}\''),
        ('{"reason": "It greets.", "val', "error", 'the judge gave no verdict: \'{"reason": "It greets.", "val\''),
        ('{"value": true} {"value": false}', "error", 'gave no verdict: \'{"value": true} {"value": false}\''),
        ('{"verdict": {"value": true}}', "error", 'gave no verdict: \'{"verdict": {"value": true}}\''),
        (f"No. {'x' * 999}", "error", "x..."),
    ],
)
async def test_verdicts(verdict: str, outcome: str, reason: str) -> None:
    """A verdict is true or false, with any text around it; both or neither is an error."""
    report = await one(Case("Hi", judge=QUESTION), {QUESTION: ScriptedAnswer(verdict), "Hi": "Hello!"})
    [attempt] = report.attempts
    assert attempt.outcome == outcome
    assert attempt.reason.endswith(reason)
    assert attempt.text == "Hello!"


async def test_the_request_of_the_judge() -> None:
    """The judge gets the whole conversation as JSON, the question, and a strict schema."""
    model = ScriptedModel([call("book", city="Rom"), "Gebucht, schöner Ort.", YES])
    report = await evaluate(desk, [Case("Hi", judge=QUESTION)], swarm=AsyncSwarm(model.client()))
    assert report.accuracy == 1
    body = model.requests[2].body
    assert "tools" not in body
    schema = body["response_format"]["json_schema"]
    assert schema["strict"] is True
    assert schema["schema"]["required"] == ["reason", "value"]
    assert schema["schema"]["additionalProperties"] is False
    system, user = body["messages"]
    assert "JSON object" in system["content"]
    conversation, _, question = user["content"].removeprefix("Conversation:\n").partition("\n\n")
    assert question == f"Question: {QUESTION}"
    assert [message["role"] for message in json.loads(conversation)] == ["user", "assistant", "tool", "assistant"]
    assert "schöner" in conversation


async def test_a_finished_conversation_is_judged_as_it_is() -> None:
    """A finished conversation needs no agent, and need not be a valid history."""
    conversation = [
        {"role": "user", "content": "A refund, please."},
        {"role": "tool", "tool_name": "transfer_to_refunds"},
        {"role": "assistant", "content": "You're welcome!"},
    ]
    model = ScriptedModel([YES])
    report = await evaluate(None, [Case(conversation, judge=QUESTION)], swarm=AsyncSwarm(model.client()))
    assert report.accuracy == 1
    [asked] = model.requests
    assert json.dumps(conversation) in asked.messages[1]["content"]
    assert report.cases[0].attempts[0].did == ""
    assert (report.cases[0].agent, report.cases[0].model) == ("", "")


@pytest.mark.parametrize(
    ("options", "agent", "model"),
    [
        ({}, Agent(model="small"), "small"),
        ({"model_override": "local"}, Agent(model="small"), "local"),
        ({"model_override": "local", "judge_model": "wise"}, Agent(model="small"), "wise"),
        ({}, None, "gpt-6-luna"),
    ],
)
async def test_which_model_judges(options: dict[str, Any], agent: Agent | None, model: str) -> None:
    """The model is `judge_model`, else the model of the runs, else the model of the agent."""
    scripted = ScriptedModel(lambda _: YES)
    conversation = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    await evaluate(agent, [Case(conversation, judge=QUESTION)], swarm=AsyncSwarm(scripted.client()), **options)
    assert scripted.requests[0].body["model"] == model


@pytest.mark.parametrize("status", [400, 422])
async def test_a_server_that_refuses_the_schema_is_asked_without_it(status: int) -> None:
    """After a server has refused the schema, no later request has it."""

    def script(request: Request) -> Step:
        return Failure(status, "what is response_format?") if "response_format" in request.body else YES

    model = ScriptedModel(script)
    case = Case("Hi", judge=QUESTION, run="nothing")
    report = await evaluate(None, [case], swarm=AsyncSwarm(model.client()), repeats=3, concurrency=1)
    assert report.accuracy == 1
    assert ["response_format" in request.body for request in model.requests] == [True, False, False, False]


async def test_a_request_that_is_refused_for_another_reason_keeps_the_schema() -> None:
    """The next question has the schema again."""
    steps: list[Step] = [Failure(400), Failure(400, "too long"), YES]
    model = ScriptedModel(steps)
    case = Case("Hi", judge=QUESTION, run="nothing")
    report = await evaluate(None, [case], swarm=AsyncSwarm(model.client()), repeats=2, concurrency=1)
    assert ["response_format" in request.body for request in model.requests] == [True, False, True]
    first, second = report.cases[0].attempts
    assert first.outcome == "error"
    assert "the judge failed" in first.reason
    assert "too long" in first.reason
    assert second.outcome == "passed"


async def test_the_judge_is_asked_last() -> None:
    """The judge is not asked if the calls have failed."""
    case = Case("Hi", function="book", judge=QUESTION)
    [attempt] = (await one(case, {"Hi": "Hello!"})).attempts
    assert attempt.outcome == "failed"
    assert attempt.usage.requests == 1


async def test_a_judge_that_fails_is_an_error_with_the_answer_of_the_agent() -> None:
    """The attempt has the response of the agent."""
    [attempt] = (await one(Case("Hi", judge=QUESTION), {QUESTION: Failure(500), "Hi": "Hello!"})).attempts
    assert (attempt.outcome, attempt.text) == ("error", "Hello!")
    assert attempt.reason.startswith("the judge failed: the provider failed")
