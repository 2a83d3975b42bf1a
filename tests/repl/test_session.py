"""The session: what a line means, what a turn leaves, which agents are known. No terminal and no model."""

from __future__ import annotations

import pytest
from chats import ANSWER, ASKING, USER

from aswarm import Agent, ConfigurationError, Response, Usage, tool
from aswarm.repl._agents import agents_from
from aswarm.repl._commands import COMMANDS, effect_of
from aswarm.repl._session import Complain, Leave, ReadFile, Say, Session, ShowHistory, Turn, WriteFile
from aswarm.testing import check_history


def session_of(*history: dict, **options) -> Session:
    session = Session(Agent(name="Bot"), **options)
    session.history = list(history)
    return session


def turn_of(session: Session, line: str) -> Turn:
    turn = effect_of(session, line)
    assert isinstance(turn, Turn)
    return turn


# --- lines ------------------------------------------------------------------------------------------------------------


def test_a_line_is_a_message_after_the_others():
    """The history itself is as it was until the turn has ended."""
    session = session_of(USER, ANSWER)
    turn = turn_of(session, " And? \n")
    assert turn.messages == [USER, ANSWER, {"role": "user", "content": "And?"}]
    assert (turn.said, turn.resume) == ("And?", False)
    assert session.history == [USER, ANSWER]


def test_a_space_in_front_makes_a_message_of_a_command():
    """What begins with a slash can be said."""
    assert turn_of(session_of(), " /help").said == "/help"


@pytest.mark.parametrize("line", ["/nope", "/", "/HELPS me", "/save", "/load  "])
def test_a_command_that_cannot_be_is_a_complaint(line):
    """An unknown one, or one without its file."""
    assert isinstance(effect_of(session_of(), line), Complain)


def test_the_help_names_every_command():
    """Each with its argument and what it does; capitals do not matter."""
    effect = effect_of(session_of(), "/HELP")
    assert isinstance(effect, Say)
    for name, command in COMMANDS.items():
        assert f"/{name}" in effect.text
        assert command.help in effect.text


def test_the_history_is_shown_where_there_is_one():
    """A copy of the messages, or a sentence."""
    assert effect_of(session_of(USER), "/history") == ShowHistory([USER])
    assert effect_of(session_of(), "/history") == Say("Nothing has been said yet.")


def test_context_variables_are_shown_whatever_they_are():
    """One line each; what cannot be shown says so."""

    class Broken:
        def __repr__(self) -> str:
            raise ValueError("no")

    session = session_of(starting_context={"user": "Ada", "cart": [1, 2], "broken": Broken()})
    assert effect_of(session, "/context") == Say(
        "user = 'Ada'\ncart = [1, 2]\nbroken = <Broken, which cannot be shown: no>"
    )
    assert effect_of(session_of(), "/context") == Say("There are no context variables.")


def test_usage_is_summed():
    """Over all turns, those of before a reset too: they have been paid for."""
    session = session_of()
    for _ in range(2):
        session.end_turn(session.say("Hi"), Response(messages=[ANSWER], usage=Usage(10, 5, 15, 1)), failed=False)
    session.reset()
    assert effect_of(session, "/usage") == Say("30 tokens (20 in, 10 out), 2 requests")


def test_a_reset_begins_anew():
    """The agent and the context are those of the beginning, however they have been changed."""
    given = {"cart": []}
    session = session_of(starting_context=given)
    turn = session.say("Hi")
    turn.context["cart"].append(1)
    given["cart"].append(2)
    session.end_turn(turn, Response(messages=[ANSWER], agent=Agent(name="Other"), context_variables={}), failed=False)
    assert effect_of(session, "/reset") == Say("A new conversation; Bot is active.")
    assert (session.history, session.agent.name, session.context) == ([], "Bot", {"cart": []})


def test_leaving():
    """`exit` and `/exit`, but not a sentence that begins so."""
    assert effect_of(session_of(), "exit") == effect_of(session_of(), "/exit") == Leave()
    assert turn_of(session_of(), "exit is what I want").said == "exit is what I want"


def test_files_are_for_others():
    """The session says what to write, and where to read."""
    assert effect_of(session_of(), "/load  my chat.json ") == ReadFile("my chat.json")
    effect = effect_of(session_of(USER, starting_context={"lock": object(), "n": 1}), "/save chat.json")
    assert isinstance(effect, WriteFile)
    assert (effect.path, effect.done) == ("chat.json", "1 message saved, without lock (not JSON).")


