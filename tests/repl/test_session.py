"""The session: what a line means, what is kept of a run, which agents are known. No terminal and no model."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout

import pytest

from aswarm import Agent, ConfigurationError, Response, Usage, tool
from aswarm.repl._chat import COMMANDS, Chat
from aswarm.repl._plain import PlainDisplay
from aswarm.repl._session import (
    Action,
    ContinueWith,
    CopyTo,
    Session,
    StartRun,
)
from aswarm.testing import check_history
from tests.support.repl.chats import ANSWER, ASKING, USER

BOT = Agent(name="Bot")


def session_of(*history: dict, **options) -> Session:
    session = Session(Agent(name="Bot"), **options)
    session.history = list(history)
    return session


def action_for(session: Session, line: str) -> Action | None:
    return Chat(session, PlainDisplay(live=False)).process_line(line)


def shown(session: Session, line: str) -> str:
    """What the chat shows; there is nothing else to do."""
    with redirect_stdout(io.StringIO()) as out:
        assert action_for(session, line) is None
    return out.getvalue().removesuffix("\n")


def start_of(session: Session, line: str) -> StartRun:
    start = action_for(session, line)
    assert isinstance(start, StartRun)
    return start


# --- lines ------------------------------------------------------------------------------------------------------------


def test_a_line_is_a_message_after_the_others():
    """The history itself does not change before the end of the run."""
    session = session_of(USER, ANSWER)
    start = start_of(session, " And? \n")
    assert start.messages == [USER, ANSWER, {"role": "user", "content": "And?"}]
    assert (start.new_message, start.resume) == ("And?", False)
    assert session.history == [USER, ANSWER]


def test_a_space_in_front_makes_a_message_of_a_command():
    """A message can begin with a slash."""
    assert start_of(session_of(), " /help").new_message == "/help"


@pytest.mark.parametrize("line", ["/nope", "/", "/HELPS me", "/save", "/load  "])
def test_a_wrong_command_is_an_error(line):
    """An unknown command, or one without its file."""
    assert re.match("There is no command /|/(save|load) needs the path of a file", shown(session_of(), line))


def test_the_help_names_every_command():
    """Each command has its help; upper and lower case are the same."""
    text = shown(session_of(), "/HELP")
    for name, command in COMMANDS.items():
        assert f"/{name}" in text
        assert command.help in text


def test_the_history_is_shown():
    """The messages, or a sentence if there are none."""
    assert shown(session_of(USER), "/history") == "User: Hi"
    assert shown(session_of(), "/history") == "There are no messages yet."


def test_context_variables_of_any_kind_are_shown():
    """Each has one line, also one whose repr fails."""

    class Broken:
        def __repr__(self) -> str:
            raise ValueError("no")

    session = session_of(starting_context={"user": "Ada", "cart": [1, 2], "broken": Broken()})
    assert shown(session, "/context") == "user = 'Ada'\ncart = [1, 2]\nbroken = <Broken: its repr failed: no>"
    assert shown(session_of(), "/context") == "There are no context variables."


def test_usage_is_summed():
    """Over all runs, also those before a reset, which have been paid for."""
    session = session_of()
    for _ in range(2):
        session.end_run(
            session.send("Hi"), Response(agent=BOT, messages=[ANSWER], usage=Usage(10, 5, 15, 1)), failed=False
        )
    session.reset()
    assert shown(session, "/usage") == "30 tokens (20 in, 10 out), 2 requests"


def test_a_reset_starts_again():
    """The agent and the context are the first ones, without later changes."""
    given = {"cart": []}
    session = session_of(starting_context=given)
    start = session.send("Hi")
    start.context["cart"].append(1)
    given["cart"].append(2)
    session.end_run(start, Response(messages=[ANSWER], agent=Agent(name="Other"), context_variables={}), failed=False)
    assert shown(session, "/reset") == "New conversation. The active agent is Bot."
    assert (session.history, session.agent.name, session.context) == ([], "Bot", {"cart": []})


def test_leaving():
    """`exit` and `/exit` leave; a sentence that begins with "exit" is a message."""
    for line in ("exit", "/exit"):
        chat = Chat(session_of(), PlainDisplay(live=False))
        assert chat.process_line(line) is None
        assert chat.is_over
    assert start_of(session_of(), "exit is what I want").new_message == "exit is what I want"


def test_the_session_uses_no_files():
    """It returns what to write, and which file to read."""
    assert action_for(session_of(), "/load  my chat ") == ContinueWith("my chat")
    assert action_for(session_of(USER), "/save chat") == CopyTo("chat")


# --- runs -------------------------------------------------------------------------------------------------------------


def test_the_response_of_a_run_is_kept():
    """Its messages, its agent and its context."""
    session, other = session_of(), Agent(name="Other")
    session.end_run(
        session.send("Hi"), Response(messages=[ANSWER], agent=other, context_variables={"n": 1}), failed=False
    )
    assert session.history == [USER, ANSWER]
    assert (session.agent, session.context) == (other, {"n": 1})
    assert session.resume() is None


def test_a_failed_message_is_not_in_the_history():
    """It can be sent again until another message is sent."""
    session = session_of(USER, ANSWER)
    session.end_run(session.send("More"), Response(agent=BOT, stop="error"), failed=True)
    assert session.history == [USER, ANSWER]
    again = session.resume()
    assert again is not None
    assert again.new_message == "More"
    session.end_run(session.send("Else"), Response(agent=BOT, messages=[ANSWER]), failed=False)
    assert session.resume() is None


def test_a_stopped_run_keeps_the_message():
    """Also if the model has sent nothing; to resume asks the model with the history."""
    session = session_of()
    session.end_run(session.send("Hi"), Response(agent=BOT, stop="cancelled"), failed=False)
    assert session.history == [USER, {"role": "assistant", "content": "[stopped by the user]", "sender": "Bot"}]
    again = session.resume()
    assert again is not None
    assert (again.messages, again.new_message, again.resume) == ([USER], None, False)


def test_what_was_read_of_a_stopped_answer_is_kept():
    """With a mark, so that the model knows; to resume asks again without it."""
    session = session_of()
    stopped = Response(agent=BOT, stop="cancelled")
    session.end_run(session.send("Hi"), stopped, failed=False, partial="It is a long st")
    assert session.history[1]["content"] == "It is a long st\n[stopped by the user]"
    check_history(session.send("Shorter").messages)
    assert [message["role"] for message in session.send("Shorter").messages] == ["user", "assistant", "user"]
    again = session.resume()
    assert again is not None
    assert again.messages == [USER]
    session.end_run(again, Response(agent=BOT, messages=[ANSWER]), failed=False)
    assert session.history == [USER, ANSWER]


def test_a_run_that_was_stopped_in_a_function_gets_no_mark():
    """Its calls have results, or are open; nothing of an answer was read."""
    session = session_of()
    response = Response(agent=BOT, messages=[ASKING], stop="cancelled")
    session.end_run(session.send("Hi"), response, failed=False)
    assert session.history == [USER, ASKING]
    assert session.open_calls


def test_a_resumed_run_that_fails_keeps_the_history():
    """To resume adds no message that would be removed again."""
    session = session_of(USER)
    start = session.resume()
    assert start is not None
    session.end_run(start, Response(agent=BOT, stop="error"), failed=True)
    assert (session.history, session.failed_message) == ([USER], None)


def test_only_resume_runs_open_calls():
    """Until then a hint names them; another message comes after them, and they are skipped."""
    session = session_of(USER, ASKING)
    assert "look_up" in session.open_calls_hint
    start = session.resume()
    assert start is not None
    assert (start.messages, start.resume) == ([USER, ASKING], True)
    assert session.send("No").resume is False
    check_history([USER, ASKING], allow_open=True)


# --- agents -----------------------------------------------------------------------------------------------------------

sales = Agent(name="Sales")
no_agent = None


def to_sales() -> Agent:
    """Hand off."""
    return sales


def to_no_agent() -> Agent:
    """Hand off to an agent that does not exist yet."""
    return no_agent  # type: ignore[return-value]


class Shop:
    """An object with a method for the model."""

    def to_sales(self) -> Agent:
        """Hand off."""
        return sales


def test_agents_are_found_without_calling_anything():
    """As `aswarm.graph` finds them; agents may hand off to each other."""
    inner = Agent(name="Inner")

    def to_inner() -> Agent:
        return inner

    def to_later() -> Agent:
        return later

    wrapped = [tool(to_inner), Shop().to_sales, to_no_agent, to_later]
    listed = Agent(name="Listed", functions=wrapped)
    agent = Agent(name="Bot", functions=[listed])
    inner.functions.append(agent)
    assert list(Session(agent).agents) == ["Bot", "Listed", "Inner", "Sales"]
    later = Agent(name="Later")
    assert "Later" in Session(agent).agents


def test_the_active_agent_can_be_changed():
    """By the name of a known agent; without a name, the active agent is described."""
    session = Session(Agent(name="Bot", functions=[to_sales]))
    assert shown(session, "/agent") == "Bot (gpt-6-luna); functions: to_sales; known agents: Bot, Sales"
    assert shown(session, "/agent Sales") == "Sales (gpt-6-luna); functions: none; known agents: Bot, Sales"
    assert session.send("Hi").agent is sales
    assert shown(session, "/agent Unknown") == "There is no agent 'Unknown'. Known agents: Bot, Sales."


def test_an_agent_that_was_active_is_known():
    """Also an agent that no function refers to."""
    session = session_of()
    session.end_run(session.send("Hi"), Response(messages=[ANSWER], agent=Agent(name="Made")), failed=False)
    session.reset()
    shown(session, "/agent Made")
    assert session.agent.name == "Made"


def test_a_mistake_of_the_caller_raises_at_once():
    """An agent or a context of the wrong kind is an error."""
    with pytest.raises(ConfigurationError, match="must be an Agent, not str"):
        Session("Bot")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="must be a dict, not list"):
        Session(Agent(), [])  # type: ignore[arg-type]
