"""Saved conversations on disk. Raises OSError or ValueError; what they mean to the user is shown elsewhere."""

from __future__ import annotations

from pathlib import Path

from aswarm._files import replacing

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
    with replacing(place, private=True) as file:
        file.write(text.encode())


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
