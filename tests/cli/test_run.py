"""`aswarm run` in this process: stdout, stderr and the exit codes."""

from __future__ import annotations

import io
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from aswarm import Agent, Response, RunFinished, TextDelta, TurnStarted
from aswarm.cli._event_printer import EventPrinter
from aswarm.testing import ScriptedAnswer, call, check_history
from tests.support.cli.cli_runs import AGENTS, invoke, model, refused
from tests.support.providers.loopback import Reply, sse

pytestmark = pytest.mark.usefixtures("project")
QUESTION = ["agents:triage", "Where is my order?"]


def handoff() -> list[Any]:
    """The steps of a conversation: a handoff, a look-up with a word beside it, an answer."""
    return [
        call("transfer_to_orders"),
        ScriptedAnswer("One moment.", [call("look_up", order_id=7)]),
        "It is on its way.",
    ]


def test_the_answer_goes_to_stdout() -> None:
    """The text of the model is on stdout, one line for each completion; what functions print is not."""
    with model(*handoff()) as server:
        result = invoke("run", *QUESTION, "-c", "user=Ann", server=server)
    assert result.exit_code == 0
    assert result.stdout == "One moment.\nIt is on its way.\n"
    assert result.stderr == "looking up\n"
    assert server.requests[2]["messages"][-1]["content"] == "Order 7 of Ann"


@pytest.mark.parametrize("option", ["--stream", "--no-stream"])
@pytest.mark.parametrize("end", ["answered", "failed", "refused"])
def test_calls_whose_outcome_is_unknown_are_a_warning(option: str, end: str) -> None:
    """A line on stderr names them, and the exit code is 5, also without an answer; 1 where the run then fails."""
    slow = (
        "\nimport threading\nfrom aswarm import tool\n\n@tool(timeout=0.01)\n"
        "def pay() -> str:\n    threading.Event().wait(0.3)\n    return ''\n\npayer = Agent(functions=[pay])\n"
    )
    Path("agents.py").write_text(AGENTS + slow, encoding="utf-8")
    ends = {"failed": refused("400 Bad Request", "no"), "refused": ScriptedAnswer(extra={"refusal": "No."})}
    with model(call("pay"), ends.get(end, "Perhaps.")) as server:
        result = invoke("run", option, "agents:payer", "Pay!", server=server)
    assert result.exit_code == (1 if end == "failed" else 5)
    assert "Warning: the outcome of these calls is unknown: pay\n" in result.stderr


def test_verbose_prints_the_details_on_stderr() -> None:
    """Agent names, calls and handoffs are on stderr."""
    with model(*handoff()) as server:
        result = invoke("run", "-v", *QUESTION, "-c", "user=Ann", server=server)
    assert result.stdout == "One moment.\nIt is on its way.\n"
    assert result.stderr.replace("looking up\n", "") == (
        "  Triage calls transfer_to_orders({})\n"
        '  transfer_to_orders: {"assistant": "Orders"}\n'
        "  Triage hands over to Orders\n"
        "Orders:\n"
        '  Orders calls look_up({"order_id": 7})\n'
        "  look_up: Order 7 of Ann\n"
        "Orders:\n"
    )


def test_not_streamed() -> None:
    """With --no-stream no request is streamed, and only the last answer is written."""
    with model(*handoff()) as server:
        result = invoke("run", "--no-stream", *QUESTION, "-c", "user=Ann", server=server)
    assert (result.exit_code, result.stdout) == (0, "It is on its way.\n")
    assert not any(request.get("stream") for request in server.requests)


def test_the_question_can_come_from_stdin() -> None:
    """`-` reads all of it, as UTF-8, without the last line break."""
    with model("Hi") as server:
        result = invoke("run", "agents:triage", "-", server=server, stdin="\ufeffWo ist\nmeine Bestellung? ä\n")
    assert result.exit_code == 0
    assert server.requests[0]["messages"][-1]["content"] == "Wo ist\nmeine Bestellung? ä"


@pytest.mark.parametrize(("stdin", "text"), [(b"\xff\xfe", "not UTF-8"), (b" \n", "the question is empty")])
def test_questions_that_cannot_be_asked(stdin: bytes, text: str) -> None:
    """A question that is not UTF-8, or is empty, is a usage error; nothing is sent."""
    result = invoke("run", "agents:triage", os.fsdecode(stdin))
    assert result.exit_code == 2
    assert text in result.stderr
    result = invoke("run", "agents:triage", "-", stdin=stdin)
    assert result.exit_code == 2
    assert text in result.stderr


