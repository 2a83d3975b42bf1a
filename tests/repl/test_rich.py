"""The rich face: what is on the screen while a run goes on, and what stays there."""

from __future__ import annotations

import io
import sys
from typing import Any

import anyio
import pytest
from rich.console import Console
from screen import Screen

from aswarm import Agent, AsyncSwarm, ReasoningDelta, RefusalDelta, TextDelta, TurnStarted, Usage
from aswarm.repl._chat import Chat
from aswarm.repl._rich import RichFace
from aswarm.repl._session import Session
from aswarm.testing import Answer, ScriptedModel, call

TRIAGE = Agent(name="Triage")


class Face(RichFace):
    """A face of which one sees the screen."""

    def __init__(self, *, live: bool = True) -> None:
        self._file = io.StringIO()
        super().__init__(Console(file=self._file, width=60, height=20, force_terminal=True), live=live)

    @property
    def seen(self) -> list[str]:
        """The lines on the screen now."""
        if self._stage._live is not None:
            self._stage._live.refresh()
        screen = Screen(60)
        screen.feed(self._file.getvalue().replace("\n", "\r\n"))
        return screen.text.splitlines()


@pytest.fixture
def face() -> Face:
    return Face()


def run(face: Face, agent: Agent, model: ScriptedModel, said: str = "Hi") -> None:
    """One message, answered by the agents."""
    chat = Chat(Session(agent), face)

    async def answer() -> None:
        turn = chat.take(said)
        with chat.answering(turn) as answering:
            async with AsyncSwarm(model.client()).stream(turn.agent, turn.messages) as answering.run:
                async for event in answering.run:
                    face.show(event)

    anyio.run(answer)


@pytest.mark.parametrize("live", [True, False])
def test_a_run_with_tools_and_a_handoff(live):
    """Who speaks, what is called with what and what came of it, who takes over, what it has used."""

    async def look_up(city: str) -> str:
        """Look up the weather."""
        return "sunny\n18 degrees"

    weather = Agent(name="Weather", functions=[look_up])

    def to_weather() -> Agent:
        """Hand over."""
        return weather

    calls = [call("look_up", city="Oslo"), call("nope")]
    model = ScriptedModel([call("to_weather"), Answer("Let me *see*.", calls=calls), "It is **sunny**."], cut=4)
    face = Face(live=live)
    run(face, Agent(name="Triage", functions=[to_weather]), model)
    assert face.seen == [
        "",
        "Triage",
        "  → to_weather()",
        '  ← to_weather: {"assistant": "Weather"}',
        "  Triage ⇒ Weather",
        "",
        "Weather",
        "Let me see.",
        "",
        '  → look_up(city="Oslo")',
        "  → nope()",
        "  ← look_up: sunny",
        "    18 degrees",
        "  ✗ nope: Error: Tool nope not found.",
        "",
        "It is sunny.",
        "",
        "45 tokens (30 in, 15 out), 3 requests",
    ]
    assert len({*face._page._colours.values()}) == 2


def test_an_answer_grows_on_the_screen(face):
    """What is finished is printed once; the rest is shown in place, as Markdown already."""
    face.show(TurnStarted(TRIAGE, 1))
    assert face.seen[-1].endswith("Triage")  # with a spinner
    face.show(TextDelta("- a\n- **b"))
    assert face.seen == ["", "Triage", " • a", " • **b"]
    face.show(TextDelta("**\n\nNow"))
    assert face.seen[2:] == [" • a", " • b", "", "Now"]
    face.show(TextDelta(" what?\n\n"))
    face.show(TextDelta("The *end*.\n"))
    assert face.seen[2:] == [" • a", " • b", "", "Now what?", "", "The end."]
    face.settle()
    assert face.seen[2:] == [" • a", " • b", "", "Now what?", "", "The end."]


def test_an_answer_is_shown_whole_where_nobody_streams():
    """Until then only a spinner turns; reasoning and pieces are not shown."""
    face = Face(live=False)
    face.show(TurnStarted(TRIAGE, 1))
    for event in (ReasoningDelta("Hm."), TextDelta("He"), RefusalDelta("No")):
        face.show(event)
    assert face.seen[-1].endswith("Triage")
    face.settle()
    assert face.seen == []


