"""The scripted model of the weather agent: it follows keywords and capital letters."""

from __future__ import annotations

import json
import re

from aswarm.testing import Request, ScriptedCall, ScriptedModel, call

WEATHER = re.compile(r"weather|rain|sun|umbrella|warm|cold", re.IGNORECASE)
# A real model recognises cities; this one takes the capitalised word after "in".
CITY = re.compile(r"\bin ([A-Z]\w+)")
ADDRESS = re.compile(r"\S+@[\w.]+\w")

Step = str | list[ScriptedCall]


def script() -> ScriptedModel:
    """Return a model whose answers depend only on the request."""
    return ScriptedModel(_answer)


def _answer(request: Request) -> Step:
    said = next(str(message["content"]) for message in reversed(request.messages) if message["role"] == "user")
    told = [str(message["content"]) for message in request.messages if message["role"] == "tool"]
    if request.messages[-1]["role"] == "tool":
        return "Done." if told[-1] == "Sent." else " ".join(map(_sentence, told))
    if address := ADDRESS.search(said):
        return [call("send_email", recipient=address[0], subject="The weather", body=_sentence(told[0]))]
    day = "tomorrow" if "tomorrow" in said else "today"
    cities = CITY.findall(said) if WEATHER.search(said) else []
    return [call("get_weather", city=city, day=day) for city in cities] or "Where would you like to know the weather?"


def _sentence(told: str) -> str:
    if told.startswith("Error: "):
        return f"I am sorry, {told.removeprefix('Error: ValueError: ')}."
    weather = json.loads(told)
    return f"{weather['city']} has {weather['celsius']} °C and {weather['sky']} {weather['day']}."
