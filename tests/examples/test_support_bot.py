"""`examples/support_bot`: its search and its outbox."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from email import message_from_bytes, policy
from pathlib import Path
from typing import Any

import pytest

from tests.examples.transcripts import EXAMPLES, environment, run_offline

FOLDER = EXAMPLES / "support_bot"
# Questions of customers in other words than the articles, and the article with the answer.
QUESTIONS = {
    "How do I install it out of the box?": "set-up-your-planter",
    "Where do the seed capsules go, which way up?": "set-up-your-planter",
    "My planter is offline, it doesn't find my router": "connect-to-wifi",
    "What happens to my plants when the internet is down?": "connect-to-wifi",
    "The lamp on the leaf is blinking red, what is wrong?": "what-the-light-means",
    "What does a yellow light mean?": "what-the-light-means",
    "How long does the water last while I am on vacation?": "refill-the-tank",
    "Can I use distilled water?": "refill-the-tank",
    "The pump makes a terrible noise": "clean-the-pump-filter",
    "How often should the filter be washed?": "clean-the-pump-filter",
    "The lamp keeps me awake at night, can I turn it off?": "set-the-grow-light",
    "How many hours of light does basil need?": "set-the-grow-light",
    "The leaves of my basil are going yellow": "plants-look-unwell",
    "There is white mould on the soil": "plants-look-unwell",
    "Nothing has grown from my seeds for a month": "plants-look-unwell",
    "How do I stop the monthly seeds subscription?": "seed-club",
    "I want to skip the next box of pods": "seed-club",
    "Where is my parcel?": "delivery-and-tracking",
    "Do you ship to France?": "delivery-and-tracking",
    "I have moved house, change my delivery address": "delivery-and-tracking",
    "I don't like it, I want my money back": "returns-and-refunds",
    "How do I return the planter?": "returns-and-refunds",
    "My planter broke after one year, will you fix it for free?": "warranty",
    "Is the adapter under guarantee?": "warranty",
    "I can't log in any more": "account-and-password",
    "I forgot my password": "account-and-password",
    "Delete all my personal data": "account-and-password",
    "Can my wife control it from her phone as well?": "share-a-planter",
    "How do I give my roommate access?": "share-a-planter",
}
OFFLINE = """
import asyncio, sys

def refuse(event, arguments):
    if event.startswith(("socket.connect", "socket.getaddrinfo", "socket.sendto")):
        raise RuntimeError(f"the search uses the network: {event} {arguments}")

sys.addaudithook(refuse)

from help_centre import HelpCentre

async def main():
    async with HelpCentre() as articles:
        print([article.name for article in await articles.search("I forgot my password")])

asyncio.run(main())
"""


def load(name: str) -> Any:
    """Return a module of the example. No other example has a module of this name."""
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    return importlib.import_module(name)


def test_tickets_and_letters_are_kept_in_the_outbox(tmp_path: Path) -> None:
    """`--outbox` writes a letter and a ticket of the customer, and keeps earlier files."""
    (tmp_path / "ticket-1.json").write_text("older", encoding="utf-8")
    done = run_offline("support_bot", "--outbox", str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["email-1.eml", "ticket-1.json", "ticket-2.json"]
    letter = message_from_bytes((tmp_path / "email-1.eml").read_bytes(), policy=policy.default)
    assert (letter["To"], letter["Subject"]) == ("noor@example.org", "Clean the pump filter")
    assert "anticlockwise" in letter.get_content()
    assert (tmp_path / "ticket-1.json").read_text(encoding="utf-8") == "older"
    assert json.loads((tmp_path / "ticket-2.json").read_text(encoding="utf-8"))["customer"] == "noor@example.org"


@pytest.mark.asyncio
async def test_questions_in_other_words_find_the_right_article() -> None:
    """Of 29 questions, 28 find their article among the three that the model reads."""
    missed: list[str] = []
    async with load("help_centre").HelpCentre() as articles:
        assert len(articles.articles) == len(set(QUESTIONS.values()))
        for question, name in QUESTIONS.items():
            found = [article.name for article in await articles.search(question)]
            assert len(set(found)) == 3
            missed += [] if name in found else [question]
    assert missed == ["How do I give my roommate access?"]


def test_the_search_needs_no_network() -> None:
    """A process that may neither connect nor look up a name finds the article."""
    env = environment()
    env["PYTHONPATH"] += f"{os.pathsep}{FOLDER}"
    done = subprocess.run([sys.executable, "-c", OFFLINE], env=env, capture_output=True, text=True, timeout=60)
    assert "'account-and-password'" in done.stdout, done.stderr


def test_concurrent_tickets_are_all_kept(tmp_path: Path) -> None:
    """Eight threads write forty tickets into forty files."""
    outbox = load("outbox").Outbox(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        names = list(pool.map(lambda number: outbox.put_ticket("a@b.example", f"{number}", "Grüße"), range(40)))
    filed = [json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))["summary"] for name in names]
    assert filed == [str(number) for number in range(40)]


def test_a_subject_cannot_smuggle_in_a_header(tmp_path: Path) -> None:
    """A subject of two lines is an error for the model, and nothing is written."""
    with pytest.raises(ValueError, match=r"newline|linefeed"):
        load("outbox").Outbox(tmp_path).put_email("a@b.example", "Hello\nBcc: everybody@example.org", "Hi")
    assert not list(tmp_path.iterdir())
