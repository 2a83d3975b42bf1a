"""Saved conversations on disk. Raises OSError or ValueError; what they mean to the user is shown elsewhere."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ._saved import Saved, from_json


def read_conversation(path: str) -> Saved:
    """The conversation in a file."""
    place = _place(path)
    if place.exists() and not place.is_file():  # a pipe or a device may have no end
        raise ValueError("not a file")
    return from_json(place.read_text(encoding="utf-8"))


def write_conversation(path: str, text: str) -> None:
    """Write the file whole or not at all, for its owner only. What is there and is no conversation stays as it is."""
    place = _place(path).resolve()
    if place.exists():
        _check_replaceable(path)
    with tempfile.NamedTemporaryFile("w", dir=place.parent, prefix=".", delete=False, encoding="utf-8") as file:
        try:
            file.write(text)
            file.close()  # Windows replaces no open file
            os.replace(file.name, place)  # noqa: PTH105 - the name is a str
        except BaseException:
            os.unlink(file.name)  # noqa: PTH108 - as above
            raise


def _check_replaceable(path: str) -> None:
    try:
        read_conversation(path)
    except ValueError as error:
        raise ValueError("this is there already and is no saved conversation; nothing was written") from error


def _place(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError as error:  # the home of somebody who is not known
        raise ValueError(str(error)) from error
