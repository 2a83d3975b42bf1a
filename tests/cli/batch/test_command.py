"""`aswarm batch` in this process: its input, its output, and its exit codes."""

from __future__ import annotations

import io
import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from aswarm.cli import main
from aswarm.cli.commands.batch import command as batch_command
from aswarm.testing import ScriptedAnswer, call
from tests.support.cli.cli_runs import AGENTS, environment, invoke, model, refused
from tests.support.providers.loopback import LoopbackServer

OUT = "out.jsonl"
MORE = '''
import threading
from aswarm import tool

@tool(timeout=0.01)
def pay(order_id: int) -> str:
    threading.Event().wait(0.3)
    return "paid"

@tool(approve=True)
def refund(order: int) -> str:
    """Refund an order."""
    print("refunding", order)
    return f"refunded {order}"

class Nameless:
    def __repr__(self) -> str:
        raise RuntimeError("no text for it")

async def keep(context_variables: dict) -> str:
    """Keep something that cannot be shown."""
    context_variables["kept"] = Nameless()
    return "kept"

keeper = Agent(name="Keeper", functions=[keep])
payer = Agent(name="Payer", functions=[pay])
cashier = Agent(name="Cashier", functions=[refund])
'''


@pytest.fixture(autouse=True)
def more(project: Path) -> None:
    """More agents in the module `agents`."""
    (project / "agents.py").write_text(AGENTS + MORE, encoding="utf-8")


def batch(server: LoopbackServer, *options: str, stdin: str | bytes | None = None) -> Result:
    """Run the command, one item at a time, so that the steps of the model are in the order of the input."""
    return invoke("batch", "agents:orders", *options, "--concurrency", "1", server=server, stdin=stdin)


