"""Describes tools in the system message, for chat templates that do not take tools: in the format of Hermes models, or
in Python, as Google describes it for Gemma 3 (https://ai.google.dev/gemma/docs/capabilities/function-calling).

Models with such templates were not trained to call tools; whether they do so depends on the model.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from legato_gateway.parsers.tool_calls import hermes

_Write = Callable[[Sequence[dict[str, Any]]], str]  # formats calls
FAMILY: Final = "Hermes"
PYTHONIC: Final = "Pythonic"
_BEFORE_PYTHONIC: Final = (
    "You have access to functions. If you decide to invoke any of the function(s), you MUST put it in the format of\n"
    "[func_name1(params_name1=params_value1, params_name2=params_value2...), func_name2(params)]\n\n"
    "You SHOULD NOT include any other text in the response if you call a function\n"
)
_BEFORE: Final = "You may call the functions that are described here, one JSON object a line:\n"
_AFTER: Final = (
    "\nTo call one, answer with its name and arguments as one JSON object between tags, and nothing else:\n"
    f'{hermes.OPEN}\n{{"name": "function name", "arguments": {{"argument": "value"}}}}\n{hermes.CLOSE}'
)


def with_tools(
    messages: Sequence[dict[str, Any]],
    tools: Sequence[dict[str, Any]],
    in_system: bool = True,
    pythonic: bool = False,
) -> list[dict[str, Any]]:
    """Returns the messages in the three roles that every template has, with the tools in the first message.

    `in_system` is False for templates that refuse system messages; then the first user message has the tools.
    """
    plain = _merged(messages, _in_python if pythonic else _in_tags)
    if not tools:
        return plain
    if pythonic:
        preamble = _BEFORE_PYTHONIC + json.dumps([tool["function"] for tool in tools], ensure_ascii=False)
    else:
        preamble = _BEFORE + "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools) + _AFTER
    role = "system" if in_system else "user"
    if plain and plain[0]["role"] == "system":
        return [{"role": "system", "content": f"{plain[0]['content']}\n\n{preamble}"}, *plain[1:]]
    if plain and plain[0]["role"] == role:
        return [{**plain[0], "content": f"{preamble}\n\n{plain[0]['content']}"}, *plain[1:]]
    return [{"role": role, "content": preamble}, *plain]


def _merged(messages: Sequence[dict[str, Any]], written: _Write) -> list[dict[str, Any]]:
    """Merges results of calls with each other and the next user message: some templates require alternating roles."""
    merged: list[dict[str, Any]] = []
    composed = False  # the latest message consists of results
    for message in messages:
        plain, is_result = _plain(message, written), message["role"] == "tool"
        if merged and merged[-1]["role"] == plain["role"] == "user" and (composed or is_result):
            merged[-1] = {**merged[-1], "content": f"{merged[-1]['content']}\n{plain['content']}"}
            continue
        merged.append(plain)
        composed = is_result
    return merged


def _plain(message: dict[str, Any], written: _Write) -> dict[str, Any]:
    """Returns a message with calls as text, a result as a user message, and any other message as it is."""
    if message["role"] == "tool":
        result = {"name": message["name"], "content": message["content"]}
        text = f"<tool_response>\n{json.dumps(result, ensure_ascii=False)}\n</tool_response>"
        return {"role": "user", "content": text}
    calls = [call["function"] for call in message.get("tool_calls", ())]
    if not calls:
        return message
    content = [message["content"]] if message["content"] else []
    return {"role": message["role"], "content": "\n".join([*content, written(calls)])}


def _in_tags(calls: Sequence[dict[str, Any]]) -> str:
    return "\n".join(f"{hermes.OPEN}\n{json.dumps(call, ensure_ascii=False)}\n{hermes.CLOSE}" for call in calls)


def _in_python(calls: Sequence[dict[str, Any]]) -> str:
    each = (
        f"{call['name']}({', '.join(f'{key}={value!r}' for key, value in call['arguments'].items())})" for call in calls
    )
    return f"[{', '.join(each)}]"
