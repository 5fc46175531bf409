# /// script
# requires-python = ">=3.11"
# dependencies = ["litellm>=1.80,<2", "mcp>=1,<3"]
# ///
"""litellm: chat, stream, structured output, tools and their results."""

import json

import litellm
from shared import CAPITAL, GREEDY, KEY, MODEL, URL, WEATHER, City

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}


def ask(messages, **more):
    return litellm.completion(f"openai/{MODEL}", messages, api_base=URL, api_key=KEY, **GREEDY, **more)


capital, weather = ([{"role": "user", "content": question}] for question in (CAPITAL, WEATHER))
text = ask(capital).choices[0].message.content
assert text
assert "".join(chunk.choices[0].delta.content or "" for chunk in ask(capital, stream=True)) == text
City.model_validate_json(ask(capital, response_format=City).choices[0].message.content)

called = ask(weather, tools=[TOOL], tool_choice="required", parallel_tool_calls=False).choices[0].message
(call,) = called.tool_calls
assert call.function.name == "get_weather"
assert isinstance(json.loads(call.function.arguments)["city"], str)
result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
assert ask([*weather, called.model_dump(), result], tools=[TOOL]).choices[0].finish_reason
