"""Parts of the scripts: where the service is, how its model is asked, and what it is asked for."""

import sys

from pydantic import BaseModel, ConfigDict

URL, KEY, MODEL = f"{sys.argv[1]}/v1", "none", "smollm2"
GREEDY = {"temperature": 0, "max_tokens": 200}
CAPITAL, WEATHER = "Name the capital of France.", "What is the weather in Paris?"
asked: list[str] = []  # cities, by calls of `get_weather`


class City(BaseModel):
    name: str
    country: str


class Anything(BaseModel):
    """For modes that describe the schema only in the prompt, which the model of these tests cannot read."""

    model_config = ConfigDict(extra="allow")


def get_weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: its name
    """
    asked.append(city)
    return "sunny"
