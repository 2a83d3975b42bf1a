"""A terminal screen in memory, with the control sequences of the tests. It never scrolls."""

from __future__ import annotations

import re

_PIECES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b.|[\r\n\b\x07]|[^\x1b\r\n\b\x07]")


class Screen:
    """A screen. `feed` it the output of a program; `lines` are the lines on the screen, `text` is all of them."""

    def __init__(self, width: int = 80) -> None:
        self._width = width
        self._cells: list[list[str]] = [[]]
        self._row = self._column = 0
        self._rest = ""

    @property
    def lines(self) -> list[str]:
        return ["".join(row).rstrip() for row in self._cells]

    @property
    def text(self) -> str:
        return "\n".join(self.lines).rstrip()

    def feed(self, written: str) -> None:
        written = self._rest + written
        cut = written.rfind("\x1b", -20)  # a sequence may be split into two pieces
        whole = cut < 0 or _PIECES.fullmatch(written[cut:]) or len(_PIECES.findall(written[cut:])) > 1
        self._rest = "" if whole else written[cut:]
        for piece in _PIECES.findall(written[: None if whole else cut]):
            if piece.startswith("\x1b["):
                self._control(piece[-1], piece[2:-1])
            elif not piece.startswith("\x1b"):
                self._put(piece)

    def _put(self, character: str) -> None:
        if character == "\r":
            self._column = 0
        elif character == "\n":
            self._move(self._row + 1, self._column)
        elif character == "\b":
            self._move(self._row, self._column - 1)
        elif character != "\x07":
            if self._column == self._width:
                self._move(self._row + 1, 0)
            row = self._cells[self._row]
            row.extend(" " * (self._column + 1 - len(row)))
            row[self._column] = character
            self._column += 1

    def _control(self, command: str, argument: str) -> None:
        number = int(argument) if argument.isdigit() else 0
        steps = max(number, 1)
        if command == "A":
            self._move(self._row - steps, self._column)
        elif command == "B":
            self._move(self._row + steps, self._column)
        elif command == "C":
            self._move(self._row, self._column + steps)
        elif command == "D":
            self._move(self._row, self._column - steps)
        elif command == "K":
            self._erase_line(number)
        elif command == "J":
            self._erase_line(0)
            del self._cells[self._row + 1 :]

    def _move(self, row: int, column: int) -> None:
        self._row, self._column = max(row, 0), min(max(column, 0), self._width - 1)
        self._cells.extend([] for _ in range(self._row + 1 - len(self._cells)))

    def _erase_line(self, which: int) -> None:
        row = self._cells[self._row]
        if which == 0:
            del row[self._column :]
        else:
            row[:] = [] if which == 2 else [" "] * self._column + row[self._column :]
