# /// script
# requires-python = ">=3.11"
# dependencies = ["openai-agents>=0.24,<1"]
# ///
"""OpenAI's Agents SDK with its default way to call models, the Responses API: text, typed output, and a tool."""

import sys

from agents import Agent, ModelSettings, RunConfig, Runner, function_tool, set_default_openai_client
from openai import AsyncOpenAI
from pydantic import BaseModel

asked = []


class City(BaseModel):
    name: str
    country: str


@function_tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    asked.append(city)
    return "sunny"


def main(url: str) -> None:
    set_default_openai_client(AsyncOpenAI(base_url=f"{url}/v1", api_key="none"), use_for_tracing=False)
    plain = {"temperature": 0, "max_tokens": 100}
    run = RunConfig(tracing_disabled=True)

    def agent(**more):
        settings = ModelSettings(**plain | more.pop("settings", {}))
        return Agent(name="helper", model="smollm2", model_settings=settings, **more)

    said = Runner.run_sync(agent(), "Name the capital of France.", run_config=run).final_output
    assert said
    found = Runner.run_sync(agent(output_type=City), "Name the capital of France.", run_config=run).final_output
    assert isinstance(found, City)
    once = {"tool_choice": "required", "parallel_tool_calls": False}
    weather = agent(tools=[get_weather], settings=once, tool_use_behavior="stop_on_first_tool")
    assert Runner.run_sync(weather, "What is the weather in Paris?", run_config=run).final_output == "sunny"
    assert asked


if __name__ == "__main__":
    main(sys.argv[1])
