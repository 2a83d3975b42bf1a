"""Structured output: the request for an answer of a type, the end of the run, and the retries after a wrong answer."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import dataclass, replace
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
    ToolCallFinished,
    ToolCallStarted,
    external_tool,
)
from aswarm.testing import ScriptedAnswer, ScriptedModel, call, check_history
from tests.support.run.typed_scene import ROME, Hotel, Scene, Trip, final, look, told


@dataclass
class Point:
    x: int
    y: int


class Tree(BaseModel):
    leaves: list[Tree] = []


# --- without functions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_an_agent_without_functions_gets_a_schema(api: Any) -> None:
    """The request has a json_schema and no tools; the text of the answer is read as the type."""
    scene = Scene(ROME, functions=(), api=api)
    assert (await scene.run(output=Trip)).output == Trip(city="Rome")
    (body,) = scene.bodies
    form = body["response_format"]["json_schema"] if api == "chat" else body["text"]["format"]
    assert (form["name"], form["strict"], form["schema"]["required"]) == ("Trip", False, ["city"])
    assert "title" not in json.dumps(form["schema"])
    assert form["schema"]["additionalProperties"] is False


class Named(BaseModel):
    """Names and values that look like keywords."""

    properties: Literal["properties"] = "properties"
    trips: list[Trip] = Field([], examples=[{"properties": {}}])


async def test_objects_of_a_schema_are_closed() -> None:
    """All objects of the schema are closed, so that no server lets a model invent properties; names and values stay."""
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
    """An empty text is asked for again, also if all fields have defaults; a call of `final_answer` without arguments is not."""
    scene = Scene("", ROME, functions=())
    assert (await scene.run(output=Optional)).output == Optional()
    assert len(scene.model.requests) == 2
    assert (await Scene(call("final_answer", "")).run(output=Optional)).output == Optional()


# --- the last completion of a budget ----------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_the_last_completion_may_give_the_answer(api: Any) -> None:
    """The last completion of a budget allows only `final_answer`, and the reason of the stop is the budget.

    OpenAI's own servers get all functions, because the functions are at the start of the cached prompt.
    """
    scene = Scene(call("look"), final(city="Rome"), api=api)
    response = await scene.run(output=Trip, budget=Budget(turns=1, then="answer"))
    assert (response.stop, response.output) == ("budget", Trip(city="Rome"))
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "final_answer"}]}
    assert (scene.model.requests[-1].tool_names, scene.bodies[-1]["tool_choice"]) == (
        (["final_answer"], "required") if api == "chat" else (["look", "final_answer"], allowed)
    )


@pytest.mark.parametrize("last", ["It is Rome.", final(town="Rome")], ids=["text", "call"])
@pytest.mark.parametrize("retries", [0, 1])
async def test_a_last_completion_without_an_answer(last: Any, retries: int) -> None:
    """The run ends at its budget without an error, and without a message that asks for another attempt."""
    scene = Scene(call("look"), last)
    response = await scene.run(output=Output(Trip, retries=retries), budget=Budget(turns=1, then="answer"))
    assert (response.stop, response.spent) == ("budget", "turns")
    assert not [message for message in response.messages if message["role"] == "user"]
    with pytest.raises(OutputError, match="stopped before it had an answer: its budget was used up"):
        _ = response.output


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
    """A type that is no object is wrapped in one for the model; the bare value is read too, and a code block around it."""
    scene = Scene(text, functions=())
    assert (await scene.run(output=kind)).output == value
    schema = scene.bodies[0].get("response_format", {}).get("json_schema", {}).get("schema", {"type": "object"})
    assert schema["type"] == "object"


@pytest.mark.parametrize(
    ("kind", "name", "schema_name"),
    [
        (Trip | int | None, "Trip | int | None", "Trip___int___None"),
        (list[Trip], "list[Trip]", "list_Trip_"),
        (Annotated[int, Field(ge=3)], "int", "int"),
        (Literal["a.b"], "Literal['a.b']", "Literal__a_b__"),
    ],
)
async def test_a_type_is_named_without_modules(kind: Any, name: str, schema_name: str) -> None:
    """The error and the schema for the server have the names of the classes, not the modules or the metadata of a hint."""
    scene = Scene(*["{}"] * 3, functions=())
    with pytest.raises(OutputError) as caught:
        await scene.run(output=Output(kind, retries=2))
    assert f"no answer of the type {name}, and was asked again 2 times;" in str(caught.value)
    assert scene.bodies[0]["response_format"]["json_schema"]["name"] == schema_name


async def test_a_wrong_answer_is_asked_for_again() -> None:
    """The model gets pydantic's lines in a message of the user, and `output` is the last answer."""
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


async def test_a_check_of_the_user() -> None:
    """The model gets the text of the ValueError of a check; a text alone can be checked too."""

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
    """The run ends as without a type, and `output` raises an error with the refusal."""
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


async def test_a_plain_text_in_place_of_the_call() -> None:
    """JSON of the type is the answer; for another text the model is asked to call, and the last retry forces the call."""
    assert (await Scene(ROME).run(output=Trip)).output == Trip(city="Rome")
    scene = Scene("Rome", "Rome", final(city="Rome"))
    response = await scene.run(output=Output(Trip, retries=2))
    assert told(response)[0].endswith("Call the function final_answer with your answer.")
    choices = [body.get("tool_choice") for body in scene.bodies]
    assert choices == [None, None, "required"]
    assert [request.tool_names for request in scene.model.requests][1:] == [["look", "final_answer"], ["final_answer"]]


