"""Attachments of a client: an image, a sound or a file, in the form of a wire, becomes a content part of Chat Completions.

No part of a message is left out. A part that the providers do not take raises InvalidRequest, with its place and its type.

A model server might read its own files for "file:", and a provider would look up the id of a file with the key of the service.

Security: The address of an attachment starts with "data:", "https:" or "http:", and the id of a file at the provider is refused.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from aswarm._values.json import shown
from aswarm.runs import InvalidRequest
from aswarm.runs.executors import an_object, invalid
from aswarm.serve.wires.requests import a_file_part, a_string, a_text, a_text_part, an_image_part, an_optional_text

_SHOWN = 100
# Keys of messages and parts that are not for a model: who sent them, and the notes of a page or of another server.
_NO_CONTENT = frozenset({"type", "id", "role", "state", "metadata", "providerMetadata", "createdAt", "cache_control"})
_SOUNDS: Mapping[str, str] = {
    "audio/wav": "wav",
    "audio/x-wav": "wav",
    "audio/wave": "wav",
    "audio/vnd.wave": "wav",
    "audio/mpeg": "mp3",
    "audio/mp3": "mp3",
}
_ENDINGS: Mapping[str, str] = {"text/plain": "txt", "text/markdown": "md"}
_ENDING = re.compile("[a-z0-9]{1,5}")
_ESCAPED = re.compile(rb"%([0-9A-Fa-f]{2})")
_MEDIA_TYPE = re.compile(r"[^\s,;/]+/[^\s,;/]+(;[^,]*)?")
_BASE64 = re.compile("[A-Za-z0-9+/]+={0,2}")


def unsupported(place: str, kind: object, advice: str) -> InvalidRequest:
    """Return the error for a part that no provider takes. `kind`: its type."""
    text = f"{place} has the type {shown(kind, _SHOWN)}, which this service cannot send to a model; {advice}"
    return InvalidRequest(text, code="unsupported_part", param=f"{place}.type")


def check_keys(data: Mapping[str, Any], known: Collection[str], place: str) -> None:
    """Raise InvalidRequest for a key that this service does not read, if its value can be content: a text, a list, an object."""
    for key, value in data.items():
        if key not in known and key not in _NO_CONTENT and isinstance(value, str | list | dict) and value:
            param = f"{place}.{key}" if place else key
            text = f"{param} is a key that this service does not read; remove it"
            raise InvalidRequest(text, code="unknown_key", param=param)


def an_address(value: object, param: str) -> str:
    """Return the value if it is a URL that a provider may get. Raises InvalidRequest."""
    url = a_text(value, param)
    scheme, _, rest = url.partition(":")
    if not rest or scheme.lower() not in ("data", "https", "http"):
        raise invalid(param, 'a URL that starts with "data:", "https:" or "http:"', url)
    return f"{scheme.lower()}:{rest}"


def a_media_type(value: object, param: str) -> str:
    """Return the value if it is a media type, such as "image/png", in lower case. Raises InvalidRequest."""
    media_type = a_text(value, param)
    if not _MEDIA_TYPE.fullmatch(media_type):
        raise invalid(param, 'a media type, such as "image/png"', value)
    kind, *parameters = media_type.split(";")
    return ";".join([kind.lower(), *parameters])


def data_url(media_type: str, data: str) -> str:
    """Return base64 data as a URL."""
    return f"data:{media_type};base64,{data}"


def media_part(media_type: str, url: str, place: str, *, name: str | None, kind: str) -> dict[str, Any]:
    """Return the part for an attachment. Raises InvalidRequest if the providers do not take it.

    `media_type`: such as "image/png", or only "image"; empty if the client does not know it. `url`: a data URL, or another
    address. `name`: the name of the file. `kind`: the type of the part, for the error.
    """
    own_type = media_type.lower()
    if "/" not in media_type or media_type.endswith("/*"):  # the URL may have the whole type
        own_type = (
            re.split("[,;]", url.removeprefix("data:"))[0].lower() if url.startswith("data:") else ""
        ) or media_type
    url = _in_base64(url, place, own_type)
    match own_type.partition("/")[0]:
        case "image":
            return an_image_part(url)
        case "audio":
            return _sound(own_type, url, place, kind)
        case "video":
            raise unsupported(place, kind, "no provider takes a video; remove the part")
        case _:
            return a_file_part(name or _name_of(own_type), url)


def sound_part(data: str, form: str) -> dict[str, Any]:
    """Return a part of Chat Completions with a sound. `data`: base64. `form`: "wav" or "mp3"."""
    return {"type": "input_audio", "input_audio": {"data": data, "format": form}}


def _sound(media_type: str, url: str, place: str, kind: str) -> dict[str, Any]:
    form = _SOUNDS.get(media_type.partition(";")[0].strip())
    if form is None or not url.startswith("data:"):
        raise unsupported(
            place, kind, "the providers take a sound as base64 data of the media type audio/wav or audio/mpeg"
        )
    return sound_part(base64_in(url.partition(",")[2], place), form)


def _in_base64(url: str, place: str, media_type: str = "") -> str:
    """Return a data URL with base64 data, the only form that the providers take. Other URLs do not change.

    `media_type`: the type of the data if the URL has none. Raises InvalidRequest for data that is empty or not base64.
    """
    head, comma, text = url.removeprefix("data:").partition(",")
    if not url.startswith("data:") or not comma:  # without a comma, the URL has no data to convert
        return url
    own_type, *parameters = head.split(";")
    data = _ESCAPED.sub(lambda match: bytes.fromhex(match[1].decode()), text.encode(errors="replace"))
    if parameters and parameters[-1].strip().lower() == "base64":
        del parameters[-1]
    else:
        data = b64encode(data)
    return data_url(
        ";".join([own_type.lower() or media_type, *parameters]), base64_in(data.decode(errors="replace"), place)
    )


def base64_in(text: str, param: str) -> str:
    """Return a text of base64, without white space. Raises InvalidRequest if it is empty or not base64."""
    data = "".join(text.split())
    if not _BASE64.fullmatch(data):
        raise invalid(param, "an attachment with base64 data that is not empty", text)
    return data


def _name_of(media_type: str) -> str:
    """Return a name for a file that has none, because the providers need one."""
    kind = media_type.partition(";")[0].strip()
    ending = _ENDINGS.get(kind) or kind.rpartition("/")[2]
    return f"file.{ending}" if _ENDING.fullmatch(ending) else "file"


# --- parts in the form of Chat Completions ------------------------------------------------------------------------------


def chat_parts(parts: Iterable[object], place: str) -> Iterator[dict[str, Any]]:
    """Yield the parts of a message that already have the form of Chat Completions. Raises InvalidRequest."""
    for at, part in enumerate(parts):
        yield _chat_part(part, f"{place}[{at}]")


def _chat_part(part: object, place: str) -> dict[str, Any]:
    data = an_object(part, place)
    kind = data.get("type")
    match kind:
        case "text":
            check_keys(data, ("text",), place)
            return a_text_part(a_string(data.get("text"), f"{place}.text"))
        case "image_url":
            return _chat_image(data, place)
        case "input_audio":
            return _chat_sound(data, place)
        case "file":
            return _chat_file(data, place)
        case _:
            raise unsupported(place, kind, 'it takes the types "text", "image_url", "input_audio" and "file"')


def _inner(data: Mapping[str, Any], kind: str, known: Collection[str], place: str) -> Mapping[str, Any]:
    check_keys(data, (kind,), place)
    inner = an_object(data.get(kind), f"{place}.{kind}")
    check_keys(inner, known, f"{place}.{kind}")
    return inner


def _chat_image(data: Mapping[str, Any], place: str) -> dict[str, Any]:
    image = _inner(data, "image_url", ("url", "detail"), place)
    part = an_image_part(_in_base64(an_address(image.get("url"), url_place := f"{place}.image_url.url"), url_place))
    if (detail := an_optional_text(image.get("detail"), f"{place}.image_url.detail")) is not None:
        part["image_url"]["detail"] = detail
    return part


def _chat_sound(data: Mapping[str, Any], place: str) -> dict[str, Any]:
    sound = _inner(data, "input_audio", ("data", "format"), place)
    form = sound.get("format")
    if form not in ("wav", "mp3"):
        raise invalid(f"{place}.input_audio.format", '"wav" or "mp3"', form)
    text = a_text(sound.get("data"), data_place := f"{place}.input_audio.data")
    return sound_part(base64_in(text, data_place), form)


def _chat_file(data: Mapping[str, Any], place: str) -> dict[str, Any]:
    file = _inner(data, "file", ("filename", "file_data", "file_id"), place)
    if file.get("file_id") is not None:
        raise unsupported(place, "file with a file_id", "send the data of the file as file_data")
    name = a_text(file.get("filename"), f"{place}.file.filename")
    return a_file_part(
        name, _in_base64(an_address(file.get("file_data"), data_place := f"{place}.file.file_data"), data_place)
    )