def write(*records: Any, name: str = "in.jsonl") -> str:
    """Write a file of JSON Lines. A str is written unchanged."""
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    Path(name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return name


def outcomes(text: str | None = None) -> list[dict[str, Any]]:
    """Return the lines of the output."""
    return [json.loads(line) for line in (Path(OUT).read_text("utf-8") if text is None else text).splitlines()]


def statuses() -> dict[Any, str]:
    """Return the status of each id. The last line of an id counts."""
    return {line["id"]: line["status"] for line in outcomes()}


def test_a_batch() -> None:
    """A batch writes one outcome on each line and a summary on stderr, and is exit code 0."""
    items = [
        {"id": "T-1", "input": "Where is it?", "metadata": {"from": "web"}, "context_variables": {"user": "Bob"}},
        {"messages": [{"role": "user", "content": "Hi"}]},
    ]
    with model(call("look_up", order_id=7), "On its way.", "Hello! ä") as server:
        result = batch(server, write(*items), "-o", OUT, "-c", "user=Ann", "-c", "shop=1")
    assert (result.exit_code, result.stdout) == (0, "")
    first, second = outcomes()
    assert first == {
        "id": "T-1",
        "status": "answer",
        "text": "On its way.",
        "agent": "Orders",
        "usage": {"prompt_tokens": 20, "completion_tokens": 10, "total_tokens": 30, "requests": 2, "details": {}},
        "attempts": 1,
        "duration": first["duration"],
        "error": None,
        "unknown_calls": [],
        "waiting": [],
        "metadata": {"from": "web"},
        "context_variables": {"user": "Bob", "shop": "1"},
        "input_digest": first["input_digest"],
        "messages": first["messages"],
    }
    assert [message["role"] for message in first["messages"]] == ["assistant", "tool", "assistant"]
    assert first["messages"][1]["content"] == "Order 7 of Bob"
    assert (second["id"], second["text"], second["context_variables"]) == (2, "Hello! ä", {"user": "Ann", "shop": "1"})
    # After ten seconds, a slow machine has lines of the progress too.
    printed, summary, *more = [line for line in result.stderr.splitlines() if " done, " not in line]
    assert printed == "looking up"
    assert re.fullmatch(r"2 items in [\d a-z]+ \([\d.]+/s\): 2 answered", summary)
    assert more == [
        "45 tokens (30 in, 15 out) in 3 completions",
        "Outcomes are in out.jsonl",
    ]


def test_items_that_wait_and_lines_with_decisions() -> None:
    """An outcome has its waiting calls, and a line with its messages and `resume` continues it."""
    options = ("batch", "agents:cashier")
    with model(call("refund", call_id="c1", order=7)) as server:
        result = invoke(*options, write({"id": "a", "input": "Refund!"}), "-o", OUT, server=server)
    [line] = outcomes()
    assert (result.exit_code, line["status"], "1 waiting for a decision" in result.stderr) == (3, "waiting", True)
    assert line["waiting"] == [
        {"index": 0, "id": "c1", "name": "refund", "arguments": '{"order": 7}', "agent": "Cashier", "reason": "needs approval", "data": None, "answer": None}
    ]  # fmt: skip
    history = [{"role": "user", "content": "Refund!"}, *line["messages"]]
    lines = [
        {"id": name, "messages": history, "resume": {"c1": decision}}
        for name, decision in (("b", True), ("c", {"deny": "late"}))
    ]
    lines += [
        {"id": "d", "messages": history, "resume": "approve_all"},
        {"id": "e", "messages": history, "resume": True},
    ]
    with model("Yes.", "No.", "All.") as server:
        result = invoke(*options, write(*lines), "-o", "then.jsonl", "--concurrency", "1", server=server)
    *decided, last = outcomes(Path("then.jsonl").read_text("utf-8"))
    assert (result.exit_code, [line["text"] for line in decided], last["status"]) == (
        3,
        ["Yes.", "No.", "All."],
        "waiting",
    )
    assert [line["messages"][0]["content"] for line in decided] == [
        "refunded 7",
        "not run: denied by the user: late",
        "refunded 7",
    ]
    assert result.stderr.count("refunding 7") == 2


def test_decisions_that_cannot_be_used() -> None:
    """A `resume` of a wrong type is a rejected line, and a `resume` without an open call is a failed item."""
    history = [{"role": "user", "content": "Hi"}]
    source = write({"messages": history, "resume": 3}, {"messages": history, "resume": {"c1": True}})
    with model() as server:
        result = batch(server, source, "-o", OUT)
    assert (result.exit_code, [line["status"] for line in outcomes()]) == (1, ["error"])
    assert "'resume' must be true, \"approve_all\", or an object of decisions by call id" in result.stderr
    assert "messages have no open calls" in result.stderr


def test_calls_whose_outcome_is_unknown() -> None:
    """The outcome has its unknown calls, the summary their number, and the exit code is 5, also after a second command."""
    source = write({"input": "a"}, {"input": "b"}, {"input": "c"})
    both = [call("pay", order_id=1), call("pay", order_id=2)]
    with model(both, "Perhaps.", "No.", call("pay", order_id=3), refused("400 Bad Request", "no")) as server:
        result = invoke("batch", "agents:payer", source, "-o", OUT, "--concurrency", "1", server=server)
    assert result.exit_code == 1
    first, second, third = outcomes()
    assert [made["arguments"] for made in first["unknown_calls"]] == ['{"order_id": 1}', '{"order_id": 2}']
    assert first["unknown_calls"][0]["agent"] == "Payer"
    assert (first["status"], second["unknown_calls"], len(third["unknown_calls"])) == ("answer", [], 1)
    assert "The outcome of 3 calls in 2 items is unknown; the output has them as unknown_calls" in result.stderr
    with model(call("pay", order_id=3), "Perhaps.") as server:
        result = invoke("batch", "agents:payer", source, "-o", OUT, "--store", "run.sqlite", server=server)
    assert result.exit_code == 5
    assert "The outcome of 3 calls in 2 items is unknown" in result.stderr
    Path(OUT).write_text(json.dumps({**third, "status": "answer"}) + "\n", encoding="utf-8")
    with model("A", "B") as server:
        result = invoke("batch", "agents:payer", source, "-o", OUT, "--store", "run.sqlite", server=server)
    assert result.exit_code == 5
    assert "The outcome of 1 call in 1 item is unknown" in result.stderr


def test_from_stdin_to_stdout() -> None:
    """`-` reads stdin, stdout has only outcomes, --no-messages leaves their messages out, and --api is the API."""
    with model("A", "B") as server:
        result = batch(server, "-", "--no-messages", "--api", "responses", stdin='{"input": "a"}\n{"input": "b"}\n')
    assert result.exit_code == 0
    lines = outcomes(result.stdout)
    assert [(line["id"], line["text"]) for line in lines] == [(1, "A"), (2, "B")]
    assert "messages" not in lines[0]
    assert "Outcomes are in" not in result.stderr
    assert all("input" in request for request in server.requests)


def test_csv() -> None:
    """Options name the columns of the text and of the id, and --format the format of stdin."""
    Path("in.csv").write_text("number;ticket;shop\n7;Hello;Oslo\n8;;\n", encoding="utf-8")
    with model("Hi") as server:
        result = batch(server, "in.csv", "-o", OUT, "--column", "ticket", "--id-column", "number")
    assert result.exit_code == 1
    assert statuses() == {"7": "answer"}
    assert outcomes(Path(OUT).read_text(encoding="utf-8"))[0]["metadata"] == {"shop": "Oslo"}
    assert server.requests[0]["messages"][-1]["content"] == "Hello"
    with model("Hi") as server:
        result = batch(server, "-", "--format", "csv", stdin="input\nHello\n")
        assert (result.exit_code, len(outcomes(result.stdout))) == (0, 1)
        result = batch(server, "-", "--format", "csv", stdin="a,b\nHello,x\n")
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: there is no column 'input' or 'question'; the columns are: 'a', 'b'.")


def test_bad_lines_are_reported_and_kept() -> None:
    """Bad lines are kept in a file that the summary names, the other items run, and the exit code is 1."""
    with model("Hi") as server:
        result = batch(server, write("{", {"id": 5, "input": "a"}, {"id": "5", "input": "b"}), "-o", OUT)
    assert result.exit_code == 1
    assert statuses() == {5: "answer"}
    assert "line 1: not JSON: Expecting property name enclosed in double quotes (column 2)\n" in result.stderr
    assert "line 3: an earlier line has the same id '5'\n" in result.stderr
    assert "\n2 lines rejected; see out.rejected.jsonl\n" in result.stderr
    rejected = outcomes(Path("out.rejected.jsonl").read_text("utf-8"))
    assert [(line["line"], line["text"]) for line in rejected] == [(1, "{"), (3, '{"id": "5", "input": "b"}')]


def test_a_failed_item_has_its_partial_run() -> None:
    """The outcome of a failed item has the error and its messages, and the exit code is 1."""
    with model(call("look_up", order_id=7), refused("400 Bad Request", "too long"), "Hi") as server:
        result = batch(server, write({"input": "a"}, {"input": "b"}), "-o", OUT, "-c", "user=Ann")
    assert result.exit_code == 1
    failed, answered = outcomes()
    assert (failed["status"], answered["status"]) == ("error", "answer")
    error = {key: failed["error"][key] for key in ("type", "status_code", "retryable")}
    assert error == {"type": "CompletionError", "status_code": 400, "retryable": False}
    assert [message["role"] for message in failed["messages"]] == ["assistant", "tool"]
    assert "line 1 (id 1) failed: " in result.stderr
    assert "1 answered, 1 failed" in result.stderr


def test_numbers_that_json_does_not_have() -> None:
    """Numbers such as NaN are read, and written as text, so that each outcome is strict JSON."""
    item = '{"input": "a", "metadata": {"s": [1e999, 1]}, "context_variables": {"x": NaN}}'
    with model("A") as server:
        result = batch(server, write(item), "-o", OUT)
    assert result.exit_code == 0
    [line] = map(partial(json.loads, parse_constant=pytest.fail), Path(OUT).read_text("utf-8").splitlines())
    assert (line["metadata"], line["context_variables"]) == ({"s": ["inf", 1]}, {"x": "nan"})


def test_a_value_that_cannot_be_written() -> None:
    """The outcome has the type of a value that cannot be written, and all other fields."""
    with model(call("keep"), "A", "B") as server:
        result = invoke(
            *("batch", "agents:keeper", write({"input": "a"}, {"input": "b"}), "-o", OUT, "--concurrency", "1"),
            server=server,
        )
    assert result.exit_code == 0
    kept, other = outcomes()
    assert kept["context_variables"] == {"kept": "<Nameless>"}
    assert (kept["status"], kept["text"], kept["usage"]["requests"], len(kept["messages"])) == ("answer", "A", 2, 3)
    assert other["status"] == "answer"


def test_on_error_stop() -> None:
    """After the first failure no item starts, and the summary has their number and how to continue."""
    with model(refused("400 Bad Request", "no")) as server:
        items = write("{", *({"input": "a"} for _ in range(20)))
        result = batch(server, items, "-o", OUT, "--on-error", "stop")
    assert result.exit_code == 1
    assert len(server.requests) == 1
    assert statuses() == {2: "error"}
    assert (
        "\nStopped: an item failed, 19 lines not started. To continue, run the same command again with --store FILE:"
        in (result.stderr)
    )


def test_no_answer() -> None:
    """A refusal and a run that reaches --max-turns have no answer, and are exit code 3, also after a second command."""
    with model(ScriptedAnswer(extra={"refusal": "No."}), call("look_up", order_id=7)) as server:
        result = batch(server, write({"input": "a"}, {"input": "b"}), "-o", OUT, "--max-turns", "1", "-c", "user=x")
    assert result.exit_code == 3
    assert statuses() == {1: "refusal", 2: "max_turns"}
    assert "1 ended by --max-turns, 1 refused" in result.stderr
    with model() as server:
        assert batch(server, "in.jsonl", "-o", OUT, "--store", "run.sqlite", "-c", "user=x").exit_code == 3


def test_budget() -> None:
    """Each item has its own budget, and a used up budget is an outcome without an answer."""
    with model([call("look_up", order_id=7)] * 2, "Fine.") as server:
        result = batch(
            server, write({"input": "a"}, {"input": "b"}), "-o", OUT, "--budget", "tool_calls=1", "-c", "user=x"
        )
    assert result.exit_code == 3
    assert statuses() == {1: "budget", 2: "answer"}
    assert "1 ended by --budget" in result.stderr


def test_resuming_an_output() -> None:
    """With --store only failed items run again, and each failure and answer is appended."""
    items = write({"input": "a"}, {"input": "b"}, {"input": "c"})
    failure = refused("400 Bad Request", "no")
    with model("A", failure, "C", failure, "B") as server:
        assert batch(server, items, "-o", OUT).exit_code == 1
        refusal = batch(server, items, "-o", OUT)
        assert batch(server, items, "-o", OUT, "--store", "run.sqlite").exit_code == 1
        result = batch(server, items, "-o", OUT, "--store", "run.sqlite")
    assert refusal.exit_code == 2
    assert "has lines already; continue it with --store" in refusal.stderr
    assert result.exit_code == 0
    assert re.search(r"^1 item in ", result.stderr, re.MULTILINE)
    assert "2 items done before" in result.stderr
    assert [(line["id"], line["status"]) for line in outcomes()] == [
        (1, "answer"),
        (2, "error"),
        (3, "answer"),
        (2, "error"),
        (2, "answer"),
    ]


def test_an_output_of_another_input() -> None:
    """The output of another input is a usage error, also if both inputs have the same ids."""
    with model("A") as server:
        batch(server, write({"input": "a"}), "-o", OUT)
        result = batch(server, write({"input": "b"}), "-o", OUT, "--store", "run.sqlite")
    assert result.exit_code == 2
    assert "line 1: the output has another conversation with the id 1" in result.stderr
    assert [line["text"] for line in outcomes()] == ["A"]


def test_a_store() -> None:
    """The same command with a file as --store continues without repeating a completion or an answer."""
    items = write({"id": "a", "input": "a"}, {"id": "b", "input": "b"})
    options = ["-o", OUT, "--store", "run.sqlite", "-c", "user=Ann"]
    with model("A", call("look_up", order_id=7), refused("400 Bad Request", "no"), "B") as server:
        assert batch(server, items, *options).exit_code == 1
        result = batch(server, items, *options)
        assert (result.exit_code, statuses()) == (0, {"a": "answer", "b": "answer"})
        assert "looking up" not in result.stderr
        Path(OUT).unlink()
        assert batch(server, items, *options).exit_code == 0
        assert [line["text"] for line in outcomes()] == ["A", "B"]
    assert len(server.requests) == 4


@pytest.mark.parametrize("transport", ["aiohttp", "direct"])
def test_limits_are_passed_on(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """--rpm and --tpm are the limits of the swarm, and auto is the concurrency of the batch."""
    made: list[Any] = []

    class Swarm(batch_command.AsyncSwarm):
        def __init__(self, **options: Any) -> None:
            made.append(options)
            super().__init__(**options)

        def batch(self, *arguments: Any, **options: Any) -> Any:
            made.append(options["concurrency"])
            return super().batch(*arguments, **options)

    monkeypatch.setattr(batch_command, "AsyncSwarm", Swarm)
    with model("A") as server:
        options = ["--rpm", "600", "--tpm", "90000", "--transport", transport, "--concurrency", "auto"]
        result = invoke("batch", "agents:orders", write({"input": "a"}), "-o", OUT, *options, server=server)
    assert result.exit_code == 0
    assert made == [
        {
            "transport": transport,
            "api": "auto",
            "rate_limits": batch_command.RateLimits(requests_per_minute=600, tokens_per_minute=90000),
        },
        "auto",
    ]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["none.jsonl"], "there is no file 'none.jsonl'"),
        (["in.jsonl", "-o", "in.jsonl"], "is both INPUT and --output"),
        (["in.jsonl", "-o", OUT, "--store", OUT], "is both --output and --store"),
        (["out.rejected.jsonl", "-o", OUT], "is both INPUT and the file for rejected lines"),
        (["in.jsonl", "--concurrency", "0"], "Invalid value for '--concurrency'"),
        (["in.jsonl", "--concurrency", "many"], "Invalid value for '--concurrency'"),
        (["in.jsonl", "--rpm", "0"], "Invalid value for '--rpm'"),
        (["in.jsonl", "-o", "none/out.jsonl"], "cannot be written"),
    ],
)
def test_usage_errors(options: list[str], text: str) -> None:
    """A wrong option is a usage error, and nothing is sent."""
    write({"input": "a"})
    result = invoke("batch", "agents:orders", *options)
    assert result.exit_code == 2
    assert text in result.stderr


