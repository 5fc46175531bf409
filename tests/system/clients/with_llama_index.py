# /// script
# requires-python = ">=3.11"
# dependencies = ["llama-index-llms-openai-like>=0.8,<1"]
# ///
"""LlamaIndex (`OpenAILike`): chat, stream, completion, structured output and tools."""

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from shared import CAPITAL, GREEDY, KEY, MODEL, URL, WEATHER, City, get_weather

SETTINGS = {"model": MODEL, "api_base": URL, "api_key": KEY, "context_window": 2048, **GREEDY}

chat = OpenAILike(is_chat_model=True, is_function_calling_model=True, **SETTINGS)
capital = [ChatMessage(role="user", content=CAPITAL)]
text = chat.chat(capital).message.content
assert text
assert "".join(chunk.delta or "" for chunk in chat.stream_chat(capital)) == text
assert OpenAILike(is_chat_model=False, **SETTINGS).complete("The capital of France is").text
assert isinstance(chat.as_structured_llm(City).complete(CAPITAL).raw, City)
tool = FunctionTool.from_defaults(get_weather)
answer = chat.chat_with_tools([tool], user_msg=WEATHER, tool_required=True)
call = chat.get_tool_calls_from_response(answer)[0]
assert call.tool_name == "get_weather"
assert tool(**call.tool_kwargs).content == "sunny"
