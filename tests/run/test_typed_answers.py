"""Answers with a type: how the model is asked, what ends the run, and what the model is told of an answer that is wrong."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from aswarm import (
    Agent,
    AsyncSwarm,
    Budget,
    ConfigurationError,
    Output,
    OutputError,
    Response,
    Result,
    Swarm,
    ToolCallFinished,
    external_tool,
    tool,
)
from aswarm._values.output import answer_text, answer_type
from aswarm.middleware import fallback
from aswarm.testing import Failure, Request, ScriptedAnswer, ScriptedModel, call, check_history

pytestmark = pytest.mark.anyio


class Trip(BaseModel):
    """A trip to a city."""

    city: str
    days: int = 1


class Hotel(BaseModel):
    name: str


@dataclass
class Point:
    x: int
    y: int


class Tree(BaseModel):
    leaves: list[Tree] = []


async def look(at: str = "") -> str:
    return "seen"


ROME = '{"city": "Rome"}'


def final(**fields: Any) -> Any:
    return call("final_answer", **fields)


class Scene:
    """A scripted run with a type."""

    def __init__(self, *steps: Any, functions: Any = (look,), api: Any = "chat", **fields: Any) -> None:
        self.model = ScriptedModel(steps, api=api)
        self.swarm = AsyncSwarm(self.model.client())
        self.agent = Agent(name="A", functions=list(functions), **fields)

    async def run(self, **options: Any) -> Response:
        response = await self.swarm.run(self.agent, "Go", **options)
        check_history(response.messages, allow_open=response.stop != "answer")
        return response

    @property
    def bodies(self) -> list[dict[str, Any]]:
        for request in self.model.requests:
            form = request.body.get("response_format") or (request.body.get("text") or {}).get("format")
            assert not (request.tool_names and form), "both in one request"
        return [request.body for request in self.model.requests]


def told(response: Response) -> list[str]:
    """What the model was told: answers to calls, and messages of the user."""
    return [each["content"] for each in response.messages if each["role"] in ("tool", "user")]


# --- without functions ------------------------------------------------------------------------------------------------


async def test_an_agent_without_functions_is_held_to_the_schema() -> None:
    """The request has a json_schema and no tools; the text of the answer is read as the type."""
    scene = Scene(ROME, functions=())
    response = await scene.run(output=Trip)
    assert response.output == Trip(city="Rome")
    (body,) = scene.bodies
    form = body["response_format"]["json_schema"]
    assert (form["name"], form["strict"], form["schema"]["required"]) == ("Trip", False, ["city"])
    assert "title" not in json.dumps(form["schema"])
    assert form["schema"]["additionalProperties"] is False


class Named(BaseModel):
    """Names and values that look like keywords."""

    properties: Literal["properties"] = "properties"
    trips: list[Trip] = Field([], examples=[{"properties": {}}])


async def test_objects_of_a_schema_are_closed() -> None:
    """A server that holds a model to an open schema lets it invent properties; names and values stay as they are."""
    scene = Scene("{}", functions=())
    assert (await scene.run(output=Named)).output == Named()
    schema = scene.bodies[0]["response_format"]["json_schema"]["schema"]
    assert [schema["additionalProperties"], schema["$defs"]["Trip"]["additionalProperties"]] == [False, False]
    assert schema["properties"]["properties"] == {
        "const": "properties", "default": "properties", "type": "string"}  # fmt: skip
    assert schema["properties"]["trips"]["examples"] == [{"properties": {}}]


class Optional(BaseModel):
    """All fields have defaults."""

    city: str = "Rome"


async def test_an_empty_text_is_no_answer() -> None:
    """Also if all fields have defaults: the model has said nothing. A call of `final_answer` without arguments has."""
    scene = Scene("", ROME, functions=())
    assert (await scene.run(output=Optional)).output == Optional()
    assert len(scene.model.requests) == 2
    assert (await Scene(call("final_answer", "")).run(output=Optional)).output == Optional()


def test_a_type_is_described_once_for_any_check() -> None:
    """A check that a request makes anew costs no new schema; the retries are no part of the type either."""
    made = [answer_type(Output(Trip, retries=number, check=lambda trip: trip)) for number in range(3)]
    assert made[0] is made[1] is made[2]
    assert answer_type(Output(Trip, strict=True)) is not made[0]
    assert [answer_type(Output(given)).name for given in (Trip, list[int], int)] == ["Trip", "list[int]", "int"]


# --- the last completion of a budget ----------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_the_last_completion_may_give_the_answer(api: Any) -> None:
    """It has `final_answer` alone, so that the model can give nothing else; the run is still one that a budget ended."""
    scene = Scene(call("look"), final(city="Rome"), api=api)
    response = await scene.run(output=Trip, budget=Budget(turns=1, then="answer"))
    assert (response.stop, response.output) == ("budget", Trip(city="Rome"))
    assert scene.model.requests[-1].tool_names == ["final_answer"]
    assert scene.bodies[-1]["tool_choice"] == "required"


@pytest.mark.parametrize("mode", ["schema", "prompt"])
async def test_the_last_completion_may_give_the_answer_as_text(mode: Any) -> None:
    """An attempt that the budget does not admit any more is the last one."""
    usage = {"prompt_tokens": 60, "completion_tokens": 40, "total_tokens": 100}
    scene = Scene(ScriptedAnswer("no", usage=usage), ROME, functions=())
    response = await scene.run(output=Output(Trip, mode=mode), budget=Budget(tokens=10, then="answer"))
    assert (response.stop, response.output) == ("budget", Trip(city="Rome"))


@pytest.mark.parametrize("last", ["It is Rome.", final(town="Rome")], ids=["text", "call"])
@pytest.mark.parametrize("retries", [0, 1])
async def test_a_last_completion_without_an_answer(last: Any, retries: int) -> None:
    """The run ends as a budget ends it: no error, and no message that asks for another attempt."""
    scene = Scene(call("look"), last)
    response = await scene.run(output=Output(Trip, retries=retries), budget=Budget(turns=1, then="answer"))
    assert (response.stop, response.spent) == ("budget", "turns")
    assert not [message for message in response.messages if message["role"] == "user"]
    with pytest.raises(OutputError, match="stopped before it had an answer: its budget was used up"):
        _ = response.output


async def test_a_correction_that_is_not_sent_is_not_recorded() -> None:
    """max_turns ends the run: the history has no message that no model has read."""
    scene = Scene("It is Rome.")
    response = await scene.run(output=Trip, max_turns=1)
    assert (response.stop, [message["role"] for message in response.messages]) == ("max_turns", ["assistant"])


# --- over the Responses API -------------------------------------------------------------------------------------------


async def test_the_schema_over_the_responses_api() -> None:
    """It is `text.format` there."""
    scene = Scene(ROME, functions=(), api="responses")
    assert (await scene.run(output=Trip)).output == Trip(city="Rome")
    assert scene.bodies[0]["text"]["format"]["name"] == "Trip"


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (list[Trip], '{"value": [{"city": "Rome"}]}', [Trip(city="Rome")]),
        (list[int], "[1, 2]", [1, 2]),
        (int, '{"value": 7}', 7),
        (Literal["a", "b"], '{"value": "b"}', "b"),
        (Trip | Hotel, '{"value": {"name": "Ritz"}}', Hotel(name="Ritz")),
        (dict[str, int], '{"value": 7}', {"value": 7}),
        (Point, '{"x": 1, "y": 2}', Point(1, 2)),
        (Tree, '{"value": {"leaves": [{}]}}', Tree(leaves=[Tree()])),
        (Annotated[int, Field(gt=3)], "4", 4),
        (Annotated[int, ["cannot be hashed"]], "4", 4),
        (Trip, f"```json\n{ROME}\n```", Trip(city="Rome")),
        (bool | None, '{"value": null}', None),
        (str, "plain", "plain"),
    ],
    ids=str,
)
async def test_types_of_every_kind(kind: Any, text: str, value: object) -> None:
    """What is no object is wrapped in one for the model; the bare value is read too, and a code block around it."""
    scene = Scene(text, functions=())
    assert (await scene.run(output=kind)).output == value
    schema = scene.bodies[0].get("response_format", {}).get("json_schema", {}).get("schema", {"type": "object"})
    assert schema["type"] == "object"


async def test_a_wrong_answer_is_asked_for_again() -> None:
    """The model is told pydantic's lines in a message of the user; `output` is that of the last answer."""
    scene = Scene('{"days": "x"}', ROME, functions=())
    response = await scene.run(output=Trip)
    assert response.output == Trip(city="Rome")
    (text,) = told(response)
    assert "city: Field required" in text
    assert "days: Input should be a valid integer" in text
    assert scene.model.requests[1].messages[-2:] == [
        {"role": "assistant", "content": '{"days": "x"}'},
        {"role": "user", "content": text},
    ]


