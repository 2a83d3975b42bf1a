"""Typed events as JSON, one object on each line. The form is that of `to_dict()`; a response has its text and its run's id too."""

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
        fields = event.to_dict()
        if isinstance(event, RunFinished):
            fields["response"] = _response(event.response)
        write(self._stdout, _line(fields))

    def show_response(self, response: Response) -> None:
        """Write a run that was not streamed: its last event."""
        self.show(RunFinished(response))

    def show_failure(self, response: Response, error: BaseException, /) -> None:
        """Write the last line of a run that failed or was stopped, with what it has done until then."""
        known = ("status_code", "retryable")
        more = {name: getattr(error, name) for name in known if hasattr(error, name)}
        kind = "RunFailed" if isinstance(error, AswarmError) else "RunStopped"
        text = f"{type(error).__name__}: {error}"
        write(self._stdout, _line({"type": kind, "error": text, **more, "response": _response(response)}))


def _response(response: Response) -> dict[str, Any]:
    return {**response.model_dump(mode="json"), "run_id": response.run_id, "text": response.text}


def _line(fields: dict[str, Any]) -> str:
    # ASCII does not depend on the output's encoding, and can carry half a surrogate pair.
    return json.dumps(fields) + "\n"
