# /// script
# requires-python = ">=3.11"
# dependencies = ["llama-index-llms-openai-like>=0.8,<1"]
# ///
"""LlamaIndex (`OpenAILike`): chat, stream, completion, structured output and tools."""

import sys

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel


class City(BaseModel):
    name: str
    country: str


def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


def main(url: str) -> None:
    def model(is_chat):
        settings = {"model": "smollm2", "api_base": f"{url}/v1", "api_key": "none", "temperature": 0}
        more = {"max_tokens": 100, "context_window": 2048, "is_function_calling_model": is_chat}
        return OpenAILike(is_chat_model=is_chat, **settings, **more)

    chat = model(True)
    capital = [ChatMessage(role="user", content="Name the capital of France.")]
    said = chat.chat(capital).message.content
    assert said
    assert "".join(chunk.delta or "" for chunk in chat.stream_chat(capital)) == said
    assert model(False).complete("The capital of France is").text
    assert isinstance(chat.as_structured_llm(City).complete("Name the capital of France.").raw, City)
    tool = FunctionTool.from_defaults(get_weather)
    answer = chat.chat_with_tools([tool], user_msg="What is the weather in Paris?", tool_required=True)
    (call, *_) = chat.get_tool_calls_from_response(answer)
    assert call.tool_name == "get_weather"
    assert tool(**call.tool_kwargs).content.startswith("sunny in ")


if __name__ == "__main__":
    main(sys.argv[1])