@pytest.mark.parametrize("retries", [0, 1, 3])
async def test_the_attempts_are_counted(retries: int) -> None:
    """After so many retries the run ends with an OutputError that has all attempts and the last fault."""
    scene = Scene(*["no"] * 9, functions=())
    with pytest.raises(OutputError, match=f"asked again {retries} times.*\n.*not JSON") as caught:
        await scene.run(output=Output(Trip, retries=retries))
    left = caught.value.response
    assert left is not None
    assert (left.stop, len(scene.bodies), left.messages[-1]["content"]) == ("error", retries + 1, "no")
    check_history(left.messages)
    with pytest.raises(OutputError, match="ended with an error"):
        _ = left.output


async def test_a_check_of_the_user() -> None:
    """The text of its ValueError is told; a text alone can be checked too; another exception ends the run."""

    def short(value: Any) -> None:
        if len(str(getattr(value, "city", value))) > 4:
            raise ValueError("at most 4 letters")

    scene = Scene('{"city": "Naples"}', ROME, functions=())
    response = await scene.run(output=Output(Trip, check=short))
    assert (response.output.city, "at most 4 letters" in told(response)[0]) == ("Rome", True)
    assert (await Scene("Naples", "Rome").run(output=Output(str, check=short))).output == "Rome"

    def silent(value: Trip) -> None:
        raise ValueError

    with pytest.raises(OutputError, match="the answer was refused"):
        await Scene(ROME, functions=()).run(output=Output(Trip, retries=0, check=silent))