# --- turns ------------------------------------------------------------------------------------------------------------


def test_what_a_turn_has_left_is_kept():
    """Messages, agent and context."""
    session, other = session_of(), Agent(name="Other")
    session.end_turn(
        session.say("Hi"), Response(messages=[ANSWER], agent=other, context_variables={"n": 1}), failed=False
    )
    assert session.history == [USER, ANSWER]
    assert (session.agent, session.context) == (other, {"n": 1})
    assert session.resume() is None


def test_a_message_that_failed_is_kept_apart():
    """It can be sent again; the next message takes its place."""
    session = session_of(USER, ANSWER)
    session.end_turn(session.say("More"), Response(stop="error"), failed=True)
    assert session.history == [USER, ANSWER]
    again = session.resume()
    assert again is not None
    assert again.said == "More"
    session.end_turn(session.say("Else"), Response(messages=[ANSWER]), failed=False)
    assert session.resume() is None


def test_a_turn_that_was_stopped_keeps_the_message():
    """Whether or not anything came; going on asks the model with what is there."""
    session = session_of()
    session.end_turn(session.say("Hi"), Response(stop="cancelled"), failed=False)
    assert session.history == [USER]
    again = session.resume()
    assert again is not None
    assert (again.messages, again.said, again.resume) == ([USER], None, False)


def test_a_turn_again_that_fails_leaves_what_was_there():
    """Going on with a history adds nothing that could be lost."""
    session = session_of(USER)
    turn = session.resume()
    assert turn is not None
    session.end_turn(turn, Response(stop="error"), failed=True)
    assert (session.history, session.unsent) == ([USER], None)


def test_open_calls_are_run_when_the_user_says_so():
    """Until then they are named; another message comes after them, which makes them undone."""
    session = session_of(USER, ASKING)
    assert "look_up" in session.undone[0]
    turn = session.resume()
    assert turn is not None
    assert (turn.messages, turn.resume) == ([USER, ASKING], True)
    assert session.say("No").resume is False
    check_history([USER, ASKING], allow_open=True)


# --- agents -----------------------------------------------------------------------------------------------------------

sales = Agent(name="Sales")
nobody = None


def to_sales() -> Agent:
    """Hand over."""
    return sales


def to_nobody() -> Agent:
    """Hand over to one that is no agent yet."""
    return nobody  # type: ignore[return-value]


class Desk:
    """An object with a method for the model."""

    def to_sales(self) -> Agent:
        """Hand over."""
        return sales


def test_agents_are_found_without_calling_anything():
    """As `aswarm.graph` finds them; agents may point at each other."""
    inner = Agent(name="Inner")

    def to_inner() -> Agent:
        return inner

    def to_later() -> Agent:
        return later

    wrapped = [tool(to_inner), Desk().to_sales, to_nobody, to_later]
    listed = Agent(name="Listed", functions=wrapped)
    agent = Agent(name="Bot", functions=[listed])
    inner.functions.append(agent)
    assert list(agents_from(agent)) == ["Bot", "Listed", "Inner", "Sales"]
    later = Agent(name="Later")
    assert "Later" in agents_from(agent)
    listed.functions.append(print)  # what cannot be offered is for the run to say
    assert list(agents_from(agent)) == ["Bot"]


def test_another_agent_can_be_made_active():
    """One that is known, by its name; without a name, the active one is described."""
    session = Session(Agent(name="Bot", functions=[to_sales]))
    assert effect_of(session, "/agent") == Say("Bot (gpt-4o); functions: to_sales; known agents: Bot, Sales")
    assert effect_of(session, "/agent Sales") == Say("Sales (gpt-4o); functions: none; known agents: Bot, Sales")
    assert session.say("Hi").agent is sales
    assert effect_of(session, "/agent Nobody") == Complain("No agent 'Nobody' is known here; known are Bot, Sales.")


def test_an_agent_that_was_met_is_known():
    """Also one that no function mentions."""
    session = session_of()
    session.end_turn(session.say("Hi"), Response(messages=[ANSWER], agent=Agent(name="Made")), failed=False)
    session.reset()
    effect_of(session, "/agent Made")
    assert session.agent.name == "Made"


def test_a_mistake_of_the_caller_is_found_at_once():
    """An agent or a context of the wrong kind."""
    with pytest.raises(ConfigurationError, match="must be an Agent, not str"):
        Session("Bot")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="must be a dict, not list"):
        Session(Agent(), [])  # type: ignore[arg-type]
