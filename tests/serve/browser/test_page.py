"""The page in Chromium, against a service in a process of its own."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

from aswarm.evals import load_cases
from tests.support.serve.browser_tabs import Tabs
from tests.support.serve.cutting_proxy import CuttingProxy

WORDS = " ".join(f"word{number}" for number in range(120))
RUNNING = ".call.is-running"
DRAWING = b'<svg xmlns="http://www.w3.org/2000/svg" width="60" height="40"/>'


def say(page: Page, text: str) -> None:
    """Write a message, and send it."""
    page.fill("#box", text)
    page.press("#box", "Enter")


def wait_for_end(page: Page, runs: int = 1) -> None:
    """Wait until the page shows so many runs, and none that goes on."""
    page.wait_for_function(
        "runs => document.querySelectorAll('.run-foot').length >= runs && !document.title.startsWith('●')"
        " && !document.querySelector('.run .thinking')",
        arg=runs,
        timeout=30_000,
    )


def asked(tabs: Tabs, text: str) -> Page:
    """Open a new conversation, and send a message."""
    page = tabs.open()
    say(page, text)
    return page


def answered(tabs: Tabs, text: str) -> Page:
    """Open a new conversation, send a message, and wait for the end of the run."""
    page = asked(tabs, text)
    wait_for_end(page)
    return page


def button(page: Any, name: str) -> Any:
    """Return the button with exactly this name."""
    return page.get_by_role("button", name=name, exact=True)


def answer(page: Page) -> str:
    """The text of the last turn."""
    return page.locator(".turn .prose").last.inner_text()


def conversation(page: Page) -> str:
    """The id of the conversation that the page shows."""
    return page.url.partition("#/c/")[2]


def runs_of(service: httpx.Client, name: str) -> list[dict[str, Any]]:
    """The runs of a conversation, the newest first."""
    found: list[dict[str, Any]] = service.get("/runs", params={"conversation": name}).json()["runs"]
    return found


def entries(service: httpx.Client, run: str) -> list[dict[str, Any]]:
    """Return the log of a finished run."""
    text = service.get(f"/runs/{run}/events").text
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]


def user_contents(service: httpx.Client, page: Page) -> list[Any]:
    """The contents of the messages of the user, as the service has them."""
    messages = service.get(f"/conversations/{conversation(page)}").json()["messages"]
    return [each["content"] for each in messages if each["role"] == "user"]


# --- reading ---


def test_three_cuts_of_the_connection_leave_no_gap_and_no_double(tabs: Tabs, proxy: CuttingProxy) -> None:
    """After three cuts in the middle of an answer, the page has its text once and whole."""
    page = asked(tabs, "a slow answer, please")
    for part in (100, 300, 600):
        page.wait_for_function(
            "least => (document.querySelector('.turn .prose')?.innerText.length || 0) > least", arg=part
        )
        assert proxy.cut() >= 1
    wait_for_end(page)
    assert answer(page) == WORDS
    assert proxy.cuts == 3
    assert page.locator(".turn").count() == 1


def test_two_tabs_show_the_same_run(tabs: Tabs, service: httpx.Client) -> None:
    """A second tab joins a run in its middle, and a run of one tab appears in the other tab."""
    first = tabs.open()
    say(first, "a slow answer, please")
    first.wait_for_function("() => document.querySelector('.turn .prose')?.innerText.length > 100")
    second = tabs.open(f"#/c/{conversation(first)}")
    for page in (first, second):
        wait_for_end(page)
        assert answer(page) == WORDS
    say(second, "hello again")
    wait_for_end(first, 2)
    assert answer(first) == answer(second) == "Hello! I can look up orders, and refund them."
    assert len(runs_of(service, conversation(first))) == 2


def test_a_message_beside_an_active_run_shows_that_run_and_stays_in_the_box(tabs: Tabs, service: httpx.Client) -> None:
    """The service refuses the message; the page joins the active run, shows a notice, and keeps the text."""
    page = answered(tabs, "hello")
    page.route(re.compile("/runs$"), lambda route: route.abort() if route.request.method == "GET" else route.fallback())
    service.post(f"/conversations/{conversation(page)}/runs", json={"text": "slow, please"}).raise_for_status()
    say(page, "me too")
    expect(page.get_by_role("alert")).to_contain_text("Another run of this conversation is active")
    assert page.input_value("#box") == "me too"
    wait_for_end(page, 2)
    assert answer(page) == WORDS


def test_a_run_can_be_watched_by_its_id(tabs: Tabs, service: httpx.Client) -> None:
    """The page finds the conversation of a run whose id was given."""
    run = service.post("/conversations/watched/runs", json={"text": "slow, please"}).json()["run"]
    page = tabs.open()
    page.get_by_role("button", name="Watch a run").click()
    page.get_by_label("Id of the run").fill(run)
    button(page, "Watch").click()
    expect(page.locator(".turn .prose")).to_contain_text("word3")
    wait_for_end(page)
    assert answer(page) == WORDS


def test_calls_that_ran_together_stand_side_by_side_with_the_times_of_the_log(
    tabs: Tabs, service: httpx.Client
) -> None:
    """Three calls are one group, and each shows the time between its entries in the log, also after a reload."""
    page = answered(tabs, "my orders")
    page.reload()
    page.wait_for_selector(".group")
    log = entries(service, runs_of(service, conversation(page))[0]["id"])
    calls = page.locator(".group .call")
    assert calls.count() == 3
    assert len({round(calls.nth(at).bounding_box()["y"]) for at in range(3)}) == 1  # type: ignore[index]
    for name in ("look_up_order", "check_stock", "estimate_delivery"):
        begun, ended = (
            next(each["at"] for each in log if each["type"] == kind and each["name"] == name)
            for kind in ("ToolCallStarted", "ToolCallFinished")
        )
        expect(page.locator(".group .call", has_text=name).locator(".time")).to_have_text(f"{ended - begun} ms")
    expect(page.locator(".call.is-error")).to_contain_text("no carrier delivers to Atlantis")
    expect(page.locator(".log .handoff")).to_have_text("TriageOrders")


def test_the_page_works_below_a_path_and_asks_for_the_token(new_tabs: Any, mounted_shop: int) -> None:
    """In an app that mounts the service, every request of the page is below that path, and has the token of the user."""
    tabs = new_tabs()
    page = tabs.context.new_page()
    page.goto(f"http://127.0.0.1:{mounted_shop}/agents")
    page.get_by_role("textbox", name="Token").fill("secret")
    page.get_by_role("button", name="Continue").click()
    page.wait_for_selector(".card")
    page.get_by_label("Model").fill("my-own-model")
    say(page, "hello")
    wait_for_end(page)
    page.get_by_role("tab", name="Requests").click()
    expect(page.locator(".panel")).to_contain_text("Modelmy-own-model")
    page.get_by_role("tab", name="Context").click()
    expect(page.get_by_role("button", name="Edit the context")).to_have_count(0)
    page.reload()
    expect(page.locator(".turn .prose")).to_have_text("Hello! I can look up orders, and refund them.")
    assert page.url.startswith(f"http://127.0.0.1:{mounted_shop}/agents/#/c/")


# --- decisions ---


def test_the_arguments_of_a_call_are_edited(tabs: Tabs) -> None:
    """Text that is no object is refused in place; then the function runs with the new arguments."""
    page = asked(tabs, "a refund, please")
    page.get_by_role("button", name="Edit…").click()
    field = page.get_by_role("textbox", name="Arguments")
    field.fill("[1]")
    page.get_by_role("button", name="Approve these").click()
    expect(page.get_by_role("alert")).to_have_text("The arguments must be a JSON object.")
    field.fill('{"order_id": 4711, "amount": 20, "reason": "half"}')
    page.get_by_role("button", name="Approve these").click()
    wait_for_end(page, 2)
    expect(page.locator(".call").last).to_contain_text("Refunded 20.00 EUR")


@pytest.mark.parametrize("by_mouse", [True, False], ids=["mouse", "keyboard"])
@pytest.mark.parametrize(("opens", "field"), [("Deny…", "Reason for the model"), ("Edit…", "Arguments")])
def test_a_form_takes_the_focus_and_gives_it_back(tabs: Tabs, by_mouse: bool, opens: str, field: str) -> None:
    """The letters go into the field, Escape closes the form from wherever the focus is, and Ctrl+Enter sends it."""
    page = asked(tabs, "a refund, please")
    button = page.get_by_role("button", name=opens)
    for times in range(3):
        if by_mouse and times < 2:
            button.click()
        else:
            button.press("Enter")
        expect(page.get_by_role("textbox", name=field)).to_be_focused()
        before = conversation(page)
        page.keyboard.type("n/t")
        assert "n/t" in page.get_by_role("textbox", name=field).input_value()
        if times == 1:
            page.get_by_role("button", name="Back").focus()
        if times < 2:
            page.keyboard.press("Escape")
            expect(button).to_be_focused()
    assert conversation(page) == before
    expect(page.get_by_role("textbox", name="Message")).to_have_value("")
    page.get_by_role("textbox", name=field).fill(
        "no photo" if opens == "Deny…" else '{"order_id": 4711, "amount": 7, "reason": "x"}'
    )
    page.keyboard.press("Control+Enter" if by_mouse else "Meta+Enter")
    wait_for_end(page, 2)
    expect(page.locator(".call").last).to_contain_text("no photo" if opens == "Deny…" else "Refunded 7.00 EUR")


@pytest.mark.parametrize("by_mouse", [True, False], ids=["mouse", "keyboard"])
def test_a_message_that_closes_a_question_is_confirmed(tabs: Tabs, service: httpx.Client, by_mouse: bool) -> None:
    """The confirmation names the calls that close. Enter and Escape cancel it, and the text stays in the box."""
    page = asked(tabs, "the account, please")
    page.wait_for_selector(".decision")
    for key in ("Enter", "Escape"):
        page.fill("#box", "savings")
        if by_mouse:
            button(page, "Send").click()
        else:
            page.press("#box", "Enter")
        dialog = page.get_by_role("dialog", name="Send the message?")
        expect(dialog).to_contain_text("1 call waits for you. A new message closes it as not run.")
        page.keyboard.press(key)
        expect(dialog).to_have_count(0)
        expect(page.locator("#box")).to_have_value("savings")
        expect(page.locator(".decision")).to_have_count(1)
    page.press("#box", "Enter")
    page.get_by_role("dialog").get_by_role("button", name="Send").click()
    wait_for_end(page, 2)
    assert user_contents(service, page) == ["the account, please", "savings"]


@pytest.mark.parametrize(
    ("text", "given", "told"), [("account", "savings", "to savings"), ("label", '{"cracks": 2}', '"cracks": 2')]
)
def test_a_question_is_answered(tabs: Tabs, text: str, given: str, told: str) -> None:
    """A question of a function, and a call of an external tool, get the answer that was written; also after a reload."""
    page = asked(tabs, f"the {text}, please")
    page.wait_for_selector(".decision")
    page.reload()
    page.get_by_label("Your answer").fill(given)
    button(page, "Answer").click()
    wait_for_end(page, 2)
    expect(page.locator(".call").last).to_contain_text(told)


def test_a_stopped_run_names_its_unknown_outcomes(tabs: Tabs) -> None:
    """After Stop, the call that was cut is marked, and named."""
    page = asked(tabs, "the printer is stuck")
    page.wait_for_selector(RUNNING)
    button(page, "Stop").click()
    wait_for_end(page)
    expect(page.locator(".call.is-unknown")).to_contain_text("outcome unknown")
    expect(page.get_by_role("group", name="Stopped")).to_contain_text(
        "The outcome of 1 call is unknown: print_invoice."
    )


def test_a_failed_run_shows_its_error(tabs: Tabs) -> None:
    """The page of a developer shows the type and the text of the error."""
    page = asked(tabs, "an error, please")
    expect(page.get_by_role("group", name="Error")).to_contain_text("the prompt has too many tokens")
    expect(page.get_by_role("group", name="Error")).to_contain_text("CompletionError")


@pytest.mark.parametrize("width", [380, 1280])
def test_a_call_that_waits_for_a_decision_is_in_view(new_tabs: Any, width: int) -> None:
    """The page follows a run to its end, however its own scrolling and the growth of the conversation interleave."""
    page = new_tabs(viewport={"width": width, "height": 560}).open()
    for number in range(4):
        say(page, "my orders")
        if number:  # the refund of the last round still waits
            page.get_by_role("dialog", name="Send the message?").get_by_role("button", name="Send").click()
        wait_for_end(page, 2 * number + 1)
        say(page, "a refund, please")
        wait_for_end(page, 2 * number + 2)
        expect(page.get_by_role("button", name="Deny…")).to_be_in_viewport(ratio=1)
        expect(page.get_by_role("button", name="Approve")).to_be_in_viewport(ratio=1)
    page.reload()
    wait_for_end(page, 8)
    expect(page.get_by_role("button", name="Approve")).to_be_in_viewport(ratio=1)


def test_a_reader_who_scrolls_up_stays_there(new_tabs: Any) -> None:
    """New text does not move the page. At the end of the page, and after a new message, the page follows again."""
    page = answered(new_tabs(viewport={"width": 1280, "height": 500}), "my orders")
    say(page, "slow, please")
    page.wait_for_function("() => document.title.startsWith('●')")
    page.hover(".log")
    page.mouse.wheel(0, -400)
    time.sleep(0.5)
    place = page.evaluate("document.querySelector('.log').scrollTop")
    time.sleep(1)
    assert page.evaluate("document.querySelector('.log').scrollTop") == place
    page.mouse.wheel(0, 4000)
    wait_for_end(page, 2)
    expect(page.locator(".run-foot").last).to_be_in_viewport(ratio=1)
    page.mouse.wheel(0, -400)
    time.sleep(0.3)
    say(page, "hello")
    wait_for_end(page, 3)
    expect(page.locator(".run-foot").last).to_be_in_viewport(ratio=1)


# --- addresses that are wrong, and a service that is away ---


@pytest.mark.parametrize(
    ("place", "told"), [(f"#/{kind}/{name}", name) for kind in "rc" for name in ("nothing", "%E0%A4%A")]
)
def test_a_wrong_address_shows_a_notice(tabs: Tabs, place: str, told: str) -> None:
    """The page names the missing conversation or run, and a new conversation can be started."""
    page = tabs.open()
    page.goto(f"{tabs.url}/{place}")
    expect(page.get_by_role("alert")).to_contain_text(told)
    expect(page.get_by_role("heading", name="Talk to your agents")).to_be_visible()
    say(page, "hello")
    wait_for_end(page)
    assert answer(page) == "Hello! I can look up orders, and refund them."


def test_a_service_that_is_away_is_asked_ever_more_rarely(tabs: Tabs) -> None:
    """The page makes few requests, because each failed request is an error in the console. It reconnects by itself."""
    page = tabs.open()
    page.clock.install()
    page.reload()
    page.wait_for_selector(".card")
    asked: list[str] = []

    def refuse(route: Any) -> None:
        asked.append(route.request.url)
        route.abort()

    page.route("**/*", refuse)
    for _ in range(120):
        page.clock.run_for(1000)
    assert 3 <= len(asked) <= 8
    expect(page.locator(".connection")).to_have_text("Reconnecting…")
    page.unroute("**/*")
    page.evaluate("window.dispatchEvent(new Event('focus'))")
    expect(page.locator(".connection")).to_have_count(0)


# --- images and files ---


def test_images_of_tools_and_of_markdown_are_shown_and_nothing_is_loaded(tabs: Tabs) -> None:
    """Images that hold their data are shown, also after a reload and in a fork. One with an address is a link."""
    page = answered(tabs, "a picture, please")
    drawn = "() => [...document.querySelectorAll('.log img')].filter((each) => each.naturalWidth === 60).length"
    page.wait_for_function(f"() => ({drawn})() === 2")
    expect(page.locator(".call .answer")).to_contain_text("A lamp.")
    expect(page.get_by_role("link", name="A photo")).to_have_attribute("href", "https://example.invalid/photo.png")
    above = page.locator(".prose pre").bounding_box()
    quote = page.locator(".prose blockquote").bounding_box()
    assert above and quote and quote["y"] - above["y"] - above["height"] >= 8
    page.reload()
    page.wait_for_function(f"() => ({drawn})() === 2")
    page.get_by_role("tab", name="History").click()
    expect(page.get_by_role("tabpanel").locator("img")).to_have_count(1)
    page.get_by_role("button", name="Fork after message 4").click()
    page.get_by_role("button", name="Fork here").click()
    expect(page.get_by_role("heading", name="A fork")).to_be_visible()
    page.wait_for_function(f"() => ({drawn})() === 2")


def test_images_and_files_are_sent(tabs: Tabs, service: httpx.Client) -> None:
    """They are chosen, can be taken back, stand in the message, and stay with it when its text is edited."""
    page = tabs.open()
    pdf = {"name": "bill.pdf", "mimeType": "application/pdf", "buffer": b"%PDF-1.4"}
    svg = {"name": "lamp.svg", "mimeType": "image/svg+xml", "buffer": DRAWING}
    page.locator("input[type=file]").set_input_files([svg, pdf, {**pdf, "name": "other.pdf"}])
    page.get_by_role("button", name="Remove other.pdf").click()
    expect(page.get_by_role("button", name="Remove the image").locator("img")).to_be_visible()
    say(page, "hello, look")
    wait_for_end(page)
    expect(page.locator(".bubble")).to_contain_text("[bill.pdf]")
    expect(page.locator(".bubble img")).to_be_visible()
    expect(page.get_by_role("button", name="Remove bill.pdf")).to_have_count(0)
    [content] = user_contents(service, page)
    assert content[0] == {"type": "text", "text": "hello, look"}
    assert sorted(part["type"] for part in content) == ["file", "image_url", "text"]
    page.locator(".message.user").hover()
    page.get_by_role("button", name="Edit and resend").click()
    expect(page.get_by_label("Your message")).to_have_value("hello, look")
    page.get_by_label("Your message").fill("hello again")
    page.get_by_role("button", name="Fork and send").click()
    page.wait_for_selector(".bubble:has-text('hello again')")
    wait_for_end(page)
    assert user_contents(service, page) == [[{"type": "text", "text": "hello again"}, *content[1:]]]


def test_a_prompt_stands_in_the_box_before_it_is_sent(tabs: Tabs, service: httpx.Client) -> None:
    """Its arguments are asked for, an error is shown, and the user may change the text. An image stays with it."""
    page = tabs.open()
    page.get_by_label("Message", exact=True).fill("hello")
    page.get_by_role("button", name="Insert a prompt").click()
    page.get_by_role("combobox", name="Prompt").select_option("The weather")
    page.get_by_role("button", name="Insert", exact=True).click()  # without the city, which is required
    expect(page.get_by_role("dialog")).to_be_visible()
    page.get_by_label("city").fill("nowhere")
    page.get_by_role("button", name="Insert", exact=True).click()
    expect(page.get_by_role("alert")).to_have_text("there is no such city")
    page.get_by_label("city").fill("Oslo")
    page.get_by_label("day").fill("today")
    page.get_by_label("day").fill("")
    page.get_by_role("button", name="Insert", exact=True).click()
    expect(page.get_by_label("Message", exact=True)).to_have_value("hello\n\nhello, {'city': 'Oslo'}")
    page.get_by_label("Message", exact=True).fill("")
    page.get_by_role("button", name="Insert a prompt").click()
    page.get_by_role("button", name="Insert", exact=True).click()
    expect(page.get_by_label("Message", exact=True)).to_have_value("hello, a picture")
    page.get_by_label("Message", exact=True).press("Enter")
    wait_for_end(page)
    [content] = user_contents(service, page)
    assert [part["type"] for part in content] == ["text", "image_url"]
    expect(page.locator(".bubble img")).to_be_visible()


def test_an_image_alone_is_sent_when_it_is_pasted_or_dropped(tabs: Tabs, service: httpx.Client) -> None:
    """A message needs no text beside it."""
    page = tabs.open()
    for event, field in (("paste", "clipboardData"), ("drop", "dataTransfer")):
        page.evaluate(
            """([name, field]) => {
                const data = new DataTransfer();
                data.items.add(new File(["<svg xmlns='http://www.w3.org/2000/svg'/>"], "a.svg", { type: "image/svg+xml" }));
                const Kind = name === "paste" ? ClipboardEvent : DragEvent;
                document.getElementById("box").dispatchEvent(new Kind(name, { [field]: data, bubbles: true, cancelable: true }));
            }""",
            [event, field],
        )
    expect(page.get_by_role("button", name="Remove the image")).to_have_count(2)
    page.get_by_role("button", name="Send").click()
    wait_for_end(page)
    [content] = user_contents(service, page)
    assert [part["type"] for part in content] == ["image_url", "image_url"]


# --- the list of conversations ---


def test_conversations_are_renamed_and_searched(tabs: Tabs, service: httpx.Client) -> None:
    """Other tabs see the title too; the search reads titles and messages."""
    page = answered(tabs, "hello lighthouse")
    expect(page.locator("h1")).to_have_text("hello lighthouse")
    page.get_by_role("button", name="Rename the conversation").click()
    expect(page.get_by_label("Title")).to_have_value("hello lighthouse")
    page.get_by_label("Title").fill("Seamarks 7")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("Seamarks 7")
    expect(page.get_by_role("dialog")).to_have_count(0)
    chats = page.get_by_label("Conversations", exact=True).get_by_role("listitem")
    for words, found in [("SEAMARKS", 1), ("lighthouse", 1), ("no such text", 0)]:
        page.get_by_label("Search the conversations").fill(words)
        expect(chats).to_have_count(found)
    expect(page.get_by_text("Nothing found.")).to_be_visible()
    expect(page.locator("h1")).to_have_text("Seamarks 7")
    page.get_by_label("Search the conversations").fill("")
    expect(chats.first).to_contain_text("Seamarks 7")
    other = tabs.open(f"#/c/{conversation(page)}")
    expect(other.locator("h1")).to_have_text("Seamarks 7")


def test_matches_of_a_search_are_marked(tabs: Tabs) -> None:
    """The marks are in the titles and in the open conversation, and go with the search. Signs of patterns have no meaning."""
    page = answered(tabs, "hello (lamp+) and (LAMP+)")
    marks = "[...(CSS.highlights.get('found') || [])].map((each) => each.startContainer.data.slice(each.startOffset, each.endOffset))"
    page.get_by_label("Search the conversations").fill("(lamp+)")
    page.wait_for_function(f"() => {marks}.join() === '(lamp+),(LAMP+),(lamp+),(LAMP+)'")
    page.get_by_label("Search the conversations").fill("")
    page.wait_for_function(f"() => {marks}.length === 0")


def test_a_long_title_has_two_lines(new_tabs: Any) -> None:
    """The list and a narrow header show two lines of a title, and the header has the whole title as a tooltip."""
    text = "please tell me where the order is that I placed last week, with all its parts"
    page = answered(new_tabs(viewport={"width": 380, "height": 740}), text)
    expect(page.locator("h1")).to_have_attribute("title", text)
    for place in ("h1", ".chats .current b"):
        if place != "h1":
            button(page, "Conversations").click()
        style = "(each) => [each.clientHeight, parseFloat(getComputedStyle(each).lineHeight)]"
        height, line = page.locator(place).evaluate(style)
        assert round(height / line) == 2, place


# --- forks ---


def test_a_fork_reuses_the_answers_of_tools(tabs: Tabs, service: httpx.Client) -> None:
    """The dialog names what is reused and what is left out; the fork has the messages, and nothing ran again for them."""
    page = asked(tabs, "a refund, please")
    page.get_by_role("button", name="Approve").click()
    wait_for_end(page, 2)
    before = conversation(page)
    turn = page.locator(".turn", has_text="I look the order up.")
    turn.hover()
    turn.get_by_role("button", name="Fork").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(
        "Reused: 2 tool answers, which do not run again: transfer_to_refunds, look_up_order."
    )
    expect(dialog).to_contain_text("Left out: 3 messages with 1 call that ran: refund_order.")
    dialog.get_by_role("button", name="Fork here").click()
    expect(page.get_by_role("heading", name="A fork")).to_be_visible()
    assert conversation(page) != before
    assert page.locator(".call.is-done", has_text="reused").count() == 2
    assert runs_of(service, conversation(page)) == []
    page.get_by_role("button", name="Let the model continue").click()
    page.get_by_role("button", name="Approve").click()
    wait_for_end(page, 2)
    ran = [
        entry["name"]
        for run in runs_of(service, conversation(page))
        for entry in entries(service, run["id"])
        if entry["type"] == "ToolCallStarted"
    ]
    assert ran == ["refund_order"]
    assert len(service.get(f"/conversations/{before}").json()["messages"]) == 8


# --- panels and exports ---


def test_the_panels_show_the_context_the_requests_the_tokens_and_the_agents(tabs: Tabs) -> None:
    """The panels show the changes of the context, the request as sent, the tokens, and the active agent."""
    page = answered(tabs, "context")
    page.get_by_role("tab", name="Context").click()
    panel = page.get_by_role("tabpanel")
    expect(panel.locator(".change").first).to_contain_text("remember")
    expect(panel.locator(".change").first.locator(".minus").first).to_have_text('- "Ada Lovelace"\n')
    page.get_by_role("tab", name="Requests").click()
    expect(panel).to_contain_text("You welcome the customers of a lamp shop")
    expect(panel).to_contain_text("transfer_to_orders")
    page.get_by_role("tab", name="Tokens").click()
    expect(panel).to_contain_text("1,410")
    expect(panel).to_contain_text("$0.0043")
    page.get_by_role("tab", name="Agents").click()
    expect(panel.locator(".node.active .title")).to_have_text("Triage")
    panel.get_by_text("Orders", exact=True).last.click()
    expect(panel.locator("details[open]")).to_contain_text("check_stock")
    expect(panel.locator("details[open]")).to_contain_text("the function <lambda>")
    expect(panel.locator("details[open]")).to_contain_text("hands off to Refunds")


def edit_context(page: Page, text: str) -> None:
    """Write the context variables, and send the form with the keyboard."""
    page.get_by_role("tab", name="Context").click()
    page.get_by_role("button", name="Edit the context").press("Enter")
    expect(page.get_by_role("textbox", name="Context variables")).to_be_focused()
    page.get_by_role("textbox", name="Context variables").fill(text)
    page.keyboard.press("Control+Enter")


def context_of(page: Page, service: httpx.Client) -> Any:
    """Return the context variables of the open conversation from the service."""
    return service.get(f"/conversations/{conversation(page)}").json()["context_variables"]


def test_an_operator_chooses_a_model_and_changes_the_context_of_an_open_call(tabs: Tabs, service: httpx.Client) -> None:
    """A first question starts the run with the chosen model. The approval takes the change of the context with it."""
    page = tabs.open()
    page.get_by_label("Model").select_option("gpt-5")
    button(page, "I want a refund for a lamp that arrived broken").click()
    page.wait_for_selector(".decision")
    page.get_by_role("tab", name="Requests").click()
    expect(page.locator(".panel")).to_contain_text("Modelgpt-5")
    for text, fault in (("[1]", "must be a JSON object"), ('{"id": 12345678901234567890}', "cannot keep")):
        edit_context(page, text)
        expect(page.get_by_role("alert")).to_contain_text(fault)
        page.keyboard.press("Escape")
    edit_context(page, '{"tier": "none"}')
    button(page, "Discard").click()
    edit_context(page, '{"tier": "gold", "cart": []}')
    expect(page.locator(".composer")).to_contain_text("Your next message or decision changes the context: tier, cart.")
    expect(page.locator(".sr[role=status]")).to_contain_text("changes the context: tier, cart.")
    button(page, "Approve").click()
    wait_for_end(page, 2)
    expect(page.locator(".composer")).not_to_contain_text("changes the context")
    assert context_of(page, service) == {"tier": "gold", "cart": []}
    expect(page.locator(".log")).to_contain_text("The context was edited: cart, tier")
    page.reload()
    expect(page.locator(".change")).to_contain_text("Operator before the run")
    expect(page.locator(".change .plus")).to_contain_text(["+ []", '+ "gold"'])


def test_a_change_of_a_stale_context_is_given_up(tabs: Tabs, service: httpx.Client) -> None:
    """If another program changes the conversation before the message, the message stays in the box without the change."""
    page = answered(tabs, "remember the context")
    edit_context(page, '{"tier": "silver"}')
    stale = context_of(page, service)
    path = f"/conversations/{conversation(page)}"
    data = service.get(path).json()
    change = {"set": {"tier": "iron"}, "revision": data["revision"]}
    # The page has not seen the other run before the message.
    page.route(
        "**/runs",
        lambda route: route.fulfill(json={"runs": []}) if route.request.method == "GET" else route.continue_(),
    )
    run = service.post(f"{path}/runs", json={"text": "hello", "context": change}).json()["run"]
    while service.get(f"/runs/{run}").json()["status"] == "running":
        time.sleep(0.05)
    say(page, "hello again")
    expect(page.get_by_role("alert")).to_contain_text("load it again")
    expect(page.locator("#box")).to_have_value("hello again")
    expect(page.locator(".composer")).not_to_contain_text("changes the context")
    assert context_of(page, service) == {**stale, "tier": "iron"}
    page.press("#box", "Enter")
    wait_for_end(page)
    assert context_of(page, service) == {**stale, "tier": "iron"}


def test_an_edited_message_takes_the_change_of_the_context_with_it(tabs: Tabs, service: httpx.Client) -> None:
    """The run of the fork starts with the changed context."""
    page = answered(tabs, "remember the context")
    before = conversation(page)
    edit_context(page, '{"tier": "silver"}')
    button(page, "Edit and resend").click()
    button(page, "Fork and send").click()
    page.wait_for_function("old => !location.hash.includes(old)", arg=before)
    expect(page.locator(".log")).to_contain_text("The context was edited: customer, customers, tier")
    wait_for_end(page)
    assert (
        len(context_of(page, service)["customers"]) == 2
    )  # of the calls in the fork; the change has removed the earlier ones


def test_a_change_is_compared_with_the_context_that_its_form_has_shown(tabs: Tabs, service: httpx.Client) -> None:
    """A run that ends behind the open form is not undone: the change is refused, as it is of an older revision."""
    page = answered(tabs, "remember the context")
    page.get_by_role("tab", name="Context").click()
    button(page, "Edit the context").click()
    field = page.get_by_role("textbox", name="Context variables")
    path = f"/conversations/{conversation(page)}"
    change = {"set": {"tier": "iron"}, "revision": service.get(path).json()["revision"]}
    service.post(f"{path}/runs", json={"text": "hello", "context": change})
    expect(page.locator(".panel")).to_contain_text("iron", timeout=20_000)
    wait_for_end(page, 2)
    field.fill(field.input_value().replace('"customer":', '"note": 1, "customer":'))
    page.keyboard.press("Control+Enter")
    say(page, "hello again")
    expect(page.get_by_role("alert")).to_contain_text("load it again")
    assert context_of(page, service)["tier"] == "iron"


def test_a_turn_becomes_an_eval_case(tabs: Tabs, tmp_path: Path) -> None:
    """The JSON is a file of cases that `load_cases` reads, with the conversation up to the turn."""
    page = answered(tabs, "my orders")
    turn = page.locator(".turn", has=page.locator(".group"))
    turn.hover()
    turn.get_by_role("button", name="Eval case").click()
    path = tmp_path / "cases.json"
    path.write_text(page.get_by_label("cases.json").input_value())
    [case] = load_cases(path)
    assert (case.function, case.arguments) == ("look_up_order", {"order_id": 4711})
    assert [message["role"] for message in case.messages] == ["user", "assistant", "tool"]
    page.get_by_label("Exactly these 3 calls").check()
    path.write_text(page.get_by_label("cases.json").input_value())
    assert load_cases(path)[0].function == ["look_up_order", "check_stock", "estimate_delivery"]


def test_the_start_shows_the_handoffs_of_each_agent(new_tabs: Any) -> None:
    """The card of an agent has its functions and the agents that it can hand off to. A touch screen shows no keyboard by itself."""
    page = new_tabs(has_touch=True, is_mobile=True).open()
    expect(page.locator(".card").nth(1)).to_contain_text("Hands off to Refunds Triage")
    expect(page.locator("#box")).not_to_be_focused()


# --- for everybody ---


def test_everything_works_with_the_keyboard_alone(tabs: Tabs) -> None:
    """A message, a decision, a panel, a fork and a dialog need no mouse."""
    page = tabs.open()
    press = page.keyboard.press

    def tab_to(name: str) -> None:
        for _ in range(300):  # past the conversations of the other tests
            if page.evaluate("document.activeElement.textContent.trim()") == name:
                return
            press("Tab")
        raise AssertionError(f"the Tab key does not reach {name!r}")

    expect(page.locator("#box")).to_be_focused()
    press("Escape")
    press("/")
    page.keyboard.type("a refund, please")
    press("Enter")
    page.wait_for_selector(".decision")
    press("Escape")
    tab_to("Approve")
    press("Enter")
    wait_for_end(page, 2)
    press("Escape")
    press("2")
    expect(page.get_by_role("tab", name="Context")).to_have_attribute("aria-selected", "true")
    page.get_by_role("tab", name="Context").focus()
    press("ArrowRight")
    expect(page.get_by_role("tab", name="Requests")).to_be_focused()
    press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    before = conversation(page)
    press("j")
    press("j")
    press("f")
    expect(page.get_by_role("dialog", name="Fork the conversation")).to_be_visible()
    press("Enter")
    expect(page.get_by_role("heading", name="A fork")).to_be_visible()
    assert conversation(page) != before


def test_a_screen_reader_gets_the_events(tabs: Tabs) -> None:
    """The live region has a sentence for each event, and neither the messages nor their pieces are live."""
    page = tabs.open()
    page.evaluate(
        "() => { window.said = []; new MutationObserver(() => window.said.push(document.querySelector('.sr[role=status]').textContent))"
        ".observe(document.querySelector('.sr[role=status]'), {childList: true, subtree: true, characterData: true}) }"
    )
    say(page, "the printer is stuck")
    page.wait_for_selector(RUNNING)
    time.sleep(0.4)
    button(page, "Stop").click()
    wait_for_end(page)
    page.wait_for_function("() => window.said.includes('The run was stopped.')")
    said = page.evaluate("window.said")
    assert "Stopping the run." in said
    assert page.get_by_role("log").get_attribute("aria-live") == "off"


NAMELESS = """() => [...document.querySelectorAll('button, a, input, textarea, select')]
    .filter((each) => each.offsetParent && !each.closest('label') && !(each.ariaLabel || each.textContent.trim() || each.labels?.length))
    .map((each) => each.outerHTML.slice(0, 80))"""
PALE = """() => {
  const context = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
  const rgba = (text) => {
    context.clearRect(0, 0, 1, 1);
    context.fillStyle = text;
    context.fillRect(0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((each) => (each /= 255) <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility({ opacityProperty: true }) || element.closest('.sr, svg, :disabled, .past')) continue;
    const style = getComputedStyle(element);
    let back = null;
    for (let each = element; each && !back; each = each.parentElement) {
      const colour = rgba(getComputedStyle(each).backgroundColor);
      if (colour[3] === 255) back = colour;
    }
    const [a, b] = [light(rgba(style.color)), light(back || [255, 255, 255])].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    const large = parseFloat(style.fontSize) >= 24;
    if (ratio < (large ? 3 : 4.5)) found.push([walker.currentNode.data.trim().slice(0, 40), style.color, ratio.toFixed(2)]);
  }
  return found;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast_and_every_control_has_a_name(new_tabs: Any, scheme: str, tmp_path: Path) -> None:
    """Text has a contrast of 4.5 to 1 in each state and panel, dark and light; controls have names. It saves screenshots."""
    tabs = new_tabs(color_scheme=scheme)
    page = tabs.open()

    def look(name: str) -> None:
        page.screenshot(path=tmp_path / f"{scheme}-{name}.png")
        assert page.evaluate(NAMELESS) == [], name
        assert page.evaluate(PALE) == [], name

    look("empty")
    for text, name in [
        ("my orders", "calls"),
        ("error", "failed"),
        ("a refund", "waiting"),
        ("stuck", "unknown"),
        ("context", "context"),
    ]:
        page.get_by_role("button", name="New conversation").click()
        page.wait_for_selector(".card")
        say(page, text)
        if name == "unknown":
            page.wait_for_selector(RUNNING)
            button(page, "Stop").click()
        wait_for_end(page)
        look(name)
    for panel in ("Timeline", "Context", "Requests", "Tokens", "Agents", "History"):
        page.get_by_role("tab", name=panel).click()
        look(panel.lower())
    page.locator(".log").focus()
    page.keyboard.press("?")
    look("keys")
    print(f"screenshots: {tmp_path}")


def test_a_narrow_screen_has_everything(new_tabs: Any, tmp_path: Path) -> None:
    """At 380 pixels nothing is wider than the screen, and the conversations and the panels are one press away."""
    small = "[...document.querySelectorAll('button:not(.link), select, summary, .run-foot a')].filter((each) => each.checkVisibility() && each.clientHeight < 30).map((each) => each.outerHTML)"
    page = answered(new_tabs(viewport={"width": 380, "height": 740}), "my orders")
    for place, found in [("Conversations", ".chats"), ("Inspect", ".panels"), ("Chat", ".log")]:
        page.get_by_label("Parts of the page").get_by_role("button", name=place).click()
        expect(page.locator(found)).to_be_visible()
        page.screenshot(path=tmp_path / f"narrow-{place}.png")
        assert page.evaluate(small) == []
        assert page.evaluate("document.documentElement.scrollWidth") == 380
        assert page.evaluate(
            "[...document.querySelectorAll('.log, .panel, .chats')].every((each) => each.scrollWidth <= each.clientWidth)"
        )
    print(f"screenshots: {tmp_path}")