async def test_a_refusal_is_no_answer_and_is_not_asked_again() -> None:
    """The run ends as without a type; `output` says that the model refused."""
    step = ScriptedAnswer(extra={"refusal": "I must not."})
    response = await Scene(step, functions=()).run(output=Trip)
    assert response.stop == "answer"
    with pytest.raises(OutputError, match="refused to answer: I must not"):
        _ = response.output


# --- with functions ---------------------------------------------------------------------------------------------------


async def test_an_agent_with_functions_answers_by_a_call() -> None:
    """`final_answer` is the last function; it is not forced, nothing runs for it, and its call ends the run."""
    scene = Scene(call("look"), [final(city="Rome", days=3), call("look")])
    response = await scene.run(output=Trip)
    assert (response.output, response.stop) == (Trip(city="Rome", days=3), "answer")
    assert told(response) == ["seen", "accepted", "seen"]
    for body in scene.bodies:
        assert [each["function"]["name"] for each in body["tools"]] == ["look", "final_answer"]
        assert body["tools"][-1]["function"]["description"] == "Give the final answer. It is: A trip to a city."
        assert "tool_choice" not in body


async def test_wrong_arguments_are_a_tool_message() -> None:
    """As for any tool; after the retries the run ends with an OutputError, and its history is valid."""
    scene = Scene(final(days="x"), final(city="Rome"))
    response = await scene.run(output=Trip)
    assert told(response)[0].startswith("Error: city: Field required\ndays:")
    scene = Scene(*[final(days="x") for _ in range(5)])
    with pytest.raises(OutputError, match="city: Field required") as caught:
        await scene.run(output=Trip)
    assert len(scene.bodies) == 2
    assert caught.value.response is not None
    check_history(caught.value.response.messages)


async def test_a_plain_text_in_place_of_the_call() -> None:
    """It is the answer if it is JSON of the type; if not, the model is told to call, and the last retry forces the call."""
    assert (await Scene(ROME).run(output=Trip)).output == Trip(city="Rome")
    scene = Scene("Rome", "Rome", final(city="Rome"))
    response = await scene.run(output=Output(Trip, retries=2))
    assert told(response)[0].endswith("Call the function final_answer with your answer.")
    choices = [body.get("tool_choice") for body in scene.bodies]
    assert choices == [None, None, "required"]
    assert [request.tool_names for request in scene.model.requests][1:] == [["look", "final_answer"], ["final_answer"]]


async def test_the_first_of_two_answers_counts() -> None:
    """The second call of the same message is told so."""
    response = await Scene([final(city="Rome"), final(city="Oslo")]).run(output=Trip)
    assert (response.output.city, told(response)[1][:14]) == ("Rome", "not the answer")


async def test_text_is_an_answer_where_the_type_has_str() -> None:
    """`Trip | str`: a plain text ends the run, JSON of the other type is read, and `final_answer` is offered."""
    assert (await Scene("Where to?").run(output=Trip | str)).output == "Where to?"
    assert (await Scene(ROME).run(output=Trip | str)).output == Trip(city="Rome")
    scene = Scene(final(city="Rome"), functions=())
    assert (await scene.run(output=Trip | str)).output == Trip(city="Rome")
    assert scene.model.requests[0].tool_names == ["final_answer"]


