# /// script
# requires-python = ">=3.11"
# dependencies = ["pydantic-ai-slim[openai]>=2,<3"]
# ///
"""Pydantic AI: text, tools, and structured output of each mode (Tool, Native, Prompted)."""

import contextlib

from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.exceptions import OutputTokenLimitExceeded
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from shared import CAPITAL, GREEDY, KEY, MODEL, URL, WEATHER, Anything, City, asked, get_weather

model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=URL, api_key=KEY))


def run(question, settings=GREEDY, **more):
    return Agent(model, model_settings=settings, **more).run_sync(question)


answer = run(CAPITAL)
assert answer.output
assert answer.usage.input_tokens > 0
for kind in (ToolOutput, NativeOutput):
    assert isinstance(run(CAPITAL, output_type=kind(City)).output, City), kind
with contextlib.suppress(OutputTokenLimitExceeded):  # an object that does not end in time will do, too
    assert isinstance(run(CAPITAL, output_type=PromptedOutput(Anything)).output, Anything)


def call_once(_context):
    """An agent that had to call in every step would never end."""
    return GREEDY | {"tool_choice": "none" if asked else ["get_weather"]}


assert run(WEATHER, call_once, tools=[get_weather]).output
assert asked
