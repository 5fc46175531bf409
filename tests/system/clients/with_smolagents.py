# /// script
# requires-python = ">=3.11"
# dependencies = ["smolagents[openai]>=1.26,<2"]
# ///
"""smolagents: a tool-calling agent, whose tools are called by what the model answers, and a code agent."""

from shared import GREEDY, KEY, MODEL, URL, get_weather
from smolagents import CodeAgent, OpenAIServerModel, ToolCallingAgent, tool

model = OpenAIServerModel(MODEL, api_base=URL, api_key=KEY, **GREEDY)
agent = ToolCallingAgent(tools=[tool(get_weather)], model=model, max_steps=2)
agent.run("Call get_weather for Paris.")
called = {call.name for step in agent.memory.steps for call in getattr(step, "tool_calls", None) or ()}
assert called, "the model was made to call a tool"
assert called <= {"get_weather", "final_answer"}
assert CodeAgent(tools=[], model=model, max_steps=1).run("What is 2 + 2?")
