"""The rich display: what the screen shows during a run, and what stays there."""

from __future__ import annotations

import io
import sys
from typing import Any

import anyio
import pytest
from rich.console import Console

from aswarm import Agent, AsyncSwarm, ReasoningDelta, RefusalDelta, TextDelta, TurnStarted, Usage
from aswarm.repl._chat import Chat
from aswarm.repl._rich import RichDisplay
from aswarm.repl._session import Session
from aswarm.testing import ScriptedAnswer, ScriptedModel, call
from tests.support.repl.screen import Screen

TRIAGE = Agent(name="Triage")


class SeenDisplay(RichDisplay):
    """A display whose screen a test can read."""

    def __init__(self, *, live: bool = True) -> None:
        self._file = io.StringIO()
        super().__init__(Console(file=self._file, width=60, height=20, force_terminal=True), live=live)

    @property
    def seen(self) -> list[str]:
        """The lines on the screen now."""
        if self._live_area._live is not None:
            self._live_area._live.refresh()
        screen = Screen(60)
        screen.feed(self._file.getvalue().replace("\n", "\r\n"))
        return screen.text.splitlines()


@pytest.fixture
def display() -> SeenDisplay:
    return SeenDisplay()


def run(display: SeenDisplay, agent: Agent, model: ScriptedModel, said: str = "Hi") -> None:
    """Run the agents with one message."""
    chat = Chat(Session(agent), display)

    async def answer() -> None:
        start = chat.process_line(said)
        with chat.running(start):
            async with AsyncSwarm(model.client()).stream(start.agent, start.messages) as chat.run:
                async for event in chat.run:
                    display.show_event(event)

    anyio.run(answer)


@pytest.mark.parametrize("live", [True, False])
def test_a_run_with_tools_and_a_handoff(live):
    """The speaker, the calls with arguments and results, the handoff, and the usage."""

    async def look_up(city: str) -> str:
        """Look up the weather."""
        return "sunny\n18 degrees"

    weather = Agent(name="Weather", functions=[look_up])

    def to_weather() -> Agent:
        """Hand off."""
        return weather

    calls = [call("look_up", city="Oslo"), call("nope")]
    model = ScriptedModel([call("to_weather"), ScriptedAnswer("Let me *see*.", calls=calls), "It is **sunny**."], cut=4)
    display = SeenDisplay(live=live)
    run(display, Agent(name="Triage", functions=[to_weather]), model)
    assert display.seen == [
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
        "  ✗ nope: Error: Tool nope not found. Tools: look_up.",
        "",
        "It is sunny.",
        "",
        "45 tokens (30 in, 15 out), 3 requests",
    ]
    assert len({*display._colours.values()}) == 2


def test_an_answer_grows_on_the_screen(display):
    """Finished blocks are printed once; the rest is shown in place, rendered as Markdown."""
    display.show_event(TurnStarted(TRIAGE, 1))
    assert display.seen[-1].endswith("Triage")  # with a spinner
    display.show_event(TextDelta("- a\n- **b"))
    assert display.seen == ["", "Triage", " • a", " • **b"]
    display.show_event(TextDelta("**\n\nNow"))
    assert display.seen[2:] == [" • a", " • b", "", "Now"]
    display.show_event(TextDelta(" what?\n\n"))
    display.show_event(TextDelta("The *end*.\n"))
    assert display.seen[2:] == [" • a", " • b", "", "Now what?", "", "The end."]
    display.end_run()
    assert display.seen[2:] == [" • a", " • b", "", "Now what?", "", "The end."]


def test_without_streaming_an_answer_is_shown_at_its_end():
    """Until then there is only a spinner; reasoning and pieces are not shown."""
    display = SeenDisplay(live=False)
    display.show_event(TurnStarted(TRIAGE, 1))
    for event in (ReasoningDelta("Hm."), TextDelta("He"), RefusalDelta("No")):
        display.show_event(event)
    assert display.seen[-1].endswith("Triage")
    display.end_run()
    assert display.seen == []


