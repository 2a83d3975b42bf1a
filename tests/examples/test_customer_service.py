"""`examples/customer_service`: nothing is ordered without the yes of the customer."""

from __future__ import annotations

import io
from typing import Any

import pytest

from tests.examples.loading import load, offered
from tests.examples.transcripts import run_offline

agents: Any = load("customer_service", "agents")
shop: Any = load("customer_service", "shop")
terminal: Any = load("customer_service", "terminal")


def test_an_order_is_confirmed_at_the_keyboard() -> None:
    """The typed line answers the question of the shop."""
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
    """An empty line and the end of the input are a no, and the answer is shown."""
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
    """The question has the price of the catalogue."""
    asked: list[str] = []

    def confirm(question: str) -> bool:
        asked.append(question)
        return confirmed

    assert shop.execute_order(item_id, {"confirm": confirm}) == told
    assert asked == ["Order the reading lamp for 54.00 EUR?"] * (item_id == "lamp-2")


def test_an_item_is_refunded_once() -> None:
    """A second refund and a refund of an unknown item are refused."""
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
    """One word of the name is enough to find an item."""
    assert shop.look_up_item(query) == found


@pytest.mark.asyncio
async def test_each_agent_has_its_functions_and_the_way_back() -> None:
    """Only triage can reach a human, and every other agent can return to triage."""
    assert await offered(agents.triage) == [
        "transfer_to_sales_agent",
        "transfer_to_issues_and_repairs_agent",
        "escalate_to_human",
    ]
    assert await offered(agents.sales) == ["look_up_item", "execute_order", "transfer_to_triage_agent"]
    assert await offered(agents.repairs) == ["look_up_item", "execute_refund", "transfer_to_triage_agent"]


@pytest.mark.asyncio
async def test_every_agent_of_the_museum_can_hand_off_to_the_two_others() -> None:
    """Visitors may change the language at any time."""
    museum = load("multilingual", "agents")
    names = {f"transfer_to_{language}_agent" for language in ("english", "spanish", "chinese")}
    for agent in (museum.english_agent, museum.spanish_agent, museum.chinese_agent):
        assert set(await offered(agent)) == names - {f"transfer_to_{agent.name.lower().replace(' ', '_')}"}