@pytest.mark.parametrize("way", ["agent", "function"])
@pytest.mark.parametrize("first", [True, False])
async def test_a_handoff_wins_over_the_answer(way: str, first: bool) -> None:
    """The call of `final_answer` is told so, and the next agent answers; its own type counts."""
    other = Agent(name="Other", output=Hotel)

    def leave() -> Result:
        return Result(agent=other)

    calls = [call("transfer_to_other" if way == "agent" else "leave"), final(city="Rome")]
    scene = Scene(calls if first else calls[::-1], '{"name": "Ritz"}', functions=[other, leave], output=Trip)
    response = await scene.run()
    assert response.output == Hotel(name="Ritz")
    assert "not the answer: the conversation was handed over to Other" in told(response)
    assert "response_format" in scene.bodies[1]


async def test_a_type_of_the_run_holds_for_whoever_answers() -> None:
    """It wins over the types of the agents; an agent without one gets it too; an agent's own comes with a handoff."""
    other = Agent(name="Other")
    scene = Scene(call("transfer_to_other"), '{"name": "Ritz"}', functions=[other], output=Trip)
    assert (await scene.run(output=Hotel)).output == Hotel(name="Ritz")
    scene = Scene(call("transfer_to_other"), "Hi", functions=[other], output=Trip)
    response = await scene.run()
    with pytest.raises(ConfigurationError, match="the response has no output type"):
        _ = response.output
    typed = Agent(name="Typed", output=Trip)
    assert (await Scene(call("transfer_to_typed"), ROME, functions=[typed]).run()).output == Trip(city="Rome")


async def test_an_answer_beside_a_call_that_waits() -> None:
    """The run waits; the answer is not taken, the model is told so, and it answers after the decision."""
    browser = external_tool(
        name="browser", description="Opens a page.", parameters={"type": "object", "properties": {}}
    )
    scene = Scene([final(city="Rome"), call("browser", call_id="b")], final(city="Oslo"), functions=[browser])
    response = await scene.run(output=Trip)
    assert (response.stop, [each.name for each in response.waiting]) == ("waiting", ["browser"])
    with pytest.raises(OutputError, match="a call waits for a decision"):
        _ = response.output
    history = [{"role": "user", "content": "Go"}, *response.messages]
    end = await scene.swarm.run(scene.agent, history, resume={"b": "done"}, output=Trip)
    assert (end.output, told(response)) == (
        Trip(city="Oslo"),
        ["not the answer: another call has not ended; call final_answer again"],
    )
    check_history([*history, *end.messages], ordered=False)