async def test_the_first_of_two_answers_counts() -> None:
    response = await Scene([final(city="Rome"), final(city="Oslo")]).run(output=Trip)
    assert (response.output.city, told(response)[1][:14]) == ("Rome", "not the answer")


async def test_text_is_an_answer_if_the_type_has_str() -> None:
    """For `Trip | str`, a plain text ends the run, JSON of the other type is read, and `final_answer` is offered."""
    assert (await Scene("Where to?").run(output=Trip | str)).output == "Where to?"
    assert (await Scene(ROME).run(output=Trip | str)).output == Trip(city="Rome")
    scene = Scene(final(city="Rome"), functions=())
    assert (await scene.run(output=Trip | str)).output == Trip(city="Rome")
    assert scene.model.requests[0].tool_names == ["final_answer"]


@pytest.mark.parametrize("way", ["agent", "function"])
@pytest.mark.parametrize("first", [True, False])
async def test_a_handoff_wins_over_the_answer(way: str, first: bool) -> None:
    """The call of `final_answer` beside a handoff is no answer, and the next agent answers with its own type."""
    other = Agent(name="Other", output=Hotel)

    def leave() -> Result:
        return Result(agent=other)

    calls = [call("transfer_to_other" if way == "agent" else "leave"), final(city="Rome")]
    scene = Scene(calls if first else calls[::-1], '{"name": "Ritz"}', functions=[other, leave], output=Trip)
    response = await scene.run()
    assert response.output == Hotel(name="Ritz")
    assert "not the answer: the conversation was handed over to Other" in told(response)
    assert "response_format" in scene.bodies[1]


async def test_an_agent_without_a_type_has_no_partial_answer() -> None:
    """Neither after a handoff, nor after a function that clears the type beside a wrong answer."""

    def clear() -> None:
        agent.output = None

    agent = Agent(output=Trip, functions=[Agent(name="Other"), clear])
    for step in ([call("clear"), final()], call("transfer_to_other")):
        async with AsyncSwarm(ScriptedModel([step, "Hi"]).client()).stream(agent, "Go") as run:
            partial = [run.partial_output async for _ in run]
        assert partial[-1] is None
        assert run.response.text == "Hi"
        agent.output = Trip


async def test_a_type_of_the_run_holds_for_every_agent() -> None:
    """The type of the run has priority over the types of the agents; an agent's own type comes with a handoff."""
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
    """The run waits, the answer is not accepted, and the model answers again after the decision."""
    browser = external_tool(
        name="browser", description="Opens a page.", parameters={"type": "object", "properties": {}}
    )
    scene = Scene([final(city="Rome"), call("browser", call_id="b")], final(city="Oslo"), functions=[browser])
    response = await scene.run(output=Trip)
    assert (response.stop, [each.name for each in response.open_calls]) == ("waiting", ["browser"])
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
    """An open call of `final_answer` in the history is the answer of a resumed run."""
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
    """Neither a middleware nor `tool_error=` is called for it; it has a ToolCallFinished and no ToolCallStarted."""
    seen: list[str] = []

    def watch(handlers: Any) -> Any:
        async def call_tool(made: Any, context: Any, started: Any) -> Any:
            seen.append(made.name)
            return await handlers.call_tool(made, context, started)

        return replace(handlers, call_tool=call_tool)

    model = ScriptedModel([[call("look"), final()], final(city="Rome")])
    swarm = AsyncSwarm(model.client(), middleware=[watch], tool_error=lambda failure: seen.append("hook") or "")
    async with swarm.stream(Agent(functions=[look]), "Go", output=Trip) as run:
        events = [event async for event in run]
    ended = [(event.name, event.error is None) for event in events if isinstance(event, ToolCallFinished)]
    assert [event.name for event in events if isinstance(event, ToolCallStarted)] == ["look"]
    assert seen == ["look"]
    assert sorted(ended) == [("final_answer", False), ("final_answer", True), ("look", True)]
    assert run.response.output == Trip(city="Rome")


async def test_turns_may_end_before_the_answer() -> None:
    """`max_turns` counts the attempts, no unsent correction is recorded, and `output` names the reason."""
    response = await Scene("no", "no").run(output=Output(Trip, retries=5), max_turns=1)
    assert (response.stop, [message["role"] for message in response.messages]) == ("max_turns", ["assistant"])
    with pytest.raises(OutputError, match="max_turns") as caught:
        _ = response.output
    assert caught.value.response is response


# --- the response -----------------------------------------------------------------------------------------------------


async def test_the_type_is_in_no_dump_and_does_not_count_for_equality() -> None:
    """Copies and pickles keep the type, and dumps have no `output`."""
    response = await Scene(ROME, functions=()).run(output=Trip)
    same = Response(**dict(response))
    assert same == response
    assert "output" not in response.model_dump()
    for copied in (response.model_copy(), copy.deepcopy(response), pickle.loads(pickle.dumps(response))):
        assert copied.output == Trip(city="Rome")


async def test_a_response_of_stored_messages() -> None:
    """`Response[Trip]` reads stored messages as the type, and so does a response whose agent has the type."""
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