def test_context_variables() -> None:
    """key=value gives a text, JSON gives any value; the later one counts."""
    with model(call("show"), "done") as server:
        variables = ["-c", "a=1=2", "-c", '{"b": [1], "c": null}', "--context", "c=x"]
        result = invoke("run", "agents:shower", "?", *variables, server=server)
    assert result.exit_code == 0
    assert json.loads(server.requests[1]["messages"][-1]["content"]) == {"a": "1=2", "b": [1], "c": "x"}


@pytest.mark.parametrize("wrong", ["text", "=x", "{1}", "{"])
def test_context_that_cannot_be_used(wrong: str) -> None:
    """A value that is neither key=value nor a JSON object is refused."""
    result = invoke("run", *QUESTION, "-c", wrong)
    assert result.exit_code == 2
    assert "--context" in result.stderr


def test_the_model_replaces_those_of_all_agents() -> None:
    """--model holds after a handoff too."""
    with model(*handoff()) as server:
        invoke("run", *QUESTION, "-m", "tiny", "-c", "user=x", server=server)
    assert [request["model"] for request in server.requests] == ["tiny"] * 3


@pytest.mark.parametrize("stream", ["--stream", "--no-stream"])
@pytest.mark.parametrize(("api", "key"), [("auto", "messages"), ("chat", "messages"), ("responses", "input")])
def test_the_api_is_that_of_the_option(api: str, key: str, stream: str) -> None:
    """A server of one's own is asked over Chat Completions unless told."""
    with model(*handoff()) as server:
        result = invoke("run", *QUESTION, "-c", "user=Ann", "--api", api, stream, server=server)
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "It is on its way.")
    assert all(key in request for request in server.requests)


def test_the_base_url_replaces_that_of_the_environment() -> None:
    """--base-url is the server, which needs no key; the environment is as it was."""
    with model("Hi") as server:
        result = invoke("run", *QUESTION, "--base-url", server.base_url)
        assert (result.exit_code, result.stdout) == (0, "Hi\n")
    with model() as other, model("Hi") as server:
        before = dict(os.environ)
        result = invoke("run", *QUESTION, "--base-url", server.base_url, server=other)
        assert (result.exit_code, result.stdout) == (0, "Hi\n")
        assert dict(os.environ) == before
    assert not other.requests


def test_a_base_url_without_a_scheme() -> None:
    """The address is refused, and the message shows what is missing."""
    result = invoke("run", *QUESTION, "--base-url", "localhost:8080")
    assert result.exit_code == 2
    assert "http://" in result.stderr


def test_without_a_key() -> None:
    """Without a key and a base URL the message names what the command takes, and no argument of Python."""
    result = invoke("run", *QUESTION)
    assert result.exit_code == 2
    for named in ("OPENAI_API_KEY", "--base-url", "OPENAI_BASE_URL"):
        assert named in result.stderr
    assert "client=" not in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("options", [(), ("--json",), ("--no-stream",), ("--no-stream", "--json")])
def test_a_provider_that_fails(options: tuple[str, ...]) -> None:
    """Exit code 1, the provider's message on stderr; with --json, a last line with the details."""
    with model(refused("400 Bad Request", "no such model")) as server:
        result = invoke("run", *options, *QUESTION, server=server)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: the provider failed: BadRequestError:")
    assert "no such model" in result.stderr
    if "--json" in options:
        last = json.loads(result.stdout.splitlines()[-1])
        assert (last["type"], last["status_code"], last["retryable"]) == ("RunFailed", 400, False)
        assert last["error"].startswith("CompletionError: the provider failed")
        assert last["response"]["stop"] == "error"
    else:
        assert result.stdout == ""


@pytest.mark.parametrize("answer", ["", " \n"])
def test_an_empty_answer_is_said(answer: str) -> None:
    """On stderr; it is a success all the same."""
    with model(answer) as server:
        result = invoke("run", *QUESTION, server=server)
    assert (result.exit_code, result.stderr) == (0, "Note: the answer is empty\n")