def test_reasoning_is_shown_and_goes(face):
    """Only its end while it lasts."""
    face.show(TurnStarted(TRIAGE, 1))
    face.show(ReasoningDelta("Long ago. " * 100))
    face.show(ReasoningDelta("The user greets."))
    assert face.seen[-1].endswith("The user greets.")
    assert len(face.seen) < 10
    face.show(TextDelta("Hello!"))
    assert face.seen == ["", "Triage", "Hello!"]


def test_refusals_are_shown(face):
    """Live, and whole. Where the provider says nothing of tokens, nothing is shown of them."""
    for shown in (face, Face(live=False)):
        run(shown, TRIAGE, ScriptedModel([Answer(extra={"refusal": "I will not."}, usage=None)]))
        assert shown.seen == ["", "Triage", "I will not."]


def test_nobody_steers_the_terminal(face):
    """Neither model nor tool nor the name of an agent."""

    def look_up() -> str:
        """Look up."""
        return "\x1b[2J\nlook"

    model = ScriptedModel([Answer("\x1b[2Jhello", calls=[call("look_up"), call("\x1b[2J")]), "[red]done[/red]"])
    run(face, Agent(name="\x1b[2JBot", functions=[look_up]), model)
    assert "\x1b[2J" not in face._file.getvalue()
    assert "[red]done[/red]" in face.seen
    assert face.seen[1:3] == ["␛[2JBot", "␛[2Jhello"]


def test_long_answers_of_tools_are_cut(face):
    """The screen is for the conversation; arguments are cut too."""
    face._page.answer("look_up", "\n".join("abcdefghij"), failed=False)
    assert face.seen[-1] == "    … 4 more lines"
    face._page.answer("look_up", "", failed=True)
    assert face.seen[-1] == "  ✗ look_up:"
    face._page.call("look_up", "x" * 5000)
    assert face.seen[-1].endswith("…)")


def test_errors_and_texts_of_the_loop(face):
    """A complaint is one line of text, whatever is in it."""
    face.greet("Say something.")
    face.complain("a\nb [bold]c[/bold]")
    face.say("two\nlines")
    face.usage(Usage(1, 2, 3, 1))
    assert face.seen == [
        "",
        "Starting Swarm CLI ~~~~:>",
        "Say something.",
        "a b [bold]c[/bold]",
        "two",
        "lines",
        "3 tokens (1 in, 2 out), 1 request",
    ]


def test_a_history_is_shown_as_it_was(face):
    """Everybody's messages, calls and their answers; messages of no agent too."""
    made = {"id": "1", "function": {"name": "look_up", "arguments": '{"city": "Oslo"}'}}
    face.history(
        [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
            {"role": "assistant", "sender": "Bot", "content": "Let me see.", "tool_calls": [made]},
            {"role": "tool", "tool_call_id": "1", "content": "sunny"},
            {"role": "assistant", "content": "**Sunny**"},
        ]
    )
    assert [line for line in face.seen if line] == [
        "System: Be kind.",
        "User: Weather?",
        "Bot",
        "Let me see.",
        '  → look_up(city="Oslo")',
        "  ← tool: sunny",
        "Assistant",
        "Sunny",
    ]


def test_every_run_names_its_speaker(face):
    """Also when it is the same one as before."""
    for answer in ("one", "two"):
        run(face, TRIAGE, ScriptedModel([answer]))
    assert face.seen.count("Triage") == 2


def test_what_a_program_prints_meanwhile_goes_above(face, monkeypatch):
    """A print of somebody else's does not tear the answer apart."""
    out: Any = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    face.show(TurnStarted(TRIAGE, 1))
    face.show(TextDelta("Hello"))
    print("by the way")
    face.show(TextDelta(" there"))
    face.settle()
    assert face.seen == ["", "Triage", "by the way", "Hello there"]
    assert sys.stdout is out
