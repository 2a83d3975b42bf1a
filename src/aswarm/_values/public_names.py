"""Public names: the package that exports each of them, and errors for names of other libraries and for old names.

So a definition can move to another module without a change in reprs, pickles and documentation. The module also warns about
names that a later version removes.

The decorators add methods that type checkers do not see. So type checkers still report an unknown name.
"""

from __future__ import annotations

import functools
import inspect
import opcode
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import FunctionType
from typing import Any, NoReturn, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def _by_name(remedies: Mapping[str, str]) -> dict[str, str]:
    """Return the remedy for each name. The keys of `remedies` are names, separated by spaces."""
    return {name: remedy for names, remedy in remedies.items() for name in names.split()}


_RUN = "a swarm runs agents: await AsyncSwarm().run(agent, messages)"
_RUN_BLOCKING = "without await, use Swarm().run(agent, messages)"
_STREAM = "use async with AsyncSwarm().stream(agent, messages) as run"
_FUNCTIONS = "pass functions, and agents to hand off to, as functions=[...]"
_INSTRUCTIONS = "pass it as instructions=..."
_MESSAGES = "pass the earlier messages and the new one as messages=[...]"
_CONTEXT = "pass a dict as context_variables=..."
_OUTPUT = "pass the type of the answer as output=..."
_SESSION = "use store.conversation(...) of aswarm.conversations"
_GUARDS = "use aswarm.guards: AsyncSwarm(middleware=[guard_input(check)])"
_GUARDS_OF_ANSWERS = _GUARDS.replace("guard_input", "guard_answer")
_MIDDLEWARE = "pass AsyncSwarm(middleware=[...])"
_CONTEXT_OF_A_FUNCTION = (
    "a function gets data from its parameter context_variables, and clients from parameters with the hint Resource[T]"
)
_SETTING = "pass it as Agent(model_settings={'{name}': ...})"
_SETTINGS = _by_name({
    "temperature top_p top_k max_tokens max_completion_tokens max_output_tokens frequency_penalty presence_penalty seed stop"
    " logprobs reasoning reasoning_effort verbosity service_tier store metadata user extra_headers extra_body extra_query"
    " logit_bias prompt_cache_key": _SETTING
})  # fmt: skip

