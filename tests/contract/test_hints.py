"""Errors for names of other libraries, and for frequent mistakes: each text contains the name to use."""

from __future__ import annotations

import ast
import gc
import importlib
import sys
import types
import warnings
from typing import Any

import anyio
import pytest

import aswarm
from aswarm.conversations import MemoryStore
from aswarm.testing import ScriptedModel

# A program, and a part of the text of its exception.
MISTAKES = [
    # Names of the package.
    ("from aswarm import Runner", "aswarm has no name 'Runner'; a swarm runs agents: await AsyncSwarm().run(agent, messages)"),
    ("aswarm.Runner", "aswarm has no name 'Runner'; a swarm runs agents: await AsyncSwarm().run(agent, messages)"),
    # Old names of aswarm.
    ("from aswarm import waiting", "use open_calls(messages)"),
    ("aswarm.Answer", "use Reply"),
    # More names of the package.
    ("from aswarm import Agent, run_sync", "use Swarm().run(agent, messages)"),
    ("from aswarm import RunContextWrapper", "its parameter context_variables"),
    ("from aswarm import RunContext", "Resource[T]"),
    ("from aswarm import ModelSettings", "Agent(model_settings={...})"),
    ("from aswarm import SQLiteSession", "store.conversation(...)"),
    ("from aswarm import Session", "aswarm.conversations"),
    ("from aswarm import handoff", "Agent(functions=[...])"),
    ("from aswarm import AsyncAgent", "use Agent, with AsyncSwarm"),
    ("from aswarm import MCPServerStdio", "MCPServer(StdioServerParameters(command=...)) of aswarm.mcp and mcp"),
    ("from aswarm.tools import MCPServerStreamableHttp", "use MCPServer(url) of aswarm.mcp"),
    ("from aswarm import StopAtTools", "a call of `final_answer`; or run(execute_tools=False)"),
    ("from aswarm.tools import WebSearchTool", "Agent(model_settings={'tools': [{'type': 'web_search'}]})"),
    ("from aswarm import RunResult", "use Response"),
    ("aswarm.RunResultStreaming", "use EventStream of aswarm.extensions"),
    # Names of modules.
    ("aswarm.Handlers", "use `from aswarm.middleware import Handlers`"),
    ("from aswarm import Nothing", "cannot import name 'Nothing' from 'aswarm'"),
    ("aswarm.Nothing", "module 'aswarm' has no attribute 'Nothing'"),
    ("import aswarm.batch\naswarm.batch.Nothing", "module 'aswarm.batch' has no attribute 'Nothing'"),
    ("from aswarm.batch import Outcome", "aswarm.batch has no name 'Outcome'; use BatchResult"),
    # A name of another module of aswarm, which is not imported: the module may need an extra.
    ("from aswarm import Agent, SQLiteStore", "aswarm has no name 'SQLiteStore'; use `from aswarm.conversations import SQLiteStore`"),
    ("aswarm.DurableRuns", "use `from aswarm.durable import DurableRuns`"),
    ("from aswarm.serve import LocalRuns", "aswarm.serve has no name 'LocalRuns'; use `from aswarm.runs import LocalRuns`"),
    ("import aswarm.types\naswarm.types.nothing", "module 'aswarm.types' has no attribute 'nothing'"),
    # Names of pydantic-ai.
    ("from aswarm.testing import TestModel", "use ScriptedModel of aswarm.testing"),
    ("from aswarm import BinaryContent", "Image(...).part"),
    ("Agent(deps_type=dict)", "it is ignored; a function gets data from its parameter context_variables"),
    ("Agent(retries=3)", "it is ignored; pass Agent(output=Output(Type, retries=...))"),
    ("AsyncSwarm(model=ScriptedModel(['Hi']))", "model must be the name of a model, not ScriptedModel; pass a client, or a model"),
    ("Agent(model=ScriptedModel(['Hi']))", "model must be the name of a model, not ScriptedModel"),
    ("await swarm.run(Agent(), 'Hi', output=[int, str])", "or a union A | B, or an Output, not [<class 'int'>, <class 'str'>]"),
    ("swarm.run(Agent(), 'Hi', usage=1)", "SharedBudget(...)"),
    ("aswarm.Response(messages=[]).interruptions", "the calls that wait for a decision are `response.waiting`"),
    ("aswarm.Response(messages=[]).price", "the cost in dollars is `response.cost`"),
    # Agents.
    ("Agent('openai:gpt-5')", "Agent() takes 1 positional argument but 2 were given; pass keywords: Agent(name=..., model=..."),
    ("Agent().run('Hi')", "Agent has no attribute 'run'; a swarm runs agents: await AsyncSwarm().run(agent, messages)"),
    ("Agent().run_sync('Hi')", "use Swarm().run(agent, messages)"),
    ("@Agent().tool\ndef look_up(): ...", "pass functions as Agent(functions=[...])"),
    ("Agent().nothing", "'Agent' object has no attribute 'nothing'"),
    ("Agent(functions='look_up')", "functions of an Agent must be a list, not str; write functions=[...]"),
    ("def look_up(): ...\nAgent(functions=look_up)", "must be a list, not function; write functions=[...]"),
    ("Agent(functions=Agent(name='Orders'))", "must be a list, not Agent; write functions=[...]"),
    ("Agent(input_guardrails=[])", "use aswarm.guards"),
    ("Agent(output_guardrails=[])", "AsyncSwarm(middleware=[guard_answer(check)])"),
    ("Agent(hooks=None)", "pass AsyncSwarm(middleware=[...]), or read the events of stream()"),
    ("agent_tool(Agent(), tool_name='ask')", "agent_tool() got an unexpected keyword argument 'tool_name'; use name=..."),
    ("Result('Done.', Agent())", "Result() takes 1 positional argument but 3 were given; pass keywords: Result(value=..., agent="),
    ("Agent(temperature=0)", "it is ignored; pass it as Agent(model_settings={'temperature': ...})"),
    # Swarms.
    ("AsyncSwarm(api_key='x')", "AsyncSwarm() got an unexpected keyword argument 'api_key'; pass it to the client: AsyncSwarm("),
    ("AsyncSwarm(base_url='x')", "AsyncSwarm(AsyncOpenAI(base_url=...))"),
    ("Swarm(base_url='x')", "; pass it to the client: Swarm(OpenAI(base_url=...))"),
    ("AsyncSwarm(nothing=1)", "AsyncSwarm.__init__() got an unexpected keyword argument 'nothing'"),
    ("AsyncSwarm('gpt-6-luna')", "or be a CompletionSource; got str; a model is AsyncSwarm(model=...)"),
    ("AsyncSwarm(resources=1)", "resources"),
    ("AsyncSwarm().run_sync(Agent(), 'Hi')", "use Swarm().run(agent, messages)"),
    ("AsyncSwarm().nothing", "'AsyncSwarm' object has no attribute 'nothing'"),
    ("swarm.run(Agent(), 'Hi', temperature=0)", "run() got an unexpected keyword argument 'temperature'; pass it as Agent(model_s"),
    ("Swarm(swarm.client).run(Agent(), 'Hi', deps=1)", "clients and connections as resources={...}"),
    ("swarm.stream(Agent(), 'Hi', max_tokens=9)", "Agent(model_settings={'max_tokens': ...})"),
    # Limits.
    ("Budget(max_tokens=5)", "Budget() got an unexpected keyword argument 'max_tokens'; use tokens=..."),
    ("Budget(request_limit=5)", "use turns=..."),
    ("SharedBudget(max_tokens=5)", "SharedBudget() got an unexpected keyword argument 'max_tokens'; use tokens=..."),
    ("Output(int, validator=print)", "Output() got an unexpected keyword argument 'validator'; use check=..."),
    ("RateLimits(rpm=60)", "use requests_per_minute=..."),
    ("RateLimits(tpm=60)", "use tokens_per_minute=..."),
    # Tools.
    ("from aswarm.tools import function_tool\n@function_tool\ndef look_up(): ...", "@tool makes it from the hints of the function"),
    ("@tool(needs_approval=True)\ndef delete(): ...", "pass approve=True"),
    # A call or a list that is missing.
    ("from aswarm.tools import tool_search\nawait swarm.run(Agent(functions=[tool_search]), 'Hi')", "call it: tool_search()"),
    ("from aswarm.tools import agent_tool\nawait swarm.run(Agent(functions=[agent_tool]), 'Hi')", "call it: agent_tool(agent)"),
    ("from aswarm.mcp import MCPServer\nawait swarm.run(Agent(functions=[MCPServer('http://x')]), 'Hi')", "functions=[*server.functions]"),
    ("await swarm.run(Agent(functions=[[print]]), 'Hi')", "unpack it: functions=[*functions]"),
    ("await swarm.run(Agent(functions=[7]), 'Hi')", "pass a callable, a tool made by @tool, or an Agent"),
    ("from aswarm.skills import Skills\nawait swarm.run(Agent(functions=[Skills({})]), 'Hi')", "; call its method add_to(agent)"),
    (
        "from aswarm.mcp import MCPServer, resource_functions\nresource_functions([MCPServer('http://x')])",
        """with the URIs of each server, not list; write resource_functions({server: ["docs://handbook/"]})""",
    ),
    ("from aswarm.middleware import spill_results\nAsyncSwarm(middleware=[spill_results])", "write middleware=[spill_results()]"),
    ("from aswarm.guards import guard_input\nAsyncSwarm(middleware=[guard_input])", "write middleware=[guard_input(check)]"),
    ("import aswarm.events\naswarm.events.ToolCallFinished(1, '', '', '', None, False).result", "is `event.content`"),
    # Async objects.
    ("for event in swarm.run(Agent(), 'Hi', stream=True): ...", "ClassicStream needs `async for` instead of `for`"),
    ("for event in swarm.stream(Agent(), 'Hi'): ...", "EventStream needs `async for` instead of `for`"),
    ("with swarm.stream(Agent(), 'Hi'): ...", "EventStream needs `async with` instead of `with`"),
    ("with AsyncSwarm(): ...", "AsyncSwarm needs `async with` instead of `with`"),
    ("with swarm.batch(Agent(), []): ...", "Batch needs `async with` instead of `with`"),
    ("await swarm.stream(Agent(), 'Hi')", "EventStream needs `async with` instead of `await`"),
    ("await AsyncSwarm()", "AsyncSwarm needs `async with` instead of `await`"),
    ("await swarm.batch(Agent(), [])", "Batch needs `async with` instead of `await`"),
    ("swarm.stream(Agent(), 'Hi').stream_events()", "the run itself yields its events: async for event in run"),
    ("swarm.run_and_stream(Agent(), 'Hi').nothing", "'ClassicStream' object has no attribute 'nothing'"),
    ("async def handle(): Swarm(swarm.client).run(Agent(), 'Hi')\nawait handle()", "use AsyncSwarm: `await swarm.run(...)`"),
    ("other = AsyncSwarm()\nawait other.aclose()\nawait other.run(Agent(), 'Hi')", "this AsyncSwarm is closed; run inside its"),
    # Context variables and instructions.
    ("class Shop: ...\nawait swarm.run(Agent(), 'Hi', Shop())", "must be a dict, not Shop; pass a dict, and a function with the p"),
    ("await swarm.run(Agent(), 'Hi', [('points', 7)])", "context_variables must be a dict, not list"),
    (
        "def prompt(context, agent): ...\nawait swarm.run(Agent(instructions=prompt), 'Hi')",
        "the instructions of 'Agent' cannot be called: missing a required argument: 'agent'; their function takes `context_variab",
    ),
    (
        "async def prompt(*, context_variables, agent): ...\nawait swarm.run(Agent(instructions=prompt), 'Hi')",
        "missing a required argument: 'agent'; their function takes `context_variables`, and parameters with the hint Resource[",
    ),
    (
        "def prompt(*, agent): ...\nawait swarm.run(Agent(instructions=prompt), 'Hi')",
        "the instructions of 'Agent' cannot be called: missing a required ",
    ),
    # Values and histories.
    ("await swarm.run(Agent(), ['Hi'])", """expected a dict with a role, got 'Hi'; write {"role": "user", "content": ...}"""),
    ("await swarm.run(Agent(), [{'role': 'user', 'content': ['Hi']}])", """the content part 'Hi'; write {"type": "text", "text": ...}"""),
    ("await swarm.run(Agent(), [{'role': 'user', 'content': [aswarm.Image(b'x')]}])", "; write Image(...).part"),
    (
        "class Database: ...\ndef count(db: Database) -> int: ...\nawait swarm.run(Agent(functions=[count]), 'Hi')",
        "the model is asked for a string; if the program has the value, write Resource[Database], and pass resources={...}",
    ),
    (
        "class Database: ...\nawait MemoryStore().conversation('a', swarm, agent=Agent()).run('Hi', {'db': Database()})",
        "pass a client or a connection as resources={...}: a parameter with the hint Resource[T] gets it",
    ),
    (
        """
import enum
Priority = enum.StrEnum('Priority', 'HIGH')
await MemoryStore().conversation('a', swarm, agent=Agent()).run('Hi', {'priority': Priority.HIGH})""",
        "use its JSON form, which pydantic_core.to_jsonable_python(value) returns",
    ),
    (
        """
call = {'id': 'c1', 'type': 'function', 'function': {'name': 'look_up', 'arguments': '{}'}}
await swarm.run(Agent(), [{'role': 'assistant', 'tool_calls': [call]}])""",
        "messages end with open calls ('c1'). Pass resume={'c1': True} with your decisions",
    ),
]  # fmt: skip
WORDS = 40


