# /// script
# requires-python = ">=3.11"
# dependencies = ["openai-agents>=0.24,<1"]
# ///
"""OpenAI's Agents SDK with its default way to call models, the Responses API: text, typed output, and a tool."""

from agents import Agent, ModelSettings, RunConfig, Runner, function_tool, set_default_openai_client
from openai import AsyncOpenAI
from shared import CAPITAL, GREEDY, KEY, MODEL, URL, WEATHER, City, asked, get_weather

set_default_openai_client(AsyncOpenAI(base_url=URL, api_key=KEY), use_for_tracing=False)


def answer(question, once=None, **more):
    agent = Agent(name="helper", model=MODEL, model_settings=ModelSettings(**GREEDY | (once or {})), **more)
    return Runner.run_sync(agent, question, run_config=RunConfig(tracing_disabled=True)).final_output


assert answer(CAPITAL)
assert isinstance(answer(CAPITAL, output_type=City), City)
once = {"tool_choice": "required", "parallel_tool_calls": False}
tools = [function_tool(get_weather)]
assert answer(WEATHER, once, tools=tools, tool_use_behavior="stop_on_first_tool") == "sunny"
assert asked