# For each place: the remedy for a name. `{name}` in a remedy is the name itself. "" is the remedy for a call with wrong positional
# arguments.
_REMEDIES: dict[str, dict[str, str]] = {
    # Keywords.
    "run()": _SETTINGS | _by_name({
        "context": _CONTEXT,
        "deps": _CONTEXT + ", and clients and connections as resources={...}",
        "history input message_history": _MESSAGES,
        "output_type response_format result_type": _OUTPUT,
        "max_iterations max_steps": "pass the largest number of completions as max_turns=...",
        "model": "pass the model of all agents as model_override=...",
        "model_settings": "give them to the agent: Agent(model_settings={...})",
        "instructions system_prompt": "give them to the agent: Agent(instructions=...)",
        "session": _SESSION,
        "tools functions": "give functions to the agent: Agent(functions=[...])",
        "usage_limits": "pass budget=Budget(...)",
        "usage": "pass the same SharedBudget(...) to both runs as budget=...; a run inside a tool counts for the outer run anyway",
        "toolsets": "give functions to the agent: Agent(functions=[...])",
        "deferred_tool_results": "pass the decisions as resume={call.id: True}, after the messages of the run that waits",
        "timeout": "pass budget=Budget(seconds=...)",
        "middleware hooks": _MIDDLEWARE,
        "run_config": "pass its values as keywords: model_override=..., max_turns=...",
        "error_handlers": "pass budget=Budget(turns=..., then='answer'), or read response.stop",
    }),
    "agent_tool()": _by_name({
        "tool_name": "use name=...",
        "tool_description": "use description=...",
        "output_type custom_output_extractor": _OUTPUT,
        "needs_approval approve": "give approve=True to the functions of the agent",
        "max_turns": "pass it to run(): the limits of a run also apply to its inner runs",
    }),
    "Result()": {"": "pass keywords: Result(value=..., agent=..., context_variables=...)"},
    "tool()": _by_name({
        "needs_approval requires_approval": "pass approve=True, or a function that decides for each call",
        "max_retries retries": "raise ToolError in the function: the model gets its text, and may call again",
        "sequential": "pass concurrent=False",
        "name_override": "pass name=...",
        "description_override": "pass description=...",
        "strict_mode": "pass strict=True",
        "args_schema parameters": "pass your own JSON schema to function_tool(function, name=..., description=..., parameters=...)",
        "failure_error_function": "pass AsyncSwarm(tool_error=...), or raise ToolError in the function",
        "is_enabled": "give the function to another agent, or raise ToolError in it",
        "is_external": "external_tool(...) makes a tool without a function",
    }),
    "function_tool()": {"": "function_tool takes your own JSON schema; @tool makes it from the hints of the function"},
    "AsyncSwarm()": _SETTINGS | _by_name({
        "api_key base_url organization project default_headers http_client max_retries timeout websocket_base_url":
            "pass it to the client: AsyncSwarm(AsyncOpenAI({name}=...))",
        "azure_endpoint api_version azure_deployment": "pass a client: AsyncSwarm(AsyncAzureOpenAI({name}=...))",
        "openai_client llm": "pass it as client=...",
        "deps": "pass clients and connections as resources={...}",
        "max_turns": "pass it to run()",
        "agents tools functions instructions": "an agent has them: Agent(functions=[...], instructions=...)",
        "agent": "pass it to run(agent, messages)",
        "hooks callbacks retry fallback cache tracing guardrails input_guardrails output_guardrails": "pass middleware=[...]",
    }),
    "Budget()": _by_name({
        "max_tokens max_total_tokens total_tokens total_tokens_limit token_limit": "use tokens=...",
        "max_turns max_steps max_iterations max_requests requests request_limit": "use turns=...",
        "max_cost max_budget dollars usd": "use cost=...",
        "max_seconds max_time timeout": "use seconds=...",
        "max_tool_calls tool_calls_limit": "use tool_calls=...",
        "input_tokens input_tokens_limit output_tokens output_tokens_limit": "use tokens=..., for input and output together",
    }),
    "Output()": _by_name({
        "validator validators output_validator check_answer": "use check=...",
        "max_retries": "use retries=...",
        "strict_json_schema": "use strict=...",
        "output_type": "pass the type first: Output(Type)",
    }),
    "RateLimits()": _by_name({
        "rpm max_rpm requests max_requests": "use requests_per_minute=...",
        "tpm max_tpm tokens max_tokens": "use tokens_per_minute=...",
    }),
    # Fields of an agent. They are errors, because an agent without its tools or its prompt would still seem to work.
    "Agent field": _by_name({
        "tools handoffs": _FUNCTIONS,
        "prompt system_prompt system_message": _INSTRUCTIONS,
        "output_type response_format result_type": (
            "for structured output, pass the type as output=..., and read `response.output`"
        ),
        "input_guardrails": _GUARDS,
        "output_guardrails": _GUARDS_OF_ANSWERS,
        "hooks": f"{_MIDDLEWARE}, or read the events of stream()",
        "skills": 'use aswarm.skills: skills("folder").add_to(agent)',
        "mcp_servers toolsets": "use aswarm.mcp, and pass the functions of the server as functions=[...]",
    }),
    "Agent()": _SETTINGS | _by_name({
        "deps_type": _CONTEXT_OF_A_FUNCTION,
        "retries output_retries": "pass Agent(output=Output(Type, retries=...))",
        "capabilities history_processors": "pass Agent(history=...), or AsyncSwarm(middleware=[...])",
        "instrument": "pass AsyncSwarm(middleware=[otel()]) with aswarm.otel",
    }) | {"": "pass keywords: Agent(name=..., model=..., instructions=..., functions=[...])"},
    # Attributes.
    "Agent": _by_name({
        "run arun kickoff invoke ainvoke": _RUN,
        "run_sync": _RUN_BLOCKING,
        "run_stream run_streamed stream astream iter": _STREAM,
        "tool tool_plain": "pass functions as Agent(functions=[...]), or append them to agent.functions",
        "system_prompt": "pass a text or a function as Agent(instructions=...)",
        "output_validator": "pass Agent(output=Output(Type, check=...))",
        "override": "pass fakes to the swarm of the test: AsyncSwarm(ScriptedModel([...]), resources={...})",
        "to_web": "use create_app(agents=[agent], auth=local_only, page=True) of aswarm.serve",
        "to_cli to_cli_sync": "use `aswarm chat module:agent`",
        "as_tool": "use agent_tool(agent)",
        "clone": "use agent.model_copy(update={...})",
    }),
    "AsyncSwarm": _by_name({
        "run_sync": _RUN_BLOCKING,
        "run_streamed run_stream astream": "use async with swarm.stream(agent, messages) as run",
        "arun kickoff invoke ainvoke": "use await swarm.run(agent, messages)",
        "close": "use await swarm.aclose(), or async with AsyncSwarm() as swarm",
    }),
    "Swarm": _by_name({
        "run_sync kickoff invoke": "use swarm.run(agent, messages)",
        "run_async arun ainvoke": _RUN,
        "run_streamed run_stream": "use with swarm.stream(agent, messages) as run",
        "aclose": "use swarm.close(), or with Swarm() as swarm",
    }),
    "Response": _by_name({
        "final_output content data": "the text of the answer is `response.text`, and structured output is `response.output`",
        "all_messages new_messages new_items to_input_list": "the messages of the run are `response.messages`",
        "final_output_as": "pass output=... to the run, and read `response.output`",
        "last_agent": "the active agent is `response.agent`",
        "interruptions": "the calls that wait for a decision are `response.waiting`",
        "to_state": "pass the messages and resume={id: decision} to the next run",
        "price": "the cost in dollars is `response.cost`",
    }),
    "EventStream": _by_name({
        "stream_events stream_text": "the run itself yields its events: async for event in run",
        "stream_output stream_structured": "use async for shown in run.partial_outputs()",
        "final_output get_output": "the answer is `run.response.text`, and structured output is `run.response.output`",
    }),
    "ToolCallFinished": {"result": "the text for the model is `event.content`"},
    # Names of the package.
    "aswarm": _by_name({
        "Runner AsyncRunner": _RUN,
        "run_sync": _RUN_BLOCKING,
        "AsyncAgent": "use Agent, with AsyncSwarm",
        "RunContextWrapper RunContext ToolContext InjectedState": _CONTEXT_OF_A_FUNCTION,
        "ModelSettings": "pass a dict: Agent(model_settings={...})",
        "RunConfig": "pass keywords to run(), see RunKeywords",
        "Session SQLiteSession": f"{_SESSION}, for example with SQLiteStore",
        "handoff Handoff": "put the other agent into Agent(functions=[...])",
        "InputGuardrail input_guardrail GuardrailFunctionOutput": _GUARDS,
        "OutputGuardrail output_guardrail": _GUARDS_OF_ANSWERS,
        "InputGuardrailTripwireTriggered OutputGuardrailTripwireTriggered": "catch aswarm.guards.Blocked",
        "MaxTurnsExceeded": "a run ends with response.stop == 'max_turns', or raises with Budget(turns=..., then='raise')",
        "RunHooks AgentHooks": f"{_MIDDLEWARE}, or read the events of stream()",
        "trace": "use aswarm.otel: AsyncSwarm(middleware=[otel()])",
        "RunResult AgentRunResult": "use Response",
        "RunResultStreaming StreamedRunResult": "use EventStream of aswarm.extensions; swarm.stream() returns it",
        "MCPServerStdio": "use MCPServer(StdioServerParameters(command=...)) of aswarm.mcp and mcp",
        "MCPServerStreamableHttp MCPServerStreamableHTTP MCPServerSse MCPServerSSE MCPToolset": "use MCPServer(url) of aswarm.mcp",
        "StopAtTools": "pass output=..., and the run ends with a call of `final_answer`; or run(execute_tools=False)",
        "WebSearchTool FileSearchTool CodeInterpreterTool ImageGenerationTool HostedMCPTool ComputerTool WebSearch": (
            "pass the dict of the Responses API: Agent(model_settings={'tools': [{'type': 'web_search'}]})"
        ),
        "set_default_openai_client set_default_openai_key": "pass a client: AsyncSwarm(AsyncOpenAI(...))",
        "UsageLimits": "use Budget",
        "UsageLimitExceeded": 'use BudgetError, with Budget(then="raise")',
        "ModelRetry": "raise ToolError",
        "UnexpectedModelBehavior ModelHTTPError": "use OutputError or CompletionError, or RunError for both",
        "UserError": "use ConfigurationError",
        "capture_run_messages": "an error has the messages so far: error.response.messages",
        "TestModel FunctionModel": "use ScriptedModel of aswarm.testing; its script may be a function of the request",
        "FallbackModel": "use fallback of aswarm.middleware",
        "BinaryContent BinaryImage ImageUrl DocumentUrl": "use Image(...).part or File(...).part in the content of a message",
        "ToolOutput NativeOutput PromptedOutput": 'use Output(Type, mode="tool"), "schema" or "prompt"',
        "DeferredToolRequests": "read response.waiting",
        "DeferredToolResults ApprovalRequired CallDeferred": "use @tool(approve=True) or Hold, and resume={call.id: True}",
        "Dataset Evaluator LLMJudge": "use Case and evaluate of aswarm.evals",
        "AGUIAdapter VercelAIAdapter AGUIApp": 'use create_app(wires=["agui", "vercel"]) of aswarm.serve',
        # Names of aswarm before 0.1.0.
        "waiting": "use open_calls(messages)",
        "Answer": "use Reply",
    }),
    "aswarm.batch": {"Outcome": "use BatchResult"},
}  # fmt: skip
_ALL = re.compile(r"^__all__ = \[(.*?)\]", re.DOTALL | re.MULTILINE)
_REMEDIES["Swarm()"] = {name: remedy.replace("Async", "") for name, remedy in _REMEDIES["AsyncSwarm()"].items()}
_REMEDIES["SharedBudget()"] = _REMEDIES["Budget()"]