async def test_an_open_call_of_final_answer_is_read_when_the_run_is_resumed() -> None:
    """It may come from a run that stopped before its tools; a function of the user never runs for it."""
    asked = {"role": "assistant", "content": None, "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "final_answer", "arguments": ROME}}]}  # fmt: skip
    scene = Scene()
    response = await scene.swarm.run(scene.agent, [{"role": "user", "content": "Go"}, asked], resume=True, output=Trip)
    assert (response.stop, told(response)) == ("answer", ["accepted"])


async def test_execute_tools_false_leaves_only_calls_of_functions_open() -> None:
    """An answer alone ends the run; beside an open call it is no answer."""
    response = await Scene(final(city="Rome")).run(output=Trip, execute_tools=False)
    assert (response.stop, response.output.city) == ("answer", "Rome")
    response = await Scene([final(city="Rome"), call("look")]).run(output=Trip, execute_tools=False)
    assert response.stop == "tool_calls"
    with pytest.raises(OutputError, match="execute_tools=False"):
        _ = response.output


async def test_no_code_of_the_user_sees_final_answer() -> None:
    """No middleware and no `tool_error=` is called for it; its event says that it has ended."""
    seen: list[str] = []

    def watch(handlers: Any) -> Any:
        from dataclasses import replace

        async def call_tool(made: Any, context: Any, started: Any) -> Any:
            seen.append(made.name)
            return await handlers.call_tool(made, context, started)

        return replace(handlers, call_tool=call_tool)

    model = ScriptedModel([[call("look"), final()], final(city="Rome")])
    swarm = AsyncSwarm(model.client(), middleware=[watch], tool_error=lambda failure: seen.append("hook") or "")
    async with swarm.stream(Agent(functions=[look]), "Go", output=Trip) as run:
        ended = [(event.name, event.error is None) async for event in run if isinstance(event, ToolCallFinished)]
    assert seen == ["look"]
    assert sorted(ended) == [("final_answer", False), ("final_answer", True), ("look", True)]
    assert run.response.output == Trip(city="Rome")


async def test_turns_may_end_before_the_answer() -> None:
    """`max_turns` counts the attempts; `output` says why the run stopped."""
    response = await Scene("no", "no").run(output=Output(Trip, retries=5), max_turns=1)
    assert response.stop == "max_turns"
    with pytest.raises(OutputError, match="max_turns") as caught:
        _ = response.output
    assert caught.value.response is response


# --- the other modes --------------------------------------------------------------------------------------------------


async def test_the_prompt_mode() -> None:
    """The schema stands in the instructions; `json_object` is only sent without functions."""
    scene = Scene(ROME, functions=())
    assert (await scene.run(output=Output(Trip, mode="prompt"))).output == Trip(city="Rome")
    (body,) = scene.bodies
    assert body["response_format"] == {"type": "json_object"}
    assert body["messages"][0]["content"].startswith("You are a helpful agent.\n\nWrite your final answer as JSON")
    scene = Scene(call("look"), ROME, instructions=None)
    await scene.run(output=Output(Trip, mode="prompt"))
    assert [body["messages"][0]["role"] for body in scene.bodies] == ["system", "system"]
    scene = Scene("Hm", functions=(), instructions=lambda: [{"type": "text", "text": "Be kind."}])
    assert (await scene.run(output=Output(Trip | str, mode="prompt"))).output == "Hm"
    (body,) = scene.bodies
    assert [part["text"][:8] for part in body["messages"][0]["content"]] == ["Be kind.", "Write yo"]
    assert "response_format" not in body


async def test_the_strict_schema() -> None:
    """All properties are required, in both modes; null is then the default of a property that has one."""
    scene = Scene('{"city": "Rome", "days": null}', functions=())
    assert (await scene.run(output=Output(Trip, strict=True))).output == Trip(city="Rome")
    form = scene.bodies[0]["response_format"]["json_schema"]
    assert (form["strict"], form["schema"]["required"], form["schema"]["additionalProperties"]) == (
        True, ["city", "days"], False)  # fmt: skip
    scene = Scene(final(city="Rome", days=None))
    assert (await scene.run(output=Output(Trip, strict=True))).output == Trip(city="Rome")
    assert scene.bodies[0]["tools"][-1]["function"]["strict"] is True


def as_deepseek(request: Request) -> Any:
    """It refuses a json_schema."""
    if request.body.get("response_format", {}).get("type") == "json_schema":
        return Failure(400, "This response_format type is unavailable now")
    return final(city="Rome") if request.tool_names else ROME


@pytest.mark.parametrize("mode", ["prompt", "tool"])
async def test_a_server_that_refuses_schemas(mode: Any) -> None:
    """As DeepSeek does: `mode="prompt"` and `mode="tool"` work there, "auto" is refused."""
    swarm = AsyncSwarm(ScriptedModel(as_deepseek).client())
    with pytest.raises(Exception, match="response_format type is unavailable"):
        await swarm.run(Agent(), "Go", output=Trip)
    assert (await swarm.run(Agent(), "Go", output=Output(Trip, mode=mode))).output == Trip(city="Rome")


@pytest.mark.parametrize("mode", ["auto", "tool", "prompt"])
async def test_a_server_that_suppresses_calls_beside_a_schema(mode: Any) -> None:
    """As vLLM does: the function is called nevertheless, because no request has both."""

    def answer(request: Request) -> Any:
        if request.body.get("response_format"):
            return ROME
        if request.messages[-1]["role"] == "user":
            return call("look")
        return final(city="Rome") if "final_answer" in request.tool_names else ROME

    model = ScriptedModel(answer)
    response = await AsyncSwarm(model.client()).run(Agent(functions=[look]), "Go", output=Output(Trip, mode=mode))
    assert (response.output, "seen" in told(response)) == (Trip(city="Rome"), True)


# --- what cannot be used ----------------------------------------------------------------------------------------------


class Odd:
    pass


@tool(name="final_answer")
async def mine() -> str:
    return ""


@pytest.mark.parametrize(
    ("output", "fields", "text"),
    [
        (Odd, {}, "cannot be described"),
        (7, {}, "must be a type"),
        ("Trip", {}, "must be a type"),
        (look, {}, "must be a type"),
        (Output(dict[str, int], strict=True), {}, "cannot be used with strict=True"),
        (Output(Any, strict=True), {"functions": [look]}, "cannot be used with strict=True"),
        (Trip, {"functions": [mine]}, "has a function named 'final_answer'"),
        (
            Trip,
            {"model_settings": {"tools": [{"type": "function", "function": {"name": "final_answer"}}]}},
            "has a function named",
        ),
        (Trip, {"model_settings": {"response_format": {"type": "json_object"}}}, "remove one of the two"),
        (Trip, {"model_settings": {"text": {"format": {"type": "text"}}}}, "remove one of the two"),
        (Output(Trip, mode="schema"), {"functions": [look]}, "which has functions"),
        (Output(Trip, mode="schema"), {"model_settings": {"tools": [{"type": "web_search"}]}}, "which has functions"),
        (Output(Trip | str, mode="schema"), {}, "allows no plain text"),
    ],
)
@pytest.mark.parametrize("place", ["run", "agent"])
async def test_what_cannot_be_used_is_an_error_before_any_request(
    output: Any, fields: Any, text: str, place: str
) -> None:
    """The text says what is wrong; nothing is sent."""
    model = ScriptedModel(["Hi"])
    agent = Agent(**fields, output=output if place == "agent" else None)
    with pytest.raises(ConfigurationError, match=text):
        await AsyncSwarm(model.client()).run(agent, "Go", output=output if place == "run" else None)
    assert not model.requests


@pytest.mark.parametrize(
    "options", [{"mode": "json"}, {"retries": -1}, {"retries": True}, {"check": 7}, {"check": look}]
)
def test_an_output_with_a_wrong_option(options: Any) -> None:
    """Each is a ConfigurationError where the Output is made."""
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        Output(Trip, **options)


def test_a_function_of_ones_own_may_have_the_name() -> None:
    """Without a type, `final_answer` is a name as any other."""
    assert Agent(functions=[mine]).output is None


SCHEMA = Output(Trip, mode="schema")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("url", ["https://api.openai.com/v1", "https://eu.api.openai.com/v1"], ids=["one", "region"])
async def test_openai_takes_the_schema_beside_functions(url: str, stream: bool) -> None:
    """Over the Responses API on its own hosts: the functions run, and the text of the answer is held to the schema."""
    model = ScriptedModel([call("look"), "Rome", ROME], api="responses")
    swarm, agent = AsyncSwarm(model.client(base_url=url)), Agent(functions=[look])
    if stream:
        async with swarm.stream(agent, "Go", output=SCHEMA) as run:
            _ = [event async for event in run]
        response = run.response
    else:
        response = await swarm.run(agent, "Go", output=SCHEMA)
    assert response.output == Trip(city="Rome")
    for request in model.requests:
        assert (request.tool_names, request.body["text"]["format"]["name"]) == (["look"], "Trip")
    assert told(response)[0] == "seen"
    assert "Answer again." in told(response)[1]


@pytest.mark.parametrize(
    ("url", "api"),
    [
        ("https://api.openai.com/v1", "chat"),
        ("https://mine.openai.azure.com/openai/v1", "auto"),
        ("http://127.0.0.1:8080/v1", "responses"),
        ("http://127.0.0.1:8080/v1", "auto"),
        ("https://api.openai.com.evil.test/v1", "responses"),
    ],
    ids=["Chat Completions", "Azure", "another host", "another server", "a similar host"],
)
async def test_no_other_server_gets_a_schema_beside_functions(url: str, api: Any) -> None:
    """The run ends with the ConfigurationError before anything is sent."""
    model = ScriptedModel([])
    with pytest.raises(ConfigurationError, match="which has functions"):
        await AsyncSwarm(model.client(base_url=url), api=api).run(Agent(functions=[look]), "Go", output=SCHEMA)
    assert not model.requests


async def test_an_alternative_on_another_host_gets_no_schema_beside_functions() -> None:
    """The request was made for OpenAI, and the other server would suppress the calls."""
    first, other = ScriptedModel([Failure(503)], api="responses"), ScriptedModel([])
    swarm = AsyncSwarm(first.client(), middleware=[fallback(other.client())])
    with pytest.raises(ConfigurationError, match="which has functions"):
        await swarm.run(Agent(functions=[look]), "Go", output=SCHEMA)
    assert (len(first.requests), len(other.requests)) == (1, 0)


# --- the response -----------------------------------------------------------------------------------------------------


async def test_the_type_is_in_no_dump_and_does_not_count_for_equality() -> None:
    """Copies and pickles know it; the dumps are those of a run without a type."""
    response = await Scene(ROME, functions=()).run(output=Trip)
    same = Response(**dict(response))
    assert same == response
    assert "output" not in response.model_dump()
    for copied in (response.model_copy(), copy.deepcopy(response), pickle.loads(pickle.dumps(response))):
        assert copied.output == Trip(city="Rome")


async def test_a_response_of_stored_messages() -> None:
    """`Response[Trip]` knows the type; so does one with an agent that has it."""
    by_text = await Scene(ROME, functions=()).run(output=Trip)
    by_call = await Scene(final(city="Rome")).run(output=Trip)
    for made in (by_text, by_call):
        stored = json.loads(json.dumps(made.messages))
        assert Response[Trip](messages=stored).output == Trip(city="Rome")
        assert Response(messages=stored, agent=Agent(output=Trip)).output == Trip(city="Rome")
    with pytest.raises(OutputError, match="of the type Hotel:\nname: Field required"):
        _ = Response[Hotel](messages=by_text.messages).output
    with pytest.raises(OutputError, match="no message is from the assistant"):
        _ = Response[Trip]().output
    with pytest.raises(OutputError, match="no accepted final_answer"):
        _ = Response[Trip](messages=by_call.messages[:1]).output


# --- while it is written ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "kind", "seen"),
    [
        (ROME, Trip, [{}, {"city": ""}, {"city": "Ro"}, {"city": "Rome"}]),
        (final(city="Rome"), Trip | str, [{}, {"city": "Rome"}]),
        ('{"value": [1, 2]}', list[int], [[1], [1, 2]]),
        ("Hello", str, ["Hell", "Hello"]),
        ("Hello", Trip | str, ["Hell", "Hello"]),
        ("Hello", Trip, [None]),
        ('{"city": "Rome 66", "days": 12}', Trip, [{"city": "Rome 66"}, {"city": "Rome 66", "days": 12}]),
        ('{"value": 12}', int, [None, 12]),
        ("12", int, [None, 12]),
        ("3 days in Rome", Trip | str, ["3 da", "3 days in Rome"]),
    ],
    ids=str,
)
async def test_the_answer_while_it_is_written(step: Any, kind: Any, seen: list[Any]) -> None:
    """`partial_output` is plain data, parsed on demand; there is none before a completion, and it stays after one."""
    model = ScriptedModel([step], cut=2)
    found: list[Any] = []
    async with AsyncSwarm(model.client()).stream(Agent(), "Go", output=Output(kind, retries=0)) as run:
        assert run.partial_output is None
        with suppress(OutputError):
            async for _ in run:
                found += [copy.deepcopy(run.partial_output)]
    assert all(value in found for value in seen), found
    assert run.partial_output == seen[-1]
    async with AsyncSwarm(ScriptedModel(["Hi"]).client()).stream(Agent(), "Go") as run:
        assert {run.partial_output async for _ in run} == {None}


