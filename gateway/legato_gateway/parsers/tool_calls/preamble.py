"""Tools for models whose chat template knows none: told in the system message, in the format that Hermes models have.

Such models were not trained to call tools; whether they do so depends on the model.
"""

import json
from collections.abc import Sequence
from typing import Any, Final

from legato_gateway.parsers.tool_calls import hermes

_BEFORE: Final = "You may call the functions that are described here, one JSON object a line:\n"
_BEHIND: Final = (
    "\nTo call one, answer with its name and arguments as one JSON object between tags, and nothing else:\n"
    f'{hermes.OPEN}\n{{"name": "function name", "arguments": {{"argument": "value"}}}}\n{hermes.CLOSE}'
)


def told(messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages in the three roles that every template knows, with the tools in the first."""
    plain = [_plain(message) for message in messages]
    if not tools:
        return plain
    lines = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    said = _BEFORE + lines + _BEHIND
    if plain and plain[0]["role"] == "system":
        return [{"role": "system", "content": f"{plain[0]['content']}\n\n{said}"}, *plain[1:]]
    return [{"role": "system", "content": said}, *plain]


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """A call as its model wrote it, and a result as something that the user says."""
    if message["role"] == "tool":
        result = {"name": message["name"], "content": message["content"]}
        told = f"<tool_response>\n{json.dumps(result, ensure_ascii=False)}\n</tool_response>"
        return {"role": "user", "content": told}
    written = [
        f"{hermes.OPEN}\n{json.dumps(call['function'], ensure_ascii=False)}\n{hermes.CLOSE}"
        for call in message.get("tool_calls", ())
    ]
    if not written:
        return message
    said = [message["content"]] if message["content"] else []
    return {"role": message["role"], "content": "\n".join([*said, *written])}