def hint(place: str, name: str) -> str:
    """Return the remedy for a foreign name, after "; ". Empty if the place has no such name."""
    remedy = _REMEDIES.get(place, {}).get(name)
    return f"; {remedy.replace('{name}', name)}" if remedy else ""


def _hint_of_package(package: str, name: str) -> str:
    if remedy := hint(package, name) or hint("aswarm", name):
        return remedy
    homes = [home for home, exports in _exports().items() if f'"{name}"' in exports]
    return f"; use `from {homes[0]} import {name}`" if homes else ""


@functools.cache
def _exports() -> dict[str, str]:
    """Return the `__all__` of each public module, as source text: an import of the module may need an extra."""
    root = Path(__file__).parent.parent
    files = {file.parent.name: file for file in root.glob("[a-z]*/__init__.py")}
    files |= {file.stem: file for file in root.glob("[a-z]*.py")}
    texts = {name: _ALL.search(file.read_text("utf-8")) for name, file in files.items()}
    # `sources` and `middleware` before `extensions`, which repeats their names.
    return {f"aswarm.{name}": text[1] for name, text in sorted(texts.items(), reverse=True) if text}


def explained(described: F) -> F:
    """Decorate a function or a class: the errors for foreign names contain the names to use.

    These are a TypeError for a keyword, an AttributeError for an attribute, and, for a class that is only async, a TypeError for
    `for`, `with` and `await`.
    """
    if isinstance(described, type):
        _explain_class(described, described.__name__)
        return cast("F", described)
    return _explaining_call(f"{described.__name__}()", described)