def run_to_end(coroutine: Any) -> None:
    """Run the coroutine of a program that awaits."""

    async def program() -> None:
        await coroutine

    if coroutine is not None:
        anyio.run(program)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("program", "expected"), MISTAKES, ids=[program for program, _ in MISTAKES])
def test_a_mistake_has_an_error_that_contains_the_name_to_use(program: str, expected: str) -> None:
    names = {
        **vars(aswarm),
        "aswarm": aswarm,
        "MemoryStore": MemoryStore,
        "ScriptedModel": ScriptedModel,
        "__name__": __name__,
    }
    names["swarm"] = aswarm.AsyncSwarm(client=ScriptedModel([]).client())
    code = compile(program, "program", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    with pytest.raises((AttributeError, ImportError, TypeError, UserWarning, aswarm.ConfigurationError)) as caught:
        run_to_end(eval(code, names))
    text = str(caught.value)
    assert expected in text
    assert "Nothing" in text or "nothing" in text or len(text.split()) <= WORDS


@pytest.mark.parametrize("name", ["run_sync", "run", "nothing"])
def test_a_foreign_attribute_is_missing_for_hasattr(name: str) -> None:
    """`hasattr` and `getattr` with a default do not raise."""
    assert not hasattr(aswarm, "Runner")
    assert not hasattr(aswarm.Agent(), name)
    assert getattr(aswarm.Agent(), name, 7) == 7


@pytest.mark.parametrize("path", ["aswarm.otel", "aswarm.testing.simulate"])
def test_a_module_with_the_name_of_an_export_can_be_imported(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`from aswarm import otel` imports the module, although the module `aswarm.otel` exports a function of this name."""
    parent, _, name = path.rpartition(".")
    package = importlib.import_module(parent)
    monkeypatch.delattr(package, name, raising=False)
    monkeypatch.delitem(sys.modules, path, raising=False)
    monkeypatch.setattr(
        importlib.import_module("aswarm._values.public_names"), "_exports", lambda: {parent: f'"{name}"'}
    )
    assert not hasattr(package, name)
    assert getattr(__import__(parent, fromlist=[name]), name).__name__ == path


def test_the_warning_about_a_forgotten_await_contains_the_public_name() -> None:
    swarm = aswarm.AsyncSwarm(client=ScriptedModel([]).client())

    async def program() -> None:
        _ = swarm.run(aswarm.Agent(), "Hi")
        del _
        gc.collect()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        anyio.run(program)
    assert str(caught[0].message) == "coroutine 'AsyncSwarm.run' was never awaited"


@pytest.mark.filterwarnings("error")
async def test_a_blocking_run_on_an_event_loop_warns() -> None:
    with pytest.raises(UserWarning, match="Swarm blocks the event loop"):
        aswarm.Swarm(ScriptedModel([]).client()).run(aswarm.Agent(), "Hi")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("program", ["swarm.run(Agent(), 'Hi')", "swarm.run(Agent(), 'Hi', stream=True)"])
def test_the_code_of_a_notebook_may_block(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a notebook, the code of a cell always runs on an event loop."""
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))

    async def cell() -> Any:
        return eval(program, {"swarm": aswarm.Swarm(ScriptedModel(["Hello"]).client()), "Agent": aswarm.Agent})

    assert anyio.run(cell)
