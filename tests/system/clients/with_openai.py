# /// script
# requires-python = ">=3.11"
# dependencies = ["openai>=3,<4"]
# ///
"""The newest of OpenAI's official clients: chat, streams, parsing, tools, and responses."""

import json
import sys

import openai
from pydantic import BaseModel

CAPITAL = "Name the capital of France."


class City(BaseModel):
    name: str
    country: str


class GetWeather(BaseModel):
    """The weather of a city."""

    city: str


def chat(client: openai.OpenAI) -> None:
    def settings(text):
        return {
            "model": "smollm2",
            "messages": [{"role": "user", "content": text}],
            "temperature": 0,
            "max_tokens": 100,
        }

    said = client.chat.completions.create(**settings(CAPITAL)).choices[0].message.content
    assert "Paris" in said, said
    with client.chat.completions.stream(**settings(CAPITAL)) as stream:
        assert stream.get_final_completion().choices[0].message.content == said
    parsed = client.chat.completions.parse(**settings(CAPITAL), response_format=City)
    assert isinstance(parsed.choices[0].message.parsed, City)
    tools = {
        "tools": [openai.pydantic_function_tool(GetWeather)],
        "tool_choice": "required",
        "parallel_tool_calls": False,
    }
    with client.chat.completions.stream(**settings("What is the weather in Paris?"), **tools) as stream:
        (call,) = stream.get_final_completion().choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, GetWeather)


def responses(client: openai.OpenAI) -> None:
    settings = {"model": "smollm2", "temperature": 0, "max_output_tokens": 100}
    said = client.responses.create(input=CAPITAL, **settings).output_text
    assert "Paris" in said, said
    with client.responses.stream(input=CAPITAL, **settings) as stream:
        assert stream.get_final_response().output_text == said
    assert isinstance(client.responses.parse(input=CAPITAL, text_format=City, **settings).output_parsed, City)
    tool = {"type": "function", "name": "get_weather", "parameters": GetWeather.model_json_schema(), "strict": False}
    answer = client.responses.create(
        input="What is the weather in Paris?",
        tools=[tool],
        tool_choice="required",
        parallel_tool_calls=False,
        **settings,
    )
    (call,) = (item for item in answer.output if item.type == "function_call")
    GetWeather.model_validate(json.loads(call.arguments))


def main(url: str) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    chat(client)
    responses(client)


if __name__ == "__main__":
    main(sys.argv[1])