@pytest.mark.parametrize("value", [1.5, -12, 1e30, 100, [10, -2.5e-7, 33], {"a": 12}], ids=str)
async def test_no_number_is_shown_before_it_is_finished(value: Any) -> None:
    """`1` would become nothing with `1.`, and then another number; digits in a text are shown at once."""
    model = ScriptedModel([json.dumps({"a": "1.5e", "b": value, "c": '\\"4'})], cut=1)
    found: list[Any] = []
    async with AsyncSwarm(model.client()).stream(Agent(), "Go", output=Output(dict[str, Any], mode="prompt")) as run:
        async for _ in run:
            if run.partial_output not in found:
                found += [copy.deepcopy(run.partial_output)]
    assert [shown["a"] for shown in found[2:8]] == ["", "1", "1.", "1.5", "1.5e", "1.5e"]
    assert [shown["c"] for shown in found[-4:]] == ["", "\\", '\\"', '\\"4']
    for shown in (shown["b"] for shown in found if shown and "b" in shown):
        if not isinstance(value, list | dict):
            assert shown == value
        elif isinstance(value, dict):
            assert shown in ({}, value)
        else:
            assert shown == value[: len(shown)]


async def test_what_was_written_stays_until_the_next_completion_begins() -> None:
    """Also where the next agent answers with another type, or with none."""
    hotel = Agent(name="Hotel", output=Hotel)
    model = ScriptedModel([ScriptedAnswer(ROME, [call("transfer_to_hotel")]), '{"name": "Astoria"}'], cut=2)
    trip = Agent(name="Trip", output=Output(Trip, mode="prompt"), functions=[hotel])
    found: list[Any] = []
    async with AsyncSwarm(model.client()).stream(trip, "Go") as run:
        found += [(type(event).__name__, copy.deepcopy(run.partial_output)) async for event in run]
    assert ("CompletionFinished", {"city": "Rome"}) in found
    after = found.index(("HandedOff", {"city": "Rome"}))
    assert found[after + 1] == ("TurnStarted", {"city": "Rome"})
    assert {"city": "Rome"} not in [shown for _, shown in found[after + 2 :]]
    assert found[-1] == ("RunFinished", {"name": "Astoria"})