def _explain_class(kind: Any, name: str) -> None:
    if f"{name}()" in _REMEDIES:
        kind.__init__ = _explaining_call(f"{name}()", kind.__init__)
    if name in _REMEDIES:
        kind.__getattr__ = _explaining_attributes(name, getattr(kind, "__getattr__", None))
    if hasattr(kind, "__aiter__"):
        kind.__iter__ = _refuse("for")
    if hasattr(kind, "__aenter__"):
        kind.__enter__ = kind.__exit__ = _refuse("with")  # Python looks for both before it calls one
        kind.__await__ = _refuse("await", "async with")


def _explaining_call(place: str, function: F) -> F:
    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        try:
            return function(*args, **keywords)
        except TypeError as error:
            text = str(error)
            remedy = hint(place, next((name for name in keywords if repr(name) in text), ""))
            # Without a second frame in the traceback, the function was not entered, because its arguments do not fit.
            if not remedy or (error.__traceback__ and error.__traceback__.tb_next):
                raise
            raise TypeError(f"{place}{text.partition('()')[2]}{remedy}") from None

    return cast("F", call)


def _explaining_attributes(place: str, inherited: Callable[[Any, str], Any] | None) -> Callable[[Any, str], Any]:
    def __getattr__(self: Any, name: str) -> Any:  # noqa: N807 - the name in a traceback
        if remedy := hint(place, name):
            raise AttributeError(f"{place} has no attribute {name!r}{remedy}")
        return (inherited or object.__getattribute__)(self, name)  # raises the usual error

    return __getattr__


