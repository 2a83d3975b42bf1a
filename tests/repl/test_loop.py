"""The loop in plain lines: its output, the messages that it keeps, and its errors."""

from __future__ import annotations

import pytest

import aswarm.repl.repl as swarm_module
from aswarm import Agent, ConfigurationError, Result, Swarm
from aswarm.repl import run_demo_loop
from aswarm.testing import Failure, ScriptedAnswer, ScriptedModel, call
from tests.support.repl.chats import TypedLines, sent


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_in_lines(chat, stream):
    """A chat shows a banner and `Name: text` for each answer, and `exit` returns."""
    model = ScriptedModel(["Hello!", "Bye."], cut=2)
    out = chat(["Hi", "Bye", "exit", "never said"], Agent(name="Bot"), model, stream=stream, model_override="b")
    assert out.splitlines() == ["Starting Swarm CLI ~~~~:>", "Hi", "Bot: Hello!", "Bye", "Bot: Bye.", "exit"]
    assert sent(model, 1) == [("user", "Hi"), ("assistant", "Hello!"), ("user", "Bye")]
    assert [(request.body["stream"], request.body["model"]) for request in model.requests] == [(stream, "b")] * 2


def test_a_swarm_that_replaces_the_class_of_the_module(monkeypatch, capsys):
    """The loop makes the class `Swarm` of `aswarm.repl.repl`, which tests may replace."""
    model = ScriptedModel(["Hello!"])
    monkeypatch.setattr("aswarm.repl.repl.Swarm", lambda: Swarm(model.client()))
    monkeypatch.setattr("builtins.input", TypedLines(["Hi"]))
    run_demo_loop(Agent(name="Bot"))
    assert "Bot: Hello!" in capsys.readouterr().out
    monkeypatch.undo()
    assert swarm_module.Swarm is Swarm


@pytest.mark.parametrize("line", ["exit", " EXIT ", "/exit", "quit", "/quit", EOFError()])
def test_the_user_leaves(chat, line):
    """`exit`, `quit` and the end of the input leave the chat."""
    chat([line, "never said"], Agent(), ScriptedModel([]))


def test_an_empty_line_makes_no_request(chat):
    """An empty line is not a message."""
    model = ScriptedModel(["Hello!"])
    chat(["", "   ", "Hi"], Agent(), model)
    assert len(model.requests) == 1


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("stream", [False, True])
def test_calls_answers_and_handoffs_are_shown(chat, stream, api):
    """Calls, results and handoffs are shown, and the new agent answers the next message."""

    async def look_up(city: str) -> str:
        """Look up the weather."""
        return "sunny,\n18 degrees"

    weather = Agent(name="Weather", functions=[look_up])

    def to_weather() -> Agent:
        """Hand off."""
        return weather

    calls = [call("look_up", city="Oslo"), call("nope")]  # answered in any order on trio
    steps = [call("to_weather"), ScriptedAnswer("Let me see.", calls=calls), "Sunny.", "Bye."]
    model = ScriptedModel(steps, cut=4, api=api)
    out = chat(["Hi", "Bye"], Agent(name="Triage", functions=[to_weather]), model, stream=stream)
    lines = out.splitlines()[2:]
    lines[6:8] = sorted(lines[6:8])
    assert lines == [
        "Triage: to_weather()",
        '  to_weather: {"assistant": "Weather"}',
        "Triage -> Weather",
        "Weather: Let me see.",
        'Weather: look_up(city="Oslo")',
        "Weather: nope()",
        "  look_up: sunny, 18 degrees",
        "  nope: Error: Tool nope not found. Tools: look_up.",
        "Weather: Sunny.",
        "Bye",
        "Weather: Bye.",
        "",
    ]
    assert {request.is_responses for request in model.requests} == {api == "responses"}


def test_context_variables_stay(chat):
    """The next message sees the changed context variables, and the dict of the caller stays unchanged."""

    def count(context_variables: dict) -> Result:
        """Count."""
        return Result(value="counted", context_variables={"n": context_variables["n"] + 1})

    given = {"n": 1}
    model = ScriptedModel([call("count"), "ok", call("count"), "ok"])
    out = chat(["a", "b", "/context"], Agent(functions=[count]), model, context_variables=given)
    assert "n = 3" in out.splitlines()
    assert given == {"n": 1}


def test_refusals_are_shown(chat):
    """The refusal of a model is shown like an answer."""
    model = ScriptedModel([ScriptedAnswer(extra={"refusal": "I will not."})])
    assert "Bot: I will not." in chat(["Hi"], Agent(name="Bot"), model, stream=True).splitlines()


