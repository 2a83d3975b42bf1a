"""The results file: a JSON list, one record for each evaluation, as Swarm's evals keep it. Never loses what it holds."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from aswarm._errors import ConfigurationError
from aswarm._files import replacing
from aswarm._json import is_array


class ResultsFile:
    """A file that records are appended to. One evaluation at a time may write to it.

    Made before anything is spent: raises ConfigurationError where the file holds something else than JSON.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path).resolve()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._records()

    def append(self, record: dict[str, Any]) -> None:
        """Add a record. The file is replaced as a whole, so that it is never half written."""
        text = json.dumps([*self._records(), record], indent=2, ensure_ascii=False, default=_plain)
        with replacing(self._path) as file:
            # Half a surrogate pair, which models do write, has no UTF-8; JSON has this escape for it.
            file.write(f"{text}\n".encode("utf-8", "backslashreplace"))

    def _records(self) -> list[Any]:
        try:
            known: Any = json.loads(self._path.read_text(encoding="utf-8") or "[]")
        except FileNotFoundError:
            return []
        except ValueError as error:
            raise ConfigurationError(f"{self._path} is no results file: {error}") from error
        return list(known) if is_array(known) else [known]


def _plain(value: object) -> str:
    return str(getattr(value, "__name__", value))
