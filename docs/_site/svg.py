"""Drawing: boxes, lines and bars as SVG, in colours that follow light and dark."""

from __future__ import annotations

from html import escape

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
    """A picture of so many pixels. `title`: what it shows, for readers who do not see it."""

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