def test_the_history_is_shown_as_it_was_printed(chat):
    """`/history` shows the lines of the user and the agents, with calls and results."""

    def look_up(city: str) -> str:
        """Look up the weather."""
        return "sunny"

    model = ScriptedModel([call("look_up", city="Oslo"), "Sunny."])
    out = chat(["Weather?", "/history"], Agent(name="Bot", functions=[look_up]), model).splitlines()
    shown = ["User: Weather?", 'Bot: look_up(city="Oslo")', "  look_up: sunny", "Bot: Sunny."]
    assert out[out.index("/history") + 1 :] == [*shown, ""]


# --- errors -----------------------------------------------------------------------------------------------------------


def test_a_provider_error_is_a_line_and_the_chat_continues(chat):
    """A failed message is in no later request, because it may be the reason for the error."""
    model = ScriptedModel([Failure(400, "too\nlong"), "Hello!"])
    out = chat(["a very long text", "Hi", "/resume"], Agent(name="Bot"), model).splitlines()
    assert out[2].startswith("CompletionError: the provider failed: BadRequestError: Error code: 400 - ")
    assert out[2].endswith(" (/resume tries again)")
    assert out[4] == "Bot: Hello!"
    assert "There is nothing to resume. Send a message." in out
    assert sent(model, 1) == [("user", "Hi")]


def test_a_failed_message_can_be_sent_again(chat):
    """`/resume` sends a failed message again."""
    model = ScriptedModel([Failure(500), "Hello!"])
    assert "Bot: Hello!" in chat(["Hi", "/resume"], Agent(name="Bot"), model)
    assert sent(model, 1) == [("user", "Hi")]


def test_results_of_tools_before_an_error_are_kept(chat):
    """`/resume` and another message continue after the finished calls of a failed run."""

    def pay() -> str:
        """Pay."""
        return "paid"

    model = ScriptedModel([call("pay"), Failure(500), Failure(500), "Paid."])
    out = chat(["Pay", "/resume", "And?"], Agent(functions=[pay]), model)
    assert out.count("  pay: paid") == 1
    assert sent(model, 2) == [("user", "Pay"), ("assistant", None), ("tool", "paid")]
    assert sent(model, 3) == [*sent(model, 2), ("user", "And?")]


def test_a_broken_stream_is_a_line(chat):
    """The text of a broken stream is shown, and is in no message."""
    model = ScriptedModel([ScriptedAnswer("Hello there", break_after=3), "Hello!"], cut=4)
    out = chat(["Hi", "Hi"], Agent(name="Bot"), model, stream=True).splitlines()
    assert out[2] == "Bot: Hello th"
    assert out[3].startswith("StreamInterrupted: ")
    assert sent(model, 1) == [("user", "Hi")]


def test_debug_prints_requests_and_answers(chat):
    """`debug=True` prints as Swarm does."""
    out = chat(["Hi"], Agent(), ScriptedModel(["Hello!"]), debug=True)
    assert "Getting chat completion for...:" in out
    assert "Ending turn." in out


def test_missing_credentials_are_a_line(chat, monkeypatch):
    """Without a client and a key, a message gets a line with the remedy."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_ADMIN_KEY", raising=False)
    assert "set OPENAI_API_KEY" in chat(["Hi"], Agent(), None)


def test_a_function_that_cannot_be_offered_is_a_line(chat):
    """A mistake in an agent does not end the chat."""

    def look_up(*args) -> str:
        """Look up."""
        return ""

    out = chat(["Hi", "/agent"], Agent(name="Bot", functions=[look_up]), ScriptedModel([]))
    assert [line.partition(":")[0] for line in out.splitlines()[2:4]] == ["ConfigurationError", "/agent"]


def test_bytes_that_cannot_be_decoded_are_a_line(chat):
    """Input in another encoding is an error, and halves of surrogate pairs become question marks."""
    broken = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
    model = ScriptedModel(["Hello!"])
    assert "The input cannot be decoded: " in chat([broken, "H\udcffi"], Agent(), model)
    assert sent(model, 0) == [("user", "H?i")]


def test_a_run_that_is_too_long_is_stopped_and_can_be_resumed(chat):
    """`max_turns` limits the completions for one message."""

    def look_up() -> str:
        """Look up."""
        return "nothing"

    model = ScriptedModel([call("look_up"), "Nothing."])
    out = chat(["Hi", "/resume"], Agent(name="Bot", functions=[look_up]), model, max_turns=1)
    assert "Stopped after 1 completion. /resume continues." in out.splitlines()
    assert "Bot: Nothing." in out.splitlines()


@pytest.mark.parametrize(
    ("agent", "options"), [("Bot", {}), (Agent(), {"context_variables": [1]}), (Agent(), {"client": object()})]
)
def test_mistakes_of_the_caller_are_raised_at_once(agent, options):
    """A mistake of the caller is raised before the first line."""
    with pytest.raises(ConfigurationError):
        run_demo_loop(agent, **options)
