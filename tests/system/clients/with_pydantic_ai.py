# /// script
# requires-python = ">=3.11"
# dependencies = ["pydantic-ai-slim[openai]>=2,<3"]
# ///
"""Pydantic AI: text, tools, and structured output of each mode (Tool, Native, Prompted).

In the prompted mode only the prompt tells the model of the schema, which the model of these tests cannot read: there,
any object will do, also one that does not end in time.
"""

import contextlib
import sys

from pydantic import BaseModel, ConfigDict
from pydantic_ai import Agent, ModelSettings, NativeOutput, PromptedOutput, RunContext, ToolOutput
from pydantic_ai.exceptions import OutputTokenLimitExceeded
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

CAPITAL = "Name the capital of France."


class City(BaseModel):
    name: str
    country: str


class Anything(BaseModel):
    model_config = ConfigDict(extra="allow")


def main(url: str) -> None:
    model = OpenAIChatModel("smollm2", provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none"))
    settings = {"temperature": 0, "max_tokens": 200}
    said = Agent(model, model_settings=settings).run_sync(CAPITAL)
    assert said.output
    assert said.usage.input_tokens > 0
    for kind in (ToolOutput, NativeOutput):
        found = Agent(model, output_type=kind(City), model_settings=settings).run_sync(CAPITAL).output
        assert isinstance(found, City), (kind, found)
    prompted = Agent(model, output_type=PromptedOutput(Anything), model_settings=settings)
    with contextlib.suppress(OutputTokenLimitExceeded):
        assert isinstance(prompted.run_sync(CAPITAL).output, Anything)

    asked = []

    def get_weather(city: str) -> str:
        """The weather of a city."""
        asked.append(city)
        return "sunny"

    def settings_of_step(context: RunContext) -> ModelSettings:
        """A call first, then an answer: an agent that had to call in every step would never end."""
        return settings | {"tool_choice": "none" if asked else ["get_weather"]}

    agent = Agent(model, tools=[get_weather], model_settings=settings_of_step)
    assert agent.run_sync("What is the weather in Paris?").output
    assert asked


if __name__ == "__main__":
    main(sys.argv[1])