@pytest.mark.parametrize(
    ("mode", "step", "functions"),
    [
        ("schema", ROME, ()),
        ("prompt", ROME, ()),
        ("tool", final(city="Rome"), ()),
        ("auto", final(city="Rome"), (len,)),
    ],
)
async def test_the_values_of_the_answer_come_in_every_mode(mode: Any, step: Any, functions: Any) -> None:
    """`partial_outputs` yields each new value, whether the model writes a text or the arguments of a call."""

    def look(city: str) -> str:
        return city

    agent = Agent(functions=[look] if functions else [])
    model = ScriptedModel(["Atlantis" if mode != "auto" else final(days="x"), step], cut=2)
    async with AsyncSwarm(model.client()).stream(agent, "Go", output=Output(Trip, mode=mode)) as run:
        found = [copy.deepcopy(value) async for value in run.partial_outputs()]
    assert found[-3:] in ([{"city": ""}, {"city": "Ro"}, {"city": "Rome"}], [{}, {"city": "Ro"}, {"city": "Rome"}])
    assert all(left != right for left, right in itertools.pairwise(found))
    assert run.response.output == Trip(city="Rome")


async def test_a_run_without_a_type_has_no_values_and_reading_may_stop() -> None:
    """The loop over the values ends with the run, and the rest of the events can be read after a `break`."""
    async with AsyncSwarm(ScriptedModel(["Hi"]).client()).stream(Agent(), "Go") as run:
        assert [value async for value in run.partial_outputs()] == []
    async with AsyncSwarm(ScriptedModel([ROME], cut=2).client()).stream(Agent(), "Go", output=Trip) as run:
        async for value in run.partial_outputs():
            assert value == {}
            break
        assert type([event async for event in run][-1]).__name__ == "RunFinished"
    with pytest.raises(RuntimeError, match="async with"):
        await anext(AsyncSwarm(ScriptedModel([]).client()).stream(Agent(), "Go", output=Trip).partial_outputs())


