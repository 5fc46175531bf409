# /// script
# requires-python = ">=3.11"
# dependencies = ["smolagents[openai]>=1.26,<2"]
# ///
"""smolagents: a tool-calling agent, whose tools are called by what the model answers, and a code agent."""

import sys

from smolagents import CodeAgent, OpenAIServerModel, ToolCallingAgent, tool

asked = []


@tool
def get_weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: its name
    """
    asked.append(city)
    return "sunny"


def main(url: str) -> None:
    settings = {"api_base": f"{url}/v1", "api_key": "none", "temperature": 0, "max_tokens": 200}
    model = OpenAIServerModel(model_id="smollm2", **settings)
    agent = ToolCallingAgent(tools=[get_weather], model=model, max_steps=2)
    agent.run("Call get_weather for Paris.")
    called = [call for step in agent.memory.steps for call in getattr(step, "tool_calls", None) or ()]
    assert called, "the model was made to call a tool"
    assert {call.name for call in called} <= {"get_weather", "final_answer"}
    assert CodeAgent(tools=[], model=model, max_steps=1).run("What is 2 + 2?")


if __name__ == "__main__":
    main(sys.argv[1])