def test_reasoning_is_shown_and_removed(display):
    """Only its end is shown, until the answer begins."""
    display.show_event(TurnStarted(TRIAGE, 1))
    display.show_event(ReasoningDelta("Long ago. " * 100))
    display.show_event(ReasoningDelta("The user greets."))
    assert display.seen[-1].endswith("The user greets.")
    assert len(display.seen) < 10
    display.show_event(TextDelta("Hello!"))
    assert display.seen == ["", "Triage", "Hello!"]


def test_refusals_are_shown(display):
    """Live and at the end. Where the provider sends no usage, none is shown."""
    for shown in (display, SeenDisplay(live=False)):
        run(shown, TRIAGE, ScriptedModel([ScriptedAnswer(extra={"refusal": "I will not."}, usage=None)]))
        assert shown.seen == ["", "Triage", "I will not."]


def test_no_text_controls_the_terminal(display):
    """Neither that of a model or tool, nor the name of an agent."""

    def look_up() -> str:
        """Look up."""
        return "\x1b[2J\nlook"

    model = ScriptedModel([ScriptedAnswer("\x1b[2Jhello", calls=[call("look_up"), call("\x1b[2J")]), "[red]done[/red]"])
    run(display, Agent(name="\x1b[2JBot", functions=[look_up]), model)
    assert "\x1b[2J" not in display._file.getvalue()
    assert "[red]done[/red]" in display.seen
    assert display.seen[1:3] == ["␛[2JBot", "␛[2Jhello"]


def test_long_results_of_tools_are_cut(display):
    """Long arguments are cut too."""
    display._show_result("look_up", "\n".join("abcdefghij"), failed=False)
    assert display.seen[-1] == "    … 4 more lines"
    display._show_result("look_up", "", failed=True)
    assert display.seen[-1] == "  ✗ look_up:"
    display.show_calls("Bot", {"tool_calls": [{"function": {"name": "look_up", "arguments": "x" * 5000}}]})
    assert display.seen[-1].endswith("...)")


def test_errors_and_texts_of_the_chat(display):
    """An error is one line, and its text is not read as markup."""
    display.greet("Say something.")
    display.show_error("a\nb [bold]c[/bold]")
    display.show_text("two\nlines")
    display.show_usage(Usage(1, 2, 3, 1))
    assert display.seen == [
        "",
        "Starting Swarm CLI ~~~~:>",
        "Say something.",
        "a b [bold]c[/bold]",
        "two",
        "lines",
        "3 tokens (1 in, 2 out), 1 request",
    ]


def test_a_history_is_shown_as_it_was_printed(display):
    """The messages of the user, the agents and other roles, with calls and results."""
    made = {"id": "1", "function": {"name": "look_up", "arguments": '{"city": "Oslo"}'}}
    display.show_history(
        [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
            {"role": "assistant", "sender": "Bot", "content": "Let me see.", "tool_calls": [made]},
            {"role": "tool", "tool_call_id": "1", "content": "sunny"},
            {"role": "assistant", "content": "**Sunny**"},
        ]
    )
    assert [line for line in display.seen if line] == [
        "System: Be kind.",
        "User: Weather?",
        "Bot",
        "Let me see.",
        '  → look_up(city="Oslo")',
        "  ← tool: sunny",
        "Assistant",
        "Sunny",
    ]


def test_each_run_names_its_speaker(display):
    """Also if it is the same one as before."""
    for answer in ("one", "two"):
        run(display, TRIAGE, ScriptedModel([answer]))
    assert display.seen.count("Triage") == 2


def test_other_output_is_printed_above_the_answer(display, monkeypatch):
    """A `print` of a program does not break the answer on the screen."""
    out: Any = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    display.show_event(TurnStarted(TRIAGE, 1))
    display.show_event(TextDelta("Hello"))
    print("by the way")
    display.show_event(TextDelta(" there"))
    display.end_run()
    assert display.seen == ["", "Triage", "by the way", "Hello there"]
    assert sys.stdout is out