async def test_an_accepted_answer_in_a_call_starts_no_function() -> None:
    """`final_answer` is no function: the call has a `ToolCallFinished`, and no `ToolCallStarted` before."""
    model = ScriptedModel([final(city="Rome")])
    async with AsyncSwarm(model.client()).stream(Agent(), "Go", output=Output(Trip, mode="tool")) as run:
        events = [type(event).__name__ async for event in run]
    assert ("ToolCallFinished" in events, "ToolCallStarted" in events) == (True, False)


async def test_a_fault_of_the_whole_answer_is_named_so() -> None:
    """A wrapped type has no arguments for the model."""
    scene = Scene('{"value": "many"}', '{"value": 3}', functions=())
    response = await scene.run(output=int)
    assert (response.output, "\nanswer: Input should be a valid integer" in told(response)[0]) == (3, True)


def test_swarm_has_types_too() -> None:
    """`run` and both streams take `output=`; the blocking stream has `partial_output`."""
    model = ScriptedModel([ROME] * 3)
    with Swarm(model.client()) as swarm:
        assert swarm.run(Agent(), "Go", output=Trip).output == Trip(city="Rome")
        classic = swarm.run(Agent(), "Go", stream=True, output=Trip)
        assert [event["response"].output for event in classic if "response" in event] == [Trip(city="Rome")]
        with swarm.stream(Agent(), "Go", output=Trip) as run:
            assert {"city": "Rome"} in [run.partial_output for _ in run]
        assert run.response.output == Trip(city="Rome")
    with Swarm(ScriptedModel([final(city="Rome")]).client()) as swarm:
        with swarm.stream(Agent(), "Go", output=Output(Trip, mode="tool")) as run:
            assert [*run.partial_outputs()][-1] == {"city": "Rome"}
        assert run.response.output == Trip(city="Rome")


def test_the_text_of_no_answer_is_empty() -> None:
    """As `Response.text` is."""
    assert answer_text([]) == ""
