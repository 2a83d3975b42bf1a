"""Typed events as JSON, one object on each line. The form is that of `to_dict()`."""

from __future__ import annotations

import json
from typing import Any, TextIO

from aswarm._agent import Response
from aswarm._errors import AswarmError
from aswarm._events import Event, RunFinished

from ._output import write


class JsonLines:
    """Writes the events of a run."""

    def __init__(self, stdout: TextIO) -> None:
        self._stdout = stdout

    def show(self, event: Event) -> None:
        """Write one event."""
        write(self._stdout, _line(event.to_dict()))

    def show_response(self, response: Response) -> None:
        """Write a run that was not streamed: its last event."""
        self.show(RunFinished(response))

    def show_failure(self, response: Response, error: BaseException, /) -> None:
        """Write the last line of a run that failed or was stopped, with its partial response."""
        known = ("status_code", "retryable")
        more = {name: getattr(error, name) for name in known if hasattr(error, name)}
        kind = "RunFailed" if isinstance(error, AswarmError) else "RunStopped"
        text = f"{type(error).__name__}: {error}"
        # In the form of `RunFinished`, which this line replaces.
        partial = RunFinished(response).to_dict()["response"]
        write(self._stdout, _line({"type": kind, "error": text, **more, "response": partial}))


def _line(fields: dict[str, Any]) -> str:
    # ASCII does not depend on the output's encoding, and can carry half a surrogate pair.
    return json.dumps(fields) + "\n"
