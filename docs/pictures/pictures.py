"""Draws the pictures beside it: `PYTHONPATH=src python docs/pictures/pictures.py`.

They show the imports of the rooms, runs on a clock that is not real, and figures of the benchmarks. `pictures.py costs` draws one.
`pictures.py playground` takes the picture of the playground; it needs the extra `cli`, playwright, Pillow and Chromium.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import anyio
import trio
from trio.testing import MockClock

from aswarm import Agent, AsyncSwarm, CompletionFinished, HandedOff, RunFinished, tool
from aswarm.middleware import Handlers
from aswarm.sources import CompletionRequest
from aswarm.testing import ScriptedAnswer, ScriptedModel, call

FOLDER = Path(__file__).parent
PROJECT = FOLDER.parents[1]
SOURCE = PROJECT / "src/aswarm"

# --- drawing: boxes, lines and bars as SVG, in colours that follow light and dark --------------------------------------

FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
LIGHT = (
    "--ink:#1f2328;--soft:#59636e;--line:#9aa4ae;--paper:#f6f8f7;--one:#1f6f54;--two:#3b5bdb;--three:#b35900;--on:#fff"
)
DARK = "--ink:#d7dce0;--soft:#9aa4ae;--line:#616b75;--paper:#22282b;--one:#6fcfa8;--two:#91a7ff;--three:#f0a860;--on:#14181b"
STYLE = (
    f".picture-svg{{{LIGHT};font:13px {FONT}}}"
    f"@media (prefers-color-scheme:dark){{.picture-svg{{{DARK}}}}}"
    ".picture-svg text{fill:var(--ink)}.picture-svg .soft{fill:var(--soft)}.picture-svg .mono{font-family:ui-monospace,monospace;font-size:12px}"
    ".picture-svg .box{fill:var(--paper);stroke:var(--line)}.picture-svg .line{stroke:var(--line);fill:none}"
    ".picture-svg .arrow{stroke:var(--soft);fill:none;stroke-width:1.3}.picture-svg .head{fill:var(--soft)}"
    ".picture-svg .one{fill:var(--one)}.picture-svg .two{fill:var(--two)}.picture-svg .three{fill:var(--three)}"
    ".picture-svg .thin{stroke-opacity:.35}.picture-svg .dash{stroke-dasharray:4 3}.picture-svg text.on{fill:var(--on)}"
)


class Drawing:
    """A picture of so many pixels. `title`: a description, for readers who do not see it."""

    def __init__(self, width: float, height: float, title: str) -> None:
        self._width, self._height, self._title = width, height, title
        self._parts: list[str] = []

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> None:
        """A line of text; `y` is its base."""
        self._parts.append(f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>')

    def text_upwards(self, x: float, y: float, text: str, kind: str = "") -> None:
        """A line of text that is read from below."""
        self._parts.append(f'<text transform="translate({x:g} {y:g}) rotate(-90)" class="{kind}">{escape(text)}</text>')

    def dot(self, x: float, y: float) -> None:
        """A point."""
        self._parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="4" class="one"/>')

    def box(self, x: float, y: float, width: float, height: float, kind: str = "box") -> None:
        """A rectangle with round corners."""
        self._parts.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4" class="{kind}"/>')

    def named_box(self, x: float, y: float, width: float, height: float, *lines: str, kind: str = "mono") -> None:
        """A box with lines of text in its middle."""
        self.box(x, y, width, height)
        first = y + height / 2 + 4.5 - 8 * (len(lines) - 1)
        for number, line in enumerate(lines):
            self.text(x + width / 2, first + 16 * number, line, kind if not number else "soft", "middle")

    def line(self, *points: tuple[float, float], kind: str = "line") -> None:
        """A line through points."""
        self._parts.append(f'<polyline points="{_points(points)}" class="{kind}"/>')

    def arrow(self, *points: tuple[float, float]) -> None:
        """A line with a head at its end."""
        self.line(*points, kind="arrow")
        (x0, y0), (x1, y1) = points[-2:]
        length = ((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5
        along, across = ((x1 - x0) / length * 7, (y1 - y0) / length * 7), 3.5 / 7
        left = (x1 - along[0] - along[1] * across, y1 - along[1] + along[0] * across)
        right = (x1 - along[0] + along[1] * across, y1 - along[1] - along[0] * across)
        self._parts.append(f'<polygon points="{_points(((x1, y1), left, right))}" class="head"/>')

    def __str__(self) -> str:
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="picture-svg" role="img" aria-label="{escape(self._title)}" '
            f'viewBox="0 0 {self._width:g} {self._height:g}" width="{self._width:g}" height="{self._height:g}">'
        )
        return "\n".join([head, f"<style>{STYLE}</style>", *self._parts, "</svg>", ""])


def _points(points: tuple[tuple[float, float], ...]) -> str:
    return " ".join(f"{round(x, 1):g},{round(y, 1):g}" for x, y in points)


# --- rooms ------------------------------------------------------------------------------------------------------------


def layers() -> list[list[str]]:
    """The rooms of each layer, from the top down."""
    settings = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
    return [layer.split(" | ") for layer in settings["tool"]["importlinter"]["contracts"][0]["layers"]]


_FOR_TYPES = re.compile(r"^if TYPE_CHECKING:\n(?: +.*\n|\n)+", re.MULTILINE)
_IMPORT = re.compile(r"^ *from (?P<dots>\.*)(?P<module>[\w.]*) import (?P<names>[\w, ]+)", re.MULTILINE)


def imports() -> dict[str, set[str]]:
    """Which rooms the modules of a room import from."""
    found: dict[str, set[str]] = {room: set() for layer in layers() for room in layer}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        if parts[0] in found:
            for match in _IMPORT.finditer(_FOR_TYPES.sub("", path.read_text(encoding="utf-8"))):
                found[parts[0]].update(_rooms_of(match, parts) & found.keys() - {parts[0]})
    return found


def _rooms_of(match: re.Match[str], parts: tuple[str, ...]) -> set[str]:
    names = match["module"].split(".") if match["module"] else []
    if not match["dots"]:
        return set(names[1:2]) if names[:1] == ["aswarm"] else set()
    base = [*parts[: len(parts) - len(match["dots"])], *names]
    return {base[0]} if base else {each.strip() for each in match["names"].split(",")}


def rooms() -> Drawing:
    """A matrix: the room of a row imports from the rooms of its dots. All dots are on one side, so imports only go down."""
    names, known = [room for layer in layers()[1:] for room in layer], imports()
    step, left, top = 15.0, 130.0, 120.0
    size = step * len(names)
    drawing = Drawing(
        left + size + 10,
        top + size + 10,
        "Which room imports from which: every import leads from a room to one further down",
    )
    for number, name in enumerate(names):
        at = step * number
        drawing.text(left - 8, top + at + 11, name, "mono", "end")
        drawing.text_upwards(left + at + 11, top - 8, name, "mono")
        drawing.line((left, top + at), (left + size, top + at), kind="line thin")
        drawing.line((left + at, top), (left + at, top + size), kind="line thin")
        drawing.box(left + at, top + at, step, step)
        for below in sorted(known[name] & set(names)):
            drawing.dot(left + step * names.index(below) + step / 2, top + at + step / 2)
    return drawing


# --- the loop ---------------------------------------------------------------------------------------------------------


def loop() -> Drawing:
    """One turn: the functions that decide, and the handlers, which act."""
    drawing = Drawing(760, 250, "One turn of the loop: request, completion, calls, and the next turn or the response")
    steps = [
        ("state.request", "what is sent"),
        ("complete", "handler"),
        ("accumulator", "one completion"),
        ("state.record", "the message"),
    ]
    for number, (name, words) in enumerate(steps):
        drawing.named_box(20 + 190 * number, 40, 150, 46, name, words)
        if number:
            drawing.arrow((20 + 190 * number - 40, 63), (20 + 190 * number, 63))
    for number, (name, words) in enumerate(
        [("state.end_turn", "context, agent"), ("call_tool", "handler, in groups"), ("plan", "which together")]
    ):
        drawing.named_box(20 + 190 * number, 160, 150, 46, name, words)
        if number:
            drawing.arrow((20 + 190 * number, 183), (20 + 190 * number - 40, 183))
    drawing.arrow((665, 86), (665, 183), (550, 183))
    drawing.text(672, 130, "calls", "soft")
    drawing.arrow((95, 160), (95, 86))
    drawing.arrow((740, 63), (758, 63))
    drawing.text(758, 18, "no calls:", "soft", "end")
    drawing.text(758, 34, "Response", "mono", "end")
    drawing.arrow((95, 12), (95, 40))
    drawing.text(104, 20, "messages", "mono")
    drawing.text(20, 240, "Boxes named handler act; all others decide, in plain code without I/O.", "soft")
    return drawing


# --- events -----------------------------------------------------------------------------------------------------------

DELTAS = ("TextDelta", "ReasoningDelta", "RefusalDelta", "ToolCallDelta")
OF_CALLS = ("ToolCallStarted", "ToolProgress", "ToolCallFinished", "CallWaiting")


def events() -> Drawing:
    """The order of the events of a run."""
    drawing = Drawing(
        760,
        330,
        "The order of the typed events: TurnStarted, deltas, CompletionFinished, events of calls, HandedOff, RunFinished",
    )
    drawing.named_box(20, 40, 130, 32, "TurnStarted")
    drawing.box(200, 20, 150, 100)
    for number, name in enumerate(DELTAS):
        drawing.text(275, 42 + 22 * number, name, "mono", "middle")
    drawing.named_box(400, 40, 170, 32, "CompletionFinished")
    drawing.box(400, 150, 170, 100)
    for number, name in enumerate(OF_CALLS):
        drawing.text(485, 172 + 22 * number, name, "mono", "middle")
    drawing.named_box(200, 184, 150, 32, "HandedOff")
    drawing.named_box(610, 40, 130, 32, "RunFinished")
    drawing.arrow((150, 56), (200, 56))
    drawing.arrow((350, 56), (400, 56))
    drawing.arrow((570, 56), (610, 56))
    drawing.arrow((485, 72), (485, 150))
    drawing.arrow((400, 200), (350, 200))
    drawing.arrow((200, 200), (85, 200), (85, 72))
    drawing.arrow((485, 250), (485, 290), (50, 290), (50, 72))
    drawing.arrow((570, 200), (675, 200), (675, 72))
    drawing.text(228, 136, "any number, any order", "soft")
    drawing.text(494, 116, "it calls functions", "soft")
    drawing.text(206, 234, "once, at the end of a turn", "soft")
    drawing.text(60, 308, "the next turn", "soft")
    drawing.text(580, 220, "it waits, or a limit", "soft")
    drawing.text(610, 26, "last, once", "soft")
    drawing.text(400, 26, "once a turn", "soft")
    return drawing


# --- runs on a clock that is not real ---------------------------------------------------------------------------------


def _on_a_still_clock(function: Callable[[], Any]) -> Any:
    """Run on trio with a clock that jumps to the next deadline: times are exact, and nothing waits."""
    return anyio.run(function, backend="trio", backend_options={"clock": MockClock(autojump_threshold=0)})


Bar = tuple[str, float, float]


def measured_tools() -> list[Bar]:
    """Five calls of one turn: when each function ran."""
    bars: list[Bar] = []

    def lasting(name: str, seconds: float) -> Callable[..., Any]:
        async def run() -> str:
            begun = trio.current_time()
            await anyio.sleep(seconds)
            bars.append((name, begun, trio.current_time()))
            return "ok"

        run.__name__ = name
        return run

    async def note(context_variables: dict[str, Any]) -> str:
        return str(await lasting("note", 1)())

    functions = [lasting("look_up", 2), lasting("weather", 3), note, lasting("total", 1), lasting("offers", 2)]

    async def main() -> None:
        names = ["look_up", "weather", "note", "total", "offers"]
        async with ScriptedModel([[call(name) for name in names], "Done."]).client() as client:
            await AsyncSwarm(client).run(Agent(functions=functions), "Go")

    _on_a_still_clock(main)
    first = min(begun for _, begun, _ in bars)
    order = ["look_up", "weather", "note", "total", "offers"]
    return sorted(
        ((name, begun - first, ended - first) for name, begun, ended in bars), key=lambda bar: order.index(bar[0])
    )


def together() -> Drawing:
    """The calls of a turn on a time line: groups run together, and one call runs alone."""
    bars = measured_tools()
    drawing = Drawing(
        760, 40 * len(bars) + 80, "Five calls of one turn on a time line, in three groups that run one after another"
    )
    labels = {
        "look_up": "async",
        "weather": "async",
        "note": "async, takes the context as a dict",
        "total": "async",
        "offers": "async",
    }
    scale, left = 68, 300
    for edge in sorted({begun for _, begun, _ in bars} | {max(ended for _, _, ended in bars)}):
        drawing.line((left + edge * scale, 20), (left + edge * scale, 40 * len(bars) + 40), kind="line dash")
        drawing.text(left + edge * scale, 40 * len(bars) + 58, f"{edge:g} s", "soft", "middle")
    for number, (name, begun, ended) in enumerate(bars):
        y = 30 + 40 * number
        drawing.text(10, y + 18, name, "mono")
        drawing.text(75, y + 18, labels[name], "soft")
        drawing.box(left + begun * scale, y, (ended - begun) * scale, 26, "two" if name == "note" else "one")
    return drawing


def measured_reader() -> dict[str, list[Bar]]:
    """A streamed run whose reader holds each event for a second: who works when, and in which task."""
    lanes: dict[str, list[Bar]] = {
        "the reader holds an event": [],
        "the loop works, in the reader's task": [],
        "a function runs, in a task of its own": [],
    }
    reader, loop_, tools = lanes.values()
    tasks: dict[str, object] = {}

    def watch(handlers: Handlers) -> Handlers:
        async def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            assert trio.lowlevel.current_task() is tasks["reader"]
            async with aclosing(handlers.complete(request)) as chunks:
                async for chunk in chunks:
                    yield chunk

        return replace(handlers, complete=complete)

    async def look_up() -> str:
        """Look up."""
        assert trio.lowlevel.current_task() is not tasks["reader"]
        begun = trio.current_time()
        await anyio.sleep(3)
        tools.append(("look_up", begun, trio.current_time()))
        return "seen"

    async def main() -> None:
        tasks["reader"] = trio.lowlevel.current_task()
        script = [ScriptedAnswer(calls=[call("look_up")], delay=2), ScriptedAnswer("It came.", delay=1)]
        async with ScriptedModel(script).client() as client:
            swarm = AsyncSwarm(client, middleware=[watch])
            async with swarm.stream(Agent(functions=[look_up]), "Go", deltas=False) as run:
                before = trio.current_time()
                async for event in run:
                    now = trio.current_time()
                    loop_.append(("", before, now))
                    if not isinstance(event, HandedOff | RunFinished):
                        await anyio.sleep(1)
                    before = trio.current_time()
                    reader.append((type(event).__name__, now, before))

    _on_a_still_clock(main)
    first = reader[0][1]
    return {
        lane: [(name, begun - first, ended - first) for name, begun, ended in bars if ended > begun]
        for lane, bars in lanes.items()
    }


def scopes() -> Drawing:
    """While the reader holds an event, nothing of the run is open in its task."""
    lanes = measured_reader()
    last = max(ended for bars in lanes.values() for _, _, ended in bars)
    scale = 520 / last
    drawing = Drawing(
        760,
        360,
        "A streamed run on a time line: the reader holds events, the loop works in between, a function runs in another task",
    )
    for number, (lane, bars) in enumerate(lanes.items()):
        y = 40 + 84 * number
        drawing.text(10, y - 8, lane, "soft")
        drawing.line((220, y + 30), (220 + last * scale, y + 30))
        for _, begun, ended in bars:
            drawing.box(220 + begun * scale, y + 4, (ended - begun) * scale, 26, ("two", "one", "three")[number])
        for position, (name, begun, ended) in enumerate(bars):
            if name:
                drawing.text(
                    220 + (begun + ended) / 2 * scale, y + 22, name if number else str(position + 1), "on", "middle"
                )
    for second in range(int(last) + 1):
        drawing.text(220 + second * scale, 300, f"{second}", "soft", "middle")
    drawing.text(10, 300, "seconds", "soft")
    names = [f"{position + 1} {name}" for position, (name, _, _) in enumerate(next(iter(lanes.values())))]
    drawing.text(10, 330, ", ".join(names[:5]), "soft")
    drawing.text(10, 350, ", ".join(names[5:]), "soft")
    return drawing


def run() -> Drawing:
    """A run with two agents on a time line: answers of the model above, calls of functions below."""
    drawing = Drawing(
        760, 250, "A run on a time line: turns of two agents, a handoff, two calls at the same time, the answer"
    )
    left, scale = 90, 126
    turns: list[Bar] = [("Triage", 0, 0.8), ("Orders", 1, 2.1), ("Orders", 3.4, 4.9)]
    calls: list[Bar] = [("look_up_order", 2.15, 3.3), ("delivery_date", 2.15, 3.05)]
    for second in range(6):
        drawing.line((left + second * scale, 34), (left + second * scale, 212), kind="line thin")
        drawing.text(left + second * scale, 230, f"{second} s", "soft", "middle")
    drawing.text(10, 67, "model", "soft")
    drawing.text(10, 137, "tools", "soft")
    for number, (name, begun, ended) in enumerate(turns):
        drawing.box(left + begun * scale, 48, (ended - begun) * scale, 30, "one" if number else "two")
        drawing.text(left + (begun + ended) / 2 * scale, 67, name, "on", "middle")
    for number, (name, begun, ended) in enumerate(calls):
        drawing.box(left + begun * scale, 116 + 40 * number, (ended - begun) * scale, 30, "three")
        drawing.text(left + begun * scale + 8, 135 + 40 * number, name, "mono on")
    drawing.arrow((left + 0.8 * scale, 63), (left + scale, 63))
    drawing.text(left + 0.9 * scale, 28, "handoff", "soft", "middle")
    drawing.arrow((left + 2.1 * scale, 78), (left + 2.1 * scale, 131), (left + 2.15 * scale, 131))
    drawing.text(left + 3.45 * scale, 175, "two calls of one turn, together", "soft")
    drawing.arrow(
        (left + 3.3 * scale, 131), (left + 3.36 * scale, 131), (left + 3.36 * scale, 63), (left + 3.4 * scale, 63)
    )
    drawing.text(left + 4.15 * scale, 28, "the answer is streamed", "soft", "middle")
    return drawing


# --- eager tools ------------------------------------------------------------------------------------------------------


def measured_turn(*, eager: bool) -> tuple[float, list[Bar]]:
    """The seconds of a completion of 2 s with four calls, and the calls: the first takes 3 s, the others 1 s."""
    bars: list[Bar] = []
    completions: list[float] = []

    @tool(repeatable=True)
    async def search(seconds: float) -> str:
        begun = trio.current_time()
        await anyio.sleep(seconds)
        bars.append((f"search {len(bars)}", begun, trio.current_time()))
        return "found"

    async def main() -> None:
        calls = [call("search", seconds=seconds) for seconds in (3, 1, 1, 1)]
        async with ScriptedModel([ScriptedAnswer(calls=calls, pause=2 / 65), "Done"], cut=1).client() as client:
            swarm = AsyncSwarm(client, eager_tools=eager)
            async with swarm.stream(Agent(functions=[search]), "Go") as run:
                async for event in run:
                    if isinstance(event, CompletionFinished) and not completions:
                        completions.append(trio.current_time())

    _on_a_still_clock(main)
    return completions[0], sorted(bars, key=lambda bar: (bar[1], -bar[2]))


def eager() -> Drawing:
    """The same turn with and without eager tools."""
    drawing = Drawing(
        760, 400, "One turn on two time lines: calls start after the completion, or while the model still writes"
    )
    left, scale = 110, 116
    for second in range(6):
        drawing.line((left + second * scale, 20), (left + second * scale, 366), kind="line thin")
        drawing.text(left + second * scale, 386, f"{second} s", "soft", "middle")
    for number, (name, is_eager) in enumerate((("by default", False), ("eager tools", True))):
        written, bars = measured_turn(eager=is_eager)
        top = 30 + 176 * number
        drawing.text(10, top + 19, name)
        drawing.box(left, top, written * scale, 26, "one")
        drawing.text(left + 8, top + 18, "completion", "on")
        for row, (_, begun, ended) in enumerate(bars):
            drawing.box(left + begun * scale, top + 32 + 30 * row, (ended - begun) * scale, 24, "three")
            drawing.text(left + begun * scale + 8, top + 49 + 30 * row, f"call {row + 1}", "mono on")
        last = max(ended for _, _, ended in bars)
        drawing.text(left + last * scale - 8, top + 18, f"{last:.1f} s", "soft", "end")
    return drawing


# --- costs ------------------------------------------------------------------------------------------------------------


COSTS = {
    "handwritten_openai": "hand-written on AsyncOpenAI",
    "aswarm_": "aswarm",
    "aswarm_:aiohttp": "aswarm, aiohttp",
    "aswarm_:direct": "aswarm, direct",
    "agent_framework_": "agent-framework",
    "agno_": "agno",
    "openai_agents": "openai-agents",
    "pydantic_ai_": "pydantic-ai",
}


def costs() -> Drawing:
    """CPU of a turn beside the loop by hand, from the results of the benchmarks: new, and after 100 messages."""
    figures = json.loads((PROJECT / "benchmarks/results/costs.json").read_text(encoding="utf-8"))["figures"]
    found = {figure["name"]: {row["contender"]: row.get("ratio") for row in figure["rows"]} for figure in figures}
    new, long = found["turn"], found["after_100"]
    names = {name: title for name, title in COSTS.items() if new.get(name) and long.get(name)}
    drawing = Drawing(
        760, 34 * len(names) + 70, "CPU of a turn as a ratio to the loop written by hand: aswarm, frameworks"
    )
    scale, left = 205, 220
    for ratio in (0.5, 1, 1.5, 2, 2.5):
        drawing.line((left + ratio * scale, 14), (left + ratio * scale, 34 * len(names) + 20), kind="line dash")
        drawing.text(left + ratio * scale, 34 * len(names) + 38, f"{ratio:g}", "soft", "middle")
    for number, (name, title) in enumerate(names.items()):
        y = 18 + 34 * number
        drawing.text(left - 10, y + 17, title, "", "end")
        for shift, (ratios, kind) in enumerate(((new, "one" if "aswarm" in name else "two"), (long, "three"))):
            drawing.box(left, y + 12 * shift, max(ratios[name] * scale, 2), 10, kind)
    drawing.text(
        10,
        34 * len(names) + 60,
        "ratio to the loop by hand; upper bar: a new conversation, lower bar: after 100 messages",
        "soft",
    )
    return drawing


# --- files ------------------------------------------------------------------------------------------------------------

DRAWN: dict[str, Callable[[], Drawing]] = {
    "run": run,
    "rooms": rooms,
    "loop": loop,
    "events": events,
    "together": together,
    "scopes": scopes,
    "eager": eager,
    "costs": costs,
}


def take_playground() -> None:
    """The playground of `aswarm demo --serve`, after a message."""
    from PIL import Image
    from playwright.sync_api import Error as PlaywrightError
    from playwright.sync_api import sync_playwright

    port = "18765"
    served = subprocess.Popen([sys.executable, "-m", "aswarm", "demo", "--serve", "--port", port])
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1180, "height": 740}, device_scale_factor=1.5)
            while True:
                with suppress(PlaywrightError):
                    page.goto(f"http://127.0.0.1:{port}/")
                    break
            page.fill("#box", "My lamp from order 4711 arrived broken. Can I have my money back?")
            page.press("#box", "Enter")
            page.wait_for_selector(".run-foot")
            page.wait_for_selector("text=Is there anything else?")
            page.wait_for_timeout(1000)  # until the run has its end
            page.screenshot(path=FOLDER / "playground.png")
    finally:
        served.terminate()
    Image.open(FOLDER / "playground.png").quantize(128).save(FOLDER / "playground.png", optimize=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["playground"]:
        take_playground()
    else:
        for name in sys.argv[1:] or DRAWN:
            (FOLDER / f"{name}.svg").write_text(str(DRAWN[name]()), encoding="utf-8")