def test_standard_input_that_is_closed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`aswarm batch agents:orders - <&-` is a usage error."""
    monkeypatch.setattr("sys.stdin", None)
    monkeypatch.setattr("sys.argv", ["aswarm", "batch", "agents:orders", "-"])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "standard input is closed" in capsys.readouterr().err


def test_an_output_that_is_full() -> None:
    """An output on a full disk is exit code 1 with the reason."""
    # One item: before 4.16, anyio leaves a socket to the garbage collector if it is cancelled while it connects.
    with model("A") as server:
        result = batch(server, write({"input": "a"}), "-o", "/dev/full")
    assert result.exit_code == 1
    assert "No space left on device" in result.stderr


def test_a_batch_that_cannot_continue() -> None:
    """A batch that cannot continue prints how to continue and the reason, and is exit code 1."""
    Path("out.rejected.jsonl").mkdir()
    with model("A") as server:
        result = batch(server, write({"input": "a"}, "{"), "-o", OUT)
    assert result.exit_code == 1
    assert statuses() == {1: "answer"}
    assert "\nStopped. To continue, run the same command again with --store FILE:" in result.stderr
    assert result.stderr.endswith("Error: out.rejected.jsonl cannot be written: Is a directory\n")


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (["--store", "run.sqlite"], "To continue, run the same command again: run.sqlite has the finished steps"),
        (["-o", OUT], "To continue, run the same command again with --store FILE: items with an outcome"),
        ([], "All items must run again. (With --store FILE,"),
    ],
)
def test_ctrl_c(options: list[str], hint: str) -> None:
    """Ctrl-C prints the summary and how to continue, and is exit code 130."""
    items = write({"input": "a"}, {"input": "b"}, {"input": "c"})
    with model("A", call("stop")) as server:
        result = invoke("batch", "agents:triage", items, "--concurrency", "1", *options, server=server)
    assert result.exit_code == 130
    assert re.search(r"^1 item in .*: 1 answered$", result.stderr, re.MULTILINE)
    assert f"\nStopped. {hint}" in result.stderr


def test_a_bar_only_beside_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no bar on a terminal that is the output, because it would be drawn over the outcomes."""

    class Terminal(io.TextIOWrapper):
        def isatty(self) -> bool:
            return True

    with model("A", "A") as server:
        for name, value in environment(server).items():
            monkeypatch.setenv(name, value)
        for output in ("-", OUT):
            monkeypatch.setattr("sys.stdout", Terminal(io.BytesIO(), "utf-8"))
            monkeypatch.setattr("sys.stderr", Terminal(shown := io.BytesIO(), "utf-8"))
            monkeypatch.setattr("sys.argv", ["aswarm", "batch", "agents:orders", write({"input": "a"}), "-o", output])
            with pytest.raises(SystemExit, match="0"):
                main()
            assert ("━" in shown.getvalue().decode()) is (output == OUT)
