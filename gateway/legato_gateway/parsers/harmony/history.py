"""Messages and tools as chat templates of gpt-oss take them: one call per message, and reasoning as `thinking`.

https://huggingface.co/openai/gpt-oss-20b/blob/main/chat_template.jinja
"""

from collections.abc import Iterator, Sequence
from typing import Any

from legato_gateway.parsers.harmony.tokens import ASSISTANT, CHANNEL, COMMENTARY, END, MESSAGE, START

Message = dict[str, Any]
_PREAMBLE = f"{END}{START}{ASSISTANT}{CHANNEL}{COMMENTARY}{MESSAGE}"  # after reasoning, before a text with a call


def template_input(messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> tuple[list[Message], Message]:
    """Returns messages and variables for the chat template.

    Reasoning before a later final answer is dropped, as the model was trained; between calls it is kept.
    """
    last = max((at for at, message in enumerate(messages) if _is_final(message)), default=-1)
    written: list[Message] = []
    at = 0
    while at < len(messages):
        results = _results(messages[at + 1 :]) if messages[at].get("tool_calls") else []
        written += _written(messages[at], results, at >= last and (at > last or at == len(messages) - 1))
        at += 1 + len(results)
    return _instructed(written), {"tools": [_described(tool) for tool in tools]} if tools else {}


def _is_final(message: Message) -> bool:
    return message["role"] == ASSISTANT and not message.get("tool_calls")


def _results(messages: Sequence[Message]) -> list[Message]:
    """Returns the results at the beginning of these messages."""
    count = next((at for at, message in enumerate(messages) if message["role"] != "tool"), len(messages))
    return list(messages[:count])


def _written(message: Message, results: Sequence[Message], thinks: bool) -> Iterator[Message]:
    """Yields a message, and its results. Each call has a message of its own, which its results follow.

    A text with a call is a message in the channel `commentary`, for which templates have no field.
    """
    made = {key: value for key, value in message.items() if key not in ("reasoning", "reasoning_content")}
    thought = (message.get("reasoning") or "") if thinks else ""
    calls = made.pop("tool_calls", ())
    if not calls:
        yield made | ({"thinking": thought} if thought else {})
        return
    if made["content"] and thinks:
        thought += _PREAMBLE + made["content"]
    ids = [call["id"] for call in calls]
    for number, call in enumerate(calls):
        thinking = {"thinking": thought} if thought and not number else {}
        yield made | {"content": "", "tool_calls": [call]} | thinking
        yield from (each for each in results if each.get("tool_call_id") == call["id"] or _is_stray(each, ids, number))


def _is_stray(result: Message, ids: Sequence[str], number: int) -> bool:
    """True for a result of an earlier message's call, after the last call here."""
    return number == len(ids) - 1 and result.get("tool_call_id") not in ids


def _instructed(messages: Sequence[Message]) -> list[Message]:
    """Joins the first system messages, and makes later ones the user's: templates would drop them."""
    made: list[Message] = []
    for message in messages:
        if message["role"] == "system" and made and made[-1]["role"] == "system" and len(made) == 1:
            made[0] = {**made[0], "content": f"{made[0]['content']}\n\n{message['content']}"}
        else:
            made.append({**message, "role": "user"} if message["role"] == "system" and made else message)
    return made


def _described(tool: dict[str, Any]) -> dict[str, Any]:
    """Returns a tool with a description, which templates append to text."""
    function = tool["function"]
    return {**tool, "function": {**function, "description": function.get("description") or ""}}
