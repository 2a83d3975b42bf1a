"""`aswarm run` in this process: stdout, stderr and the exit codes."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from aswarm.testing import ScriptedAnswer, call, check_history
from tests.support.cli.cli_runs import AGENTS, invoke, model, refused
from tests.support.providers.loopback import Reply, sse

QUESTION = ["agents:triage", "Where is my order?"]

MORE = """
def show(context_variables: dict):
    return {key: context_variables[key] for key in "abc"}

def keep(context_variables: dict):
    context_variables["object"] = object()
    context_variables["number"] = [float("inf")]

def circle(context_variables: dict):
    context_variables["self"] = context_variables

shower = Agent(functions=[show])
keeper = Agent(functions=[keep, circle])
"""


@pytest.fixture
def keepers(project: Path) -> None:
    """More agents, whose functions change the context."""
    (project / "agents.py").write_text(AGENTS + MORE, encoding="utf-8")


def handoff() -> list[Any]:
    """Return the steps of a conversation: a handoff, a text with a call, an answer."""
    return [
        call("transfer_to_orders"),
        ScriptedAnswer("One moment.", [call("look_up", order_id=7)]),
        "It is on its way.",
    ]


def test_the_answer_goes_to_stdout() -> None:
    """stdout has the text of each completion on a line, and not the output of functions."""
    with model(*handoff()) as server:
        result = invoke("run", *QUESTION, "-c", "user=Ann", server=server)
    assert result.exit_code == 0
    assert result.stdout == "One moment.\nIt is on its way.\n"
    assert result.stderr == "looking up\n"
    assert server.requests[2]["messages"][-1]["content"] == "Order 7 of Ann"


@pytest.mark.parametrize("option", ["--stream", "--no-stream"])
@pytest.mark.parametrize("end", ["answered", "failed", "refused"])
def test_calls_whose_outcome_is_unknown_are_a_warning(option: str, end: str) -> None:
    """A line on stderr names the calls, and the exit code is 5, or 1 if the run then fails."""
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
        "Triage: transfer_to_orders()\n"
        '  transfer_to_orders: {"assistant": "Orders"}\n'
        "Triage -> Orders\n"
        "Orders:\n"
        "Orders: look_up(order_id=7)\n"
        "  look_up: Order 7 of Ann\n"
        "Orders:\n"
    )


def test_verbose_prints_a_missed_cache() -> None:
    """The line is on stderr, and only there."""
    usage = {"prompt_tokens": 9_000, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 0}}
    steps = [ScriptedAnswer(calls=[call("transfer_to_orders")], usage=usage), ScriptedAnswer("Here.", usage=usage)]
    for option, lines in (("-v", 1), ("--no-stream", 0)):
        with model(*steps) as server:
            result = invoke("run", option, *QUESTION, "-c", "user=Ann", server=server)
        missed = "  cache miss (changed): 9,000 tokens again, handoff to Orders: the model is 'model-of-orders' instead of 'gpt-6-luna'\n"
        assert (result.stdout, result.stderr.count(missed)) == ("Here.\n", lines)


def test_the_question_can_come_from_stdin() -> None:
    """`-` reads the question from stdin, as UTF-8, without the last line break."""
    with model("Hi") as server:
        result = invoke("run", "agents:triage", "-", server=server, stdin="\ufeffWo ist\nmeine Bestellung? ä\n")
    assert result.exit_code == 0
    assert server.requests[0]["messages"][-1]["content"] == "Wo ist\nmeine Bestellung? ä"


@pytest.mark.usefixtures("keepers")
def test_context_variables() -> None:
    """key=value is a text, JSON is any value, and the last value of a key counts."""
    with model(call("show"), "done") as server:
        variables = ["-c", "a=1=2", "-c", '{"b": [1], "c": null}', "--context", "c=x"]
        result = invoke("run", "agents:shower", "?", *variables, server=server)
    assert result.exit_code == 0
    assert json.loads(server.requests[1]["messages"][-1]["content"]) == {"a": "1=2", "b": [1], "c": "x"}


def test_the_base_url_of_the_option() -> None:
    """--base-url needs no key, replaces the URL of the environment, and leaves the environment unchanged."""
    with model() as other, model("Hi", "Hi") as server:
        before = dict(os.environ)
        for environment_server in (None, other):
            result = invoke("run", *QUESTION, "--base-url", server.base_url, server=environment_server)
            assert (result.exit_code, result.stdout) == (0, "Hi\n")
        assert dict(os.environ) == before
    assert not other.requests


@pytest.mark.parametrize(("stdin", "text"), [(b"\xff\xfe", "not UTF-8"), (b" \n", "the question is empty")])
def test_questions_that_cannot_be_asked(stdin: bytes, text: str) -> None:
    """A question that is empty or not UTF-8 is a usage error, also from stdin."""
    for result in (
        invoke("run", "agents:triage", os.fsdecode(stdin)),
        invoke("run", "agents:triage", "-", stdin=stdin),
    ):
        assert result.exit_code == 2
        assert text in result.stderr


def test_the_model_holds_for_all_agents() -> None:
    """--model is the model of all agents, also after a handoff."""
    with model(*handoff()) as server:
        invoke("run", *QUESTION, "-m", "tiny", "-c", "user=x", server=server)
    assert [request["model"] for request in server.requests] == ["tiny"] * 3


@pytest.mark.parametrize("stream", ["--stream", "--no-stream"])
@pytest.mark.parametrize(("api", "key"), [("auto", "messages"), ("chat", "messages"), ("responses", "input")])
def test_the_api_of_the_option(api: str, key: str, stream: str) -> None:
    """--api is the API of the requests, by default Chat Completions for another server."""
    with model(*handoff()) as server:
        result = invoke("run", *QUESTION, "-c", "user=Ann", "--api", api, stream, server=server)
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "It is on its way.")
    assert all(key in request for request in server.requests)


@pytest.mark.parametrize("options", [(), ("--json",), ("--no-stream",), ("--no-stream", "--json")])
def test_a_provider_that_fails(options: tuple[str, ...]) -> None:
    """An error of the provider is exit code 1 with its message, and with --json a last line with the details."""
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
def test_an_empty_answer_is_a_note(answer: str) -> None:
    """An empty answer is a note on stderr and exit code 0."""
    with model(answer) as server:
        result = invoke("run", *QUESTION, server=server)
    assert (result.exit_code, result.stderr) == (0, "Note: the answer is empty\n")


def test_a_stream_that_breaks() -> None:
    """stdout has the text of a broken stream, and its line is finished."""
    broken = Reply(sse(ScriptedAnswer("Hello, world"), cut=5).pieces[:3], end="reset")
    with model(broken) as server:
        result = invoke("run", *QUESTION, server=server)
    assert result.exit_code == 1
    assert result.stdout == "Hello, wor\n"
    assert "the stream" in result.stderr  # some versions of httpx take a reset for an end


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ((), "100 completions"),
        (("--max-turns", "1"), "1 completion"),
        (("--max-turns", "1", "--no-stream"), "1 completion"),
    ],
)
def test_max_turns(options: tuple[str, ...], limit: str) -> None:
    """A run that reaches its limit, by default 100 completions, has no answer: exit code 3."""
    with model(*[call("look_up", order_id=7)] * 101) as server:
        result = invoke("run", "agents:orders", "?", "-c", "user=x", *options, server=server)
    assert result.exit_code == 3
    assert result.stderr.endswith(f"No answer: --max-turns was reached, after {limit}\n")


@pytest.mark.parametrize("command", ["run", "chat", "batch", "eval"])
def test_the_help_has_the_default_of_max_turns(command: str) -> None:
    """`--help` shows the default of --max-turns."""
    text = " ".join(invoke(command, "--help").output.split())
    assert re.search(r"--max-turns N End a run after this many completions\. \[default: 100;", text)


@pytest.mark.slow
@pytest.mark.parametrize(("then", "steps", "text"), [("stop", [], ""), ("answer", ["No"], "No\n")])
def test_a_completion_that_the_budget_cuts_ends_its_line(then: str, steps: list[str], text: str) -> None:
    """The line of a completion that the budget cuts is finished, and the next completion has its own line."""
    stalled = Reply(sse(ScriptedAnswer("Hello, world"), cut=5).pieces[:3], end="stall")
    for seconds in (0.5, 2, 8, 30):  # on a busy machine, the first seconds end before the text has come
        with model(stalled, *steps) as server:
            result = invoke("run", *QUESTION, "--budget", f"seconds={seconds},then={then}", server=server)
        if result.stdout.startswith("Hello"):
            break
    assert (result.exit_code, result.stdout) == (3, f"Hello, wor\n{text}")


@pytest.mark.parametrize("stream", ["--stream", "--no-stream"])
def test_budget(stream: str) -> None:
    """A run that uses up its budget is exit code 3, and stderr names the limit."""
    with model([call("look_up", order_id=1), call("look_up", order_id=2)]) as server:
        options = ("-c", "user=x", "--budget", "tool_calls=1, seconds=60.5")
        result = invoke("run", stream, "agents:orders", "?", *options, server=server)
    assert result.exit_code == 3
    assert result.stderr.endswith("Stopped: the --budget is used up (tool_calls), after 1 completion\n")


def test_a_budget_with_a_last_answer() -> None:
    """The last answer of a budget is on stdout, and the exit code is 3."""
    with model(call("look_up", order_id=1), "As far as I know.") as server:
        options = ("-c", "user=x", "--budget", "turns=1,then=answer")
        result = invoke("run", "agents:orders", "?", *options, server=server)
    assert (result.exit_code, result.stdout) == (3, "As far as I know.\n")


def test_a_refusal_is_not_an_answer() -> None:
    """A refusal is on stdout like an answer, and the exit code is 3."""
    with model(ScriptedAnswer(extra={"refusal": "I will not."})) as server:
        result = invoke("run", *QUESTION, server=server)
    assert (result.exit_code, result.stdout) == (3, "I will not.\n")
    assert result.stderr == "No answer: the model refused\n"


@pytest.mark.parametrize("options", [(), ("--no-stream",), ("--json",), ("--json", "--no-stream")])
def test_ctrl_c(options: tuple[str, ...]) -> None:
    """Ctrl-C is exit code 130 with a warning of the running call, and with --json a last line with the partial response."""
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
    """The debug output of Swarm is on stderr."""
    with model("Hi") as server:
        result = invoke("run", "--debug", *QUESTION, server=server)
    assert result.stdout == "Hi\n"
    assert "] Getting chat completion for...:" in result.stderr
    assert "\033" not in result.stderr, "a pipe gets no colours"


def test_debug_leaves_the_environment_alone() -> None:
    """--debug changes no environment variable of the processes that functions start."""
    agent = "\nimport os\nshown = Agent(instructions=lambda context: str(os.environ.get('NO_COLOR')))\n"
    Path("agents.py").write_text(AGENTS + agent, encoding="utf-8")
    with model("Hi") as server:
        invoke("run", "--debug", "agents:shown", "?", server=server)
    assert server.requests[0]["messages"][0]["content"] == str(os.environ.get("NO_COLOR"))


def test_json_lines() -> None:
    """Every typed event is a JSON object on a line of ASCII, and the last event has the response."""
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


@pytest.mark.usefixtures("keepers")
def test_json_of_a_run_that_is_not_streamed() -> None:
    """A run without streaming is one line, and context values that JSON does not know are text."""
    with model(call("keep"), "done", call("circle"), "done") as server:
        result, circle = (invoke("run", "--json", "--no-stream", "agents:keeper", "?", server=server) for _ in range(2))
    event = json.loads(result.stdout)
    assert event["type"] == "RunFinished"
    assert event["response"]["context_variables"]["object"].startswith("<object object")
    assert event["response"]["context_variables"]["number"] == ["inf"]
    assert json.loads(circle.stdout)["response"]["context_variables"].startswith("{'self': {")