def test_a_stream_that_breaks() -> None:
    """The text until then is on stdout, and its line ends."""
    broken = Reply(sse(ScriptedAnswer("Hello, world"), cut=5).pieces[:3], end="reset")
    with model(broken) as server:
        result = invoke("run", *QUESTION, server=server)
    assert result.exit_code == 1
    assert result.stdout == "Hello, wor\n"
    assert "the stream" in result.stderr  # broke, or, where httpx takes a reset for an end, ended


def test_the_limit_without_an_option() -> None:
    """A run ends after 100 completions."""
    with model(*[call("look_up", order_id=7)] * 101) as server:
        result = invoke("run", "agents:orders", "?", "-c", "user=x", server=server)
    assert result.exit_code == 3
    assert result.stderr.endswith("No answer: --max-turns was reached, after 100 completions\n")


@pytest.mark.parametrize("command", ["run", "chat", "batch", "eval"])
def test_every_command_that_runs_agents_says_its_limit(command: str) -> None:
    """`--help` shows the default of --max-turns."""
    text = " ".join(invoke(command, "--help").output.split())
    assert re.search(r"--max-turns N End a run after this many completions\. \[default: 100;", text)


@pytest.mark.parametrize("stream", ["--stream", "--no-stream"])
def test_max_turns(stream: str) -> None:
    """A run that ends at its limit has no answer: exit code 3, said on stderr."""
    with model(call("look_up", order_id=1)) as server:
        result = invoke("run", stream, "agents:orders", "?", "-c", "user=x", "--max-turns", "1", server=server)
    assert result.exit_code == 3
    assert result.stderr.endswith("No answer: --max-turns was reached, after 1 completion\n")


@pytest.mark.parametrize("stream", ["--stream", "--no-stream"])
def test_budget(stream: str) -> None:
    """A run that ends at its budget: exit code 3, and stderr names the limit."""
    with model([call("look_up", order_id=1), call("look_up", order_id=2)]) as server:
        options = ("-c", "user=x", "--budget", "tool_calls=1, seconds=60.5")
        result = invoke("run", stream, "agents:orders", "?", *options, server=server)
    assert result.exit_code == 3
    assert result.stderr.endswith("Stopped: the --budget is used up (tool_calls), after 1 completion\n")


def test_a_budget_with_a_last_answer() -> None:
    """The answer is on stdout; the exit code says that the run was stopped."""
    with model(call("look_up", order_id=1), "As far as I know.") as server:
        options = ("-c", "user=x", "--budget", "turns=1,then=answer")
        result = invoke("run", "agents:orders", "?", *options, server=server)
    assert (result.exit_code, result.stdout) == (3, "As far as I know.\n")


def test_a_completion_that_the_budget_cuts_ends_its_line() -> None:
    """Whether the run ends there or another completion follows."""
    written = io.StringIO()
    printer = EventPrinter(written)
    agent = Agent()
    for event in (
        TurnStarted(agent, 1),
        TextDelta("Hel"),
        TurnStarted(agent, 2),
        TextDelta("No"),
        RunFinished(Response()),
    ):
        printer.show(event)
    assert written.getvalue() == "Hel\nNo\n"


@pytest.mark.parametrize("wrong", ["5", "turns=x", "turns=", "trns=5", "turns=0", "then=ask", "prices=3", ""])
def test_a_budget_that_is_none(wrong: str) -> None:
    """Exit code 2; the error shows what is expected."""
    result = invoke("run", *QUESTION, "--budget", wrong)
    assert result.exit_code == 2
    assert re.search(
        "expected limits such as|of a Budget must be|unknown limit .*; the limits are turns, ", result.stderr
    )


def test_a_refusal_is_not_an_answer() -> None:
    """A refusal is written like an answer; the exit code differs."""
    with model(ScriptedAnswer(extra={"refusal": "I will not."})) as server:
        result = invoke("run", *QUESTION, server=server)
    assert (result.exit_code, result.stdout) == (3, "I will not.\n")
    assert result.stderr == "No answer: the model refused\n"


@pytest.mark.parametrize("options", [(), ("--no-stream",), ("--json",), ("--json", "--no-stream")])
def test_ctrl_c(options: tuple[str, ...]) -> None:
    """Exit code 130, no traceback; a warning of the call that was cut; with --json, a last line has the partial response."""
    with model(ScriptedAnswer("Wait", [call("stop")])) as server:
        result = invoke("run", *options, *QUESTION, server=server)
    assert result.exit_code == 130
    assert result.stderr == "Warning: the outcome of these calls is unknown: stop\n\n"
    if "--json" in options:
        last = json.loads(result.stdout.splitlines()[-1])
        assert last["type"] == "RunStopped"
        assert last["error"] == "KeyboardInterrupt: "
        check_history([{"role": "user", "content": "?"}, *last["response"]["messages"]])
    else:
        assert result.stdout == ("Wait\n" if "--no-stream" not in options else "")


