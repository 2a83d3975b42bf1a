"""The loop in plain lines: what is said is shown, what a turn leaves is kept, and nothing but the user ends it."""

from __future__ import annotations

import pytest
from talking import LOOPS, Talk, sent

from aswarm import Agent, ConfigurationError, Result
from aswarm.repl import run_demo_loop
from aswarm.testing import Answer, Failure, ScriptedModel, call


@pytest.fixture(params=LOOPS)
def talk(request, monkeypatch, capsys) -> Talk:
    return Talk(request.param, monkeypatch, capsys)


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_in_lines(talk, stream):
    """A banner, then `Name: text` for every answer; `exit` returns."""
    model = ScriptedModel(["Hello!", "Bye."], cut=2)
    out = talk(["Hi", "Bye", "exit", "never said"], Agent(name="Bot"), model, stream=stream)
    assert out.splitlines() == ["Starting Swarm CLI ~~~~:>", "Hi", "Bot: Hello!", "Bye", "Bot: Bye.", "exit"]
    assert sent(model, 1) == [("user", "Hi"), ("assistant", "Hello!"), ("user", "Bye")]
    assert [request.body["stream"] for request in model.requests] == [stream, stream]


@pytest.mark.parametrize("line", ["exit", " EXIT ", "/exit", EOFError()])
def test_the_user_leaves(talk, line):
    """`exit`, `/exit` or the end of input."""
    talk([line, "never said"], Agent(), ScriptedModel([]))


def test_nothing_said_asks_nobody(talk):
    """An empty line is no message."""
    model = ScriptedModel(["Hello!"])
    talk(["", "   ", "Hi"], Agent(), model)
    assert len(model.requests) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_calls_answers_and_handoffs_are_shown(talk, stream):
    """A call with its arguments, what the tool has answered, and who takes over, who then answers the next message."""

    async def look_up(city: str) -> str:
        """Look up the weather."""
        return "sunny,\n18 degrees"

    weather = Agent(name="Weather", functions=[look_up])

    def to_weather() -> Agent:
        """Hand over."""
        return weather

    calls = [call("look_up", city="Oslo"), call("nope")]  # answered in any order on trio
    model = ScriptedModel([call("to_weather"), Answer("Let me see.", calls=calls), "Sunny.", "Bye."], cut=4)
    out = talk(["Hi", "Bye"], Agent(name="Triage", functions=[to_weather]), model, stream=stream)
    lines = out.splitlines()[2:]
    lines[6:8] = sorted(lines[6:8])
    assert lines == [
        "Triage: to_weather()",
        '  to_weather: {"assistant": "Weather"}',
        "Triage -> Weather",
        "Weather: Let me see.",
        'Weather: look_up("city"= "Oslo")',
        "Weather: nope()",
        "  look_up: sunny, 18 degrees",
        "  nope: Error: Tool nope not found.",
        "Weather: Sunny.",
        "Bye",
        "Weather: Bye.",
        "",
    ]


def test_context_variables_stay(talk):
    """What a function changes is seen by the next message; the dict that was passed in is not changed."""

    def count(context_variables: dict) -> Result:
        """Count."""
        return Result(value="counted", context_variables={"n": context_variables["n"] + 1})

    given = {"n": 1}
    model = ScriptedModel([call("count"), "ok", call("count"), "ok"])
    out = talk(["a", "b", "/context"], Agent(functions=[count]), model, context_variables=given)
    assert "n = 3" in out.splitlines()
    assert given == {"n": 1}


def test_refusals_are_shown(talk):
    """A model that refuses is heard."""
    model = ScriptedModel([Answer(extra={"refusal": "I will not."})])
    assert "Bot: I will not." in talk(["Hi"], Agent(name="Bot"), model, stream=True).splitlines()


def test_the_history_is_shown_as_it_was_said(talk):
    """Everybody's lines, calls and their answers too."""

    def look_up(city: str) -> str:
        """Look up the weather."""
        return "sunny"

    model = ScriptedModel([call("look_up", city="Oslo"), "Sunny."])
    out = talk(["Weather?", "/history"], Agent(name="Bot", functions=[look_up]), model).splitlines()
    said = ["User: Weather?", 'Bot: look_up("city"= "Oslo")', "  look_up: sunny", "Bot: Sunny."]
    assert out[out.index("/history") + 1 :] == [*said, ""]


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_a_provider_error_is_a_line_and_the_loop_goes_on(talk):
    """The message that failed is in no later request: it may be what the provider refuses."""
    model = ScriptedModel([Failure(400, "too\nlong"), "Hello!"])
    out = talk(["a very long text", "Hi"], Agent(name="Bot"), model).splitlines()
    assert out[2].startswith("CompletionError: the provider failed: BadRequestError: Error code: 400 - ")
    assert out[2].endswith(" (/resume tries again)")
    assert out[4] == "Bot: Hello!"
    assert sent(model, 1) == [("user", "Hi")]


