"""Customer service: the transcripts of the walk, and what is never done without the customer's yes."""

from __future__ import annotations

import io
from typing import Any

import pytest

from aswarm._tools.toolbox import tools_of
from tests.examples.loading import load
from tests.examples.transcripts import Transcript, check_transcript, run_offline, transcripts

agents: Any = load("customer_service", "agents")
shop: Any = load("customer_service", "shop")
terminal: Any = load("customer_service", "terminal")


@pytest.mark.parametrize("transcript", transcripts("customer_service"), ids=str)
def test_the_transcripts_are_what_the_commands_print(transcript: Transcript) -> None:
    """Word for word, from an empty folder, with nobody at the keyboard."""
    check_transcript(transcript)


def test_the_walk_has_all_its_steps() -> None:
    """Each step has its transcript."""
    steps = [transcript.command.removeprefix("customer_service ") for transcript in transcripts("customer_service")]
    assert steps == ["1_routine.py", "2_functions.py", "3_handoff.py", "--yes"]


def test_an_order_is_confirmed_at_the_keyboard() -> None:
    """What is typed answers the shop's question."""
    done = run_offline("customer_service", text="y\n")
    assert "Order the reading lamp for 54.00 EUR? [y/N] y\n" in done.stdout
    assert "-> Ordered the reading lamp.\n" in done.stdout
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("typed", "answer", "shown"),
    [
        ("y\n", True, "y"),
        (" Yes \n", True, "Yes"),
        ("n\n", False, "n"),
        ("\n", False, "(no answer)"),
        ("", False, "(no answer)"),
        ("yes, but later\n", False, "yes, but later"),
    ],
)
def test_only_yes_is_a_yes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str, answer: bool, shown: str
) -> None:
    """Silence and the end of the input are a no; what was answered is shown."""
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    assert terminal.ask("Sure?") is answer
    assert capsys.readouterr().out.split("[y/N]")[1].strip() == shown


@pytest.mark.parametrize(
    ("item_id", "confirmed", "told"),
    [
        ("lamp-2", True, "Ordered the reading lamp."),
        ("lamp-2", False, "Not ordered: the customer did not confirm."),
        ("lamp-9", True, "Not ordered: there is no item 'lamp-9'."),
    ],
)
def test_an_order_needs_an_item_and_a_yes(item_id: str, confirmed: bool, told: str) -> None:
    """The price that is asked about is that of the catalogue."""
    asked: list[str] = []

    def confirm(question: str) -> bool:
        asked.append(question)
        return confirmed

    assert shop.execute_order(item_id, {"confirm": confirm}) == told
    assert asked == ["Order the reading lamp for 54.00 EUR?"] * (item_id == "lamp-2")


def test_an_item_is_refunded_once() -> None:
    """And only if there is such an item."""
    assert shop.execute_refund("lamp-3", "rust") == "Refunded 28.00 EUR, reason: rust."
    assert shop.execute_refund("lamp-3") == "Not refunded: lamp-3 is refunded already."
    assert shop.execute_refund("lamp-9") == "Not refunded: there is no item 'lamp-9'."


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("storm lamp", "lamp-2: reading lamp, 54.00 EUR; lamp-3: storm lamp, 28.00 EUR"),
        ("Kettle", "kettle-1: enamel kettle, 39.00 EUR"),
        ("sofa", "Nothing found for 'sofa'."),
    ],
)
def test_items_are_found_by_a_word(query: str, found: str) -> None:
    """Any word of the name will do."""
    assert shop.look_up_item(query) == found


def test_each_agent_has_its_functions_and_the_way_back() -> None:
    """A person can only be reached through triage."""
    assert list(tools_of(agents.triage)) == [
        "transfer_to_sales_agent",
        "transfer_to_issues_and_repairs_agent",
        "escalate_to_human",
    ]
    assert list(tools_of(agents.sales)) == ["look_up_item", "execute_order", "transfer_to_triage_agent"]
    assert list(tools_of(agents.repairs)) == ["look_up_item", "execute_refund", "transfer_to_triage_agent"]