def test_debug_prints_to_stderr() -> None:
    """Swarm's debug output does not mix with the answer."""
    with model("Hi") as server:
        result = invoke("run", "--debug", *QUESTION, server=server)
    assert result.stdout == "Hi\n"
    assert "] Getting chat completion for...:" in result.stderr
    assert "\033" not in result.stderr, "a pipe gets no colours"


def test_debug_leaves_the_environment_alone() -> None:
    """The processes that functions start inherit the environment of the command, and no switch of the command."""
    told = "\nimport os\ntold = Agent(instructions=lambda context: str(os.environ.get('NO_COLOR')))\n"
    Path("agents.py").write_text(AGENTS + told, encoding="utf-8")
    with model("Hi") as server:
        invoke("run", "--debug", "agents:told", "?", server=server)
    assert server.requests[0]["messages"][0]["content"] == str(os.environ.get("NO_COLOR"))


def test_json_lines() -> None:
    """Every typed event is a JSON object on a line of ASCII; the last one has the response."""
    with model(call("transfer_to_orders"), [call("look_up", order_id="x")], "Grüße") as server:
        result = invoke("run", "--json", *QUESTION, "-c", '{"user": "Ann"}', server=server)
    assert result.exit_code == 0
    assert result.stdout.isascii()
    events = [json.loads(line) for line in result.stdout.splitlines()]
    kinds = list(dict.fromkeys(event["type"] for event in events))
    assert kinds == [
        "TurnStarted",
        "ToolCallDelta",
        "CompletionFinished",
        "ToolCallStarted",
        "ToolCallFinished",
        "HandedOff",
        "TextDelta",
        "RunFinished",
    ]
    assert events[0] == {"type": "TurnStarted", "agent": "Triage", "turn": 1}
    [handed_off] = [event for event in events if event["type"] == "HandedOff"]
    assert handed_off == {"type": "HandedOff", "source": "Triage", "target": "Orders"}
    _, wrong = [event for event in events if event["type"] == "ToolCallFinished"]
    assert wrong["error"].startswith("ToolArgumentsError: ")
    response = events[-1]["response"]
    assert (response["agent"], response["stop"], response["text"]) == ("Orders", "answer", "Grüße")
    assert response["context_variables"] == {"user": "Ann"}
    assert response["usage"]["requests"] == 3


def test_json_of_a_run_that_is_not_streamed() -> None:
    """One line, as the last one of a stream; context values that JSON does not know are text."""
    with model(call("keep"), "done") as server:
        result = invoke("run", "--json", "--no-stream", "agents:keeper", "?", server=server)
    event = json.loads(result.stdout)
    assert event["type"] == "RunFinished"
    assert event["response"]["context_variables"]["object"].startswith("<object object")
    assert event["response"]["context_variables"]["number"] == ["inf"]


def test_json_of_a_circle() -> None:
    """A container that contains itself is written as Python shows it."""
    with model(call("circle"), "done") as server:
        result = invoke("run", "--json", "--no-stream", "agents:keeper", "?", server=server)
    assert json.loads(result.stdout)["response"]["context_variables"].startswith("{'self': {")


def test_an_agent_that_cannot_run() -> None:
    """A configuration error is exit code 2, before anything is sent."""
    result = invoke("run", "agents:broken", "?", "--base-url", "http://127.0.0.1:9/v1")
    assert result.exit_code == 2
    assert "positional-only" in result.stderr


MORE = """
def show(context_variables: dict):
    return {key: context_variables[key] for key in "abc"}

def keep(context_variables: dict):
    context_variables["object"] = object()
    context_variables["number"] = [float("inf")]

def circle(context_variables: dict):
    context_variables["self"] = context_variables

def odd(a, /):
    pass

shower = Agent(functions=[show])
keeper = Agent(functions=[keep, circle])
broken = Agent(functions=[odd])
"""


@pytest.fixture
def project(folder: Path) -> None:
    """A module `agents` in the current directory."""
    (folder / "agents.py").write_text(AGENTS + MORE, encoding="utf-8")