def _refuse(keyword: str, needed: str = "") -> Callable[..., NoReturn]:
    def refuse(self: object, *_: object) -> NoReturn:
        raise TypeError(f"{type(self).__name__} needs `{needed or f'async {keyword}'}` instead of `{keyword}`")

    return refuse


def explain_names(namespace: dict[str, Any]) -> None:
    """Give a package errors for unknown names that contain the names to use, or the module to import the name from."""
    package = namespace["__name__"]
    inherited: Callable[[str], Any] | None = namespace.get("__getattr__")

    def __getattr__(name: str) -> Any:  # noqa: N807 - as above
        if inherited and not hint(package, name):
            with suppress(AttributeError):
                return inherited(name)
        # `from aswarm import otel` imports the module after the AttributeError.
        remedy = "" if name.startswith("_") or _is_module(namespace, name) else _hint_of_package(package, name)
        if not remedy:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package])
        # The import statement replaces the text of an AttributeError. For a package, it first calls this function of importlib.
        caller = sys._getframe(1)
        code, at = caller.f_code, caller.f_lasti
        is_import = code.co_name == "_handle_fromlist" or code.co_code[at] == opcode.opmap["IMPORT_FROM"]
        raise (ImportError if is_import else AttributeError)(f"{package} has no name {name!r}{remedy}")

    namespace["__getattr__"] = __getattr__


def _is_module(namespace: Mapping[str, Any], name: str) -> bool:
    return any(
        Path(folder, name).exists() or Path(folder, f"{name}.py").exists() for folder in namespace.get("__path__", ())
    )


def publish(namespace: dict[str, Any]) -> None:
    """Set `__module__` of the classes and functions in `__all__` to the package with this namespace.

    A name that another package has already published does not change, unless that package is inside of this package.
    """
    package = namespace["__name__"]
    explain_names(namespace)
    for name in namespace["__all__"]:
        value: Any = namespace.get(name)  # `aswarm.types` imports some names later
        home = getattr(value, "__module__", package)
        if "._" not in home and not home.startswith(package):
            continue
        # Now resolve annotations that are strings. Later, `typing.get_type_hints` would evaluate them in the new module.
        hints: dict[str, Any] = vars(value).get("__annotations__", {}) if isinstance(value, type) else {}
        if any(isinstance(hint, str) for hint in hints.values()):
            names = {**vars(sys.modules["aswarm"]), **namespace, **vars(sys.modules[value.__module__])}
            value.__annotations__ = inspect.get_annotations(value, globals=names, eval_str=True)
        if isinstance(value, type | FunctionType):
            value.__module__ = package


def call_of(value: object) -> str:
    """Return the call of a function that aswarm exports, with its required arguments; empty for any other value.

    For error texts: `functions=[tool_search]` and `middleware=[guard_input]` have no call, and both functions are callable.
    """
    if not isinstance(value, FunctionType):
        return ""
    module = str(value.__module__)  # None for code without a module
    if module.partition(".")[0] != "aswarm" or value.__name__ not in getattr(sys.modules.get(module), "__all__", ()):
        return ""
    parameters = inspect.signature(value).parameters.values()
    required = [each.name for each in parameters if each.default is each.empty and each.kind is not each.VAR_POSITIONAL]
    return f"{value.__name__}({', '.join(required)})"


def warn_deprecated(name: str, *, since: str, removed: str, instead: str, stacklevel: int = 3) -> None:
    """Warn the caller of the deprecated name, once for each line.

    Args:
        name: The full name, such as "aswarm.old" or "aswarm.run(old=)".
        since: The version that deprecates the name.
        removed: The version that removes the name. The tests fail if the name still exists in that version.
        instead: The name to use.
        stacklevel: The line to show: 3 for the caller of the function that calls `warn_deprecated`.
    """
    text = f"{name} is deprecated since aswarm {since}, and aswarm {removed} removes it; use {instead}"
    warnings.warn(text, DeprecationWarning, stacklevel=stacklevel)
