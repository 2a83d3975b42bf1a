"""One agent with two functions: one looks up data, one has an effect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from aswarm import Agent, Result


@dataclass(frozen=True)
class Weather:
    """A forecast: degrees Celsius, and the sky."""

    city: str
    day: str
    celsius: int
    sky: Literal["sun", "clouds", "rain"]


# In place of a weather service, which would be called with `await client.get(...)`.
FORECASTS = [
    Weather("Oslo", "today", 7, "rain"),
    Weather("Oslo", "tomorrow", 11, "clouds"),
    Weather("Lima", "today", 21, "sun"),
    Weather("Lima", "tomorrow", 22, "sun"),
]


async def get_weather(
    city: Annotated[str, "a city, without country or district"], day: Literal["today", "tomorrow"] = "today"
) -> Weather:
    """The weather in a city."""
    for forecast in FORECASTS:
        if (forecast.city, forecast.day) == (city, day):
            return forecast
    cities = sorted({forecast.city for forecast in FORECASTS})
    raise ValueError(f"no forecast for {city}; there are {', '.join(cities)}")


async def send_email(context_variables: dict[str, Any], recipient: str, subject: str, body: str) -> Result:
    """Send an e-mail. Only to an address that the user has named."""
    email = {"to": recipient, "subject": subject, "body": body}
    return Result(value="Sent.", context_variables={"outbox": [*context_variables["outbox"], email]})


weather_agent = Agent(
    name="Weather",
    instructions="Answer questions about the weather in one sentence. Never guess it: look it up.",
    functions=[get_weather, send_email],
)
