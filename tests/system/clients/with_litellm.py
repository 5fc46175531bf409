# /// script
# requires-python = ">=3.11"
# dependencies = ["litellm>=1.80,<2", "mcp>=1,<3"]
# ///
"""litellm: chat, stream, structured output, tools and their results."""

import json
import sys

import litellm
from pydantic import BaseModel

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


class City(BaseModel):
    name: str
    country: str


def main(url: str) -> None:
    def ask(messages, **more):
        settings = {"model": "openai/smollm2", "api_base": f"{url}/v1", "api_key": "none", "temperature": 0}
        return litellm.completion(messages=messages, max_tokens=100, **settings, **more)

    capital = [{"role": "user", "content": "Name the capital of France."}]
    said = ask(capital).choices[0].message.content
    assert said
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in ask(capital, stream=True))
    assert streamed == said, streamed
    City.model_validate_json(ask(capital, response_format=City).choices[0].message.content)

    weather = [{"role": "user", "content": "What is the weather in Paris?"}]
    called = ask(weather, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False).choices[0].message
    (call,) = called.tool_calls
    assert call.function.name == "get_weather"
    assert isinstance(json.loads(call.function.arguments)["city"], str)
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    assert ask([*weather, called.model_dump(), result], tools=[WEATHER]).choices[0].finish_reason


if __name__ == "__main__":
    main(sys.argv[1])
