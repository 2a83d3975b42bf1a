"""Requests and answers as JSON: bodies within a limit, and errors with a code and a text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from aswarm._errors import AswarmError
from aswarm._json import jsonable

from ._entries import as_json
from ._requests import RequestError
from ._runs import RunActive, RunsError

M = TypeVar("M", bound=BaseModel)


class Refusal(AswarmError):  # noqa: N818 - it is no fault of the service
    """A request that is not carried out. `extra` is in the body beside the code and the message."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = dict(headers or {})
        self.extra = dict(extra or {})


def refusal_of(error: AswarmError | RequestError) -> Refusal:
    """An error of a request, of `Runs` or of a store as an answer. A ConfigurationError is a fault of the service instead."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, RequestError):
        extra = {} if error.param is None else {"param": error.param}
        return Refusal(error.status, error.code, error.message, extra=extra)
    if isinstance(error, RunsError):
        retry_after: float | None = getattr(error, "retry_after", None)
        headers = {} if retry_after is None else {"retry-after": str(retry_after)}
        return Refusal(error.status, error.code, str(error), headers=headers, extra=_details(error))
    return Refusal(503, "unavailable", "the service cannot do this now; try again later", headers={"retry-after": "5"})


def _details(error: RunsError) -> dict[str, Any]:
    if isinstance(error, RunActive):
        return {"run": error.run_id}
    return {}


def error_response(refusal: Refusal) -> Response:
    """The answer: `{"error": {"code", "message", ...}}`."""
    content = {"error": {"code": refusal.code, "message": str(refusal), **refusal.extra}}
    return json_response(content, refusal.status, refusal.headers)


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer as JSON that no cache keeps."""
    all_headers = {"cache-control": "no-store", "x-content-type-options": "nosniff", **(headers or {})}
    return Response(as_json(jsonable(content)), status, all_headers, "application/json")


def place_of(request: Request, path: str) -> str:
    """A path of the service for `Location`: below the path under which an app mounts it. `path` is quoted already."""
    return f"{quote(request.scope.get('root_path', ''))}{path}"


async def read_json(request: Request, limit: int) -> Any:
    """The body of a request as JSON data. Raises Refusal: 415, 413, 422.

    A browser asks the service first before a page of another origin may send this content type.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise Refusal(415, "not_json", "send JSON, with the content type application/json")
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > limit:
                raise Refusal(413, "too_large", f"the request has more than {limit} bytes")
    except ClientDisconnect as error:
        raise Refusal(400, "incomplete", "the request ended before its body did") from error
    try:
        return from_json(bytes(body), allow_inf_nan=False)
    except ValueError as error:
        raise Refusal(422, "invalid_request", f"the body is not JSON: {error}") from error


async def read_model(request: Request, model: type[M], limit: int) -> M:
    """The body of a request as a model. Raises Refusal; a 422 names each field that is wrong."""
    data = await read_json(request, limit)
    try:
        return model.model_validate(data)
    except ValidationError as error:
        faults = [_fault(each["loc"], each["msg"]) for each in error.errors(include_url=False, include_input=False)]
        raise Refusal(422, "invalid_request", "; ".join(faults), extra={"fields": faults}) from error


def _fault(place: tuple[int | str, ...], message: str) -> str:
    return f"{'.'.join(map(str, place)) or 'body'}: {message.removeprefix('Value error, ')}"
