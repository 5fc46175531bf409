"""Describes tools in the system message, in the format of Hermes models, for chat templates that do not take tools.

Models with such templates were not trained to call tools; whether they do so depends on the model.
"""

import json
from collections.abc import Sequence
from typing import Any, Final

from legato_gateway.parsers.tool_calls import hermes

FAMILY: Final = "Hermes"
_BEFORE: Final = "You may call the functions that are described here, one JSON object a line:\n"
_AFTER: Final = (
    "\nTo call one, answer with its name and arguments as one JSON object between tags, and nothing else:\n"
    f'{hermes.OPEN}\n{{"name": "function name", "arguments": {{"argument": "value"}}}}\n{hermes.CLOSE}'
)


def with_tools(
    messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]], in_system: bool = True
) -> list[dict[str, Any]]:
    """Returns the messages in the three roles that every template has, with the tools in the first message.

    `in_system` is False for templates that refuse system messages; then the first user message has the tools.
    """
    plain = _merged(messages)
    if not tools:
        return plain
    lines = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    preamble = _BEFORE + lines + _AFTER
    role = "system" if in_system else "user"
    if plain and plain[0]["role"] == "system":
        return [{"role": "system", "content": f"{plain[0]['content']}\n\n{preamble}"}, *plain[1:]]
    if plain and plain[0]["role"] == role:
        return [{**plain[0], "content": f"{preamble}\n\n{plain[0]['content']}"}, *plain[1:]]
    return [{"role": role, "content": preamble}, *plain]


def _merged(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merges results of calls with each other and the next user message: some templates require alternating roles."""
    merged: list[dict[str, Any]] = []
    composed = False  # the latest message consists of results
    for message in messages:
        plain, is_result = _plain(message), message["role"] == "tool"
        if merged and merged[-1]["role"] == plain["role"] == "user" and (composed or is_result):
            merged[-1] = {**merged[-1], "content": f"{merged[-1]['content']}\n{plain['content']}"}
            continue
        merged.append(plain)
        composed = is_result
    return merged


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """Returns a message with calls as text, a result as a user message, and any other message as it is."""
    if message["role"] == "tool":
        result = {"name": message["name"], "content": message["content"]}
        text = f"<tool_response>\n{json.dumps(result, ensure_ascii=False)}\n</tool_response>"
        return {"role": "user", "content": text}
    written = [
        f"{hermes.OPEN}\n{json.dumps(call['function'], ensure_ascii=False)}\n{hermes.CLOSE}"
        for call in message.get("tool_calls", ())
    ]
    if not written:
        return message
    content = [message["content"]] if message["content"] else []
    return {"role": message["role"], "content": "\n".join([*content, *written])}