def test_a_message_that_failed_can_be_sent_again(talk):
    """`/resume` does."""
    model = ScriptedModel([Failure(500), "Hello!"])
    assert "Bot: Hello!" in talk(["Hi", "/resume"], Agent(name="Bot"), model)
    assert sent(model, 1) == [("user", "Hi")]


def test_what_tools_have_done_before_an_error_is_kept(talk):
    """The turn that failed had a call and an answer; `/resume` goes on from there, and so does another message."""

    def pay() -> str:
        """Pay."""
        return "paid"

    model = ScriptedModel([call("pay"), Failure(500), Failure(500), "Paid."])
    out = talk(["Pay", "/resume", "And?"], Agent(functions=[pay]), model)
    assert out.count("  pay: paid") == 1
    assert sent(model, 2) == [("user", "Pay"), ("assistant", None), ("tool", "paid")]
    assert sent(model, 3) == [*sent(model, 2), ("user", "And?")]


def test_a_broken_stream_is_a_line(talk):
    """What was said before the break is seen, and is in no message."""
    model = ScriptedModel([Answer("Hello there", break_after=3), "Hello!"], cut=4)
    out = talk(["Hi", "Hi"], Agent(name="Bot"), model, stream=True).splitlines()
    assert out[2] == "Bot: Hello th"
    assert out[3].startswith("StreamInterrupted: ")
    assert sent(model, 1) == [("user", "Hi")]


def test_a_tool_that_raises_is_a_line(talk):
    """And its traceback is not printed between, unless `debug` asks for it."""

    def look_up() -> str:
        """Look up."""
        raise ValueError("no such order")

    out = talk(["Hi"], Agent(functions=[look_up]), ScriptedModel([call("look_up"), "Sorry."]))
    assert "  look_up: Error: ValueError: no such order" in out.splitlines()
    assert not talk.capsys.readouterr().err


def test_what_is_asked_and_received_can_be_printed(talk):
    """`debug=True` prints as Swarm does."""
    out = talk(["Hi"], Agent(), ScriptedModel(["Hello!"]), debug=True)
    assert "Getting chat completion for...:" in out
    assert "Ending turn." in out


def test_no_credentials_are_a_line(talk, monkeypatch):
    """Without a client and a key, every message is answered with what to do."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_ADMIN_KEY", raising=False)
    assert "set OPENAI_API_KEY" in talk(["Hi"], Agent(), None)


def test_a_function_that_cannot_be_offered_is_a_line(talk):
    """A mistake in an agent ends no conversation."""

    def look_up(*args) -> str:
        """Look up."""
        return ""

    out = talk(["Hi", "/agent"], Agent(name="Bot", functions=[look_up]), ScriptedModel([]))
    assert [line.partition(":")[0] for line in out.splitlines()[2:4]] == ["ConfigurationError", "/agent"]


def test_bytes_that_are_no_text_are_a_line(talk):
    """Input in another encoding is refused, and halves of surrogate pairs become question marks."""
    broken = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
    model = ScriptedModel(["Hello!"])
    assert "This is no text: " in talk([broken, "H\udcffi"], Agent(), model)
    assert sent(model, 0) == [("user", "H?i")]


def test_a_run_that_is_too_long_is_stopped_and_can_go_on(talk):
    """`max_turns` counts the completions for one message."""

    def look_up() -> str:
        """Look up."""
        return "nothing"

    model = ScriptedModel([call("look_up"), "Nothing."])
    out = talk(["Hi", "/resume"], Agent(name="Bot", functions=[look_up]), model, max_turns=1)
    assert "Stopped after 1 completion; /resume goes on." in out.splitlines()
    assert "Bot: Nothing." in out.splitlines()


def test_another_model_can_be_asked(talk):
    """`model_override`, as in `run`."""
    model = ScriptedModel(["Hello!"])
    talk(["Hi"], Agent(model="a"), model, model_override="b")
    assert model.requests[0].body["model"] == "b"


@pytest.mark.parametrize(
    ("agent", "options"), [("Bot", {}), (Agent(), {"context_variables": [1]}), (Agent(), {"client": object()})]
)
def test_mistakes_of_the_caller_are_raised_at_once(agent, options):
    """Before anybody is asked anything."""
    with pytest.raises(ConfigurationError):
        run_demo_loop(agent, **options)
