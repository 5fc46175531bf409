"""Conversations of Anthropic's API as chat messages: blocks of text, of calls and of their results, one by one."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from legato_gateway.anthropic.schemas import (
    Kind,
    Message,
    Messages,
    System,
    TextBlock,
    ThinkingBlock,
    ToolReferenceBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from legato_gateway.errors import BadRequest, Unsupported
from legato_gateway.openai.schemas import MAX_CALLS, ChatMessage, FunctionCall, ToolCall
from legato_gateway.serving import bodies

_ROLES = ("user", "assistant", "system")
_WITHOUT_EFFECT = ("redacted_thinking",)  # of earlier answers: nobody here can read it
_MESSAGES = msgspec.json.Decoder(Messages)
_SYSTEM = msgspec.json.Decoder(System | None)
_KIND = msgspec.json.Decoder(Kind)
_OBJECT = msgspec.json.Decoder(dict[str, Raw])
BLOCKS: dict[str, msgspec.json.Decoder[Any]] = {
    "text": msgspec.json.Decoder(TextBlock),
    "tool_use": msgspec.json.Decoder(ToolUseBlock),
    "tool_reference": msgspec.json.Decoder(ToolReferenceBlock),
    "tool_result": msgspec.json.Decoder(ToolResultBlock),
    "thinking": msgspec.json.Decoder(ThinkingBlock),
}
_OF_ROLE = {"user": ("text", "tool_result"), "assistant": ("text", "tool_use", "thinking")}
# Claude Code adds such a line to the system prompt for accounting. It differs in each request, so nothing after it
# would be found in the prefix cache. vLLM leaves it out, too.
_ACCOUNTING = re.compile(r"^x-anthropic-billing-header.*\n?", re.MULTILINE)

Block = TextBlock | ToolUseBlock | ToolReferenceBlock | ToolResultBlock | ThinkingBlock


@dataclass(frozen=True, slots=True)
class Conversation:
    """Chat messages, and for each the path of what it was made of."""

    messages: tuple[ChatMessage, ...]
    places: tuple[str, ...]


def conversation(system: Raw | UnsetType, messages: Raw) -> Conversation:
    """What the fields `system` and `messages` say. Raises BadRequest with the path of what is wrong."""
    found: list[tuple[ChatMessage, str]] = []
    if said := _system(system):
        found.append((ChatMessage("system", said), "system"))
    given = bodies.decode(_MESSAGES, messages, "messages")
    for number, message in enumerate(given):
        for made, place in _chat(message, f"messages[{number}]"):
            if found and made.role in ("user", "assistant") and made.role == found[-1][0].role:
                found[-1] = (_merged(found[-1][0], made), found[-1][1])
            else:
                found.append((made, place))
    if found[-1][0].role == "assistant":
        text = (
            "a last message of the role assistant, which the answer would go on with, is not supported by this server"
        )
        raise Unsupported(text, param=found[-1][1])
    return Conversation(tuple(message for message, _ in found), tuple(place for _, place in found))


def is_given(raw: Raw | UnsetType) -> bool:
    """Whether a field says anything."""
    return raw is not UNSET and bytes(memoryview(raw)[:16]).strip() not in (b"null", b"[]", b"{}", b'""', b"false")


def unsupported(at: str) -> Unsupported:
    """A field of this path is none that this server obeys."""
    return Unsupported(f"{at} is not supported by this server", param=at)


def _system(raw: Raw | UnsetType) -> str:
    given = None if raw is UNSET else bodies.decode(_SYSTEM, raw, "system")
    return "" if given is None else _system_text(given, "system")


def _system_text(content: str | Sequence[Raw], at: str) -> str:
    """The system prompt without Claude Code's accounting lines."""
    return _ACCOUNTING.sub("", content if isinstance(content, str) else _joined(_read(content, at, ("text",))))


def _chat(message: Message, at: str) -> list[tuple[ChatMessage, str]]:
    if message.role not in _ROLES:
        text = f"not a valid {at}.role: {message.role[:40]!r} ({', '.join(_ROLES)})"
        raise BadRequest(text, param=f"{at}.role")
    if message.role == "system":
        return [(ChatMessage("system", _system_text(message.content, f"{at}.content")), at)]
    if isinstance(message.content, str):
        return [(ChatMessage(message.role, message.content), at)]
    blocks = _read(message.content, f"{at}.content", _OF_ROLE[message.role])
    if message.role == "assistant":
        return [(_answer(blocks, at), at)]
    found: list[tuple[ChatMessage, str]] = []
    texts: list[Block] = []
    for number, block in enumerate(blocks):
        if isinstance(block, ToolResultBlock):
            found += _of_texts(message.role, texts, at)
            texts = []
            here = f"{at}.content[{number}]"
            found.append((_result(block, here), here))
        else:
            texts.append(block)
    return found + _of_texts(message.role, texts, at)


def _merged(first: ChatMessage, second: ChatMessage) -> ChatMessage:
    """Several messages of one role are one turn: chat templates ask for turns that alternate."""
    texts = [str(message.content) for message in (first, second) if message.content]
    calls = (*(first.tool_calls or ()), *(second.tool_calls or ()))
    thoughts = [message.reasoning_content for message in (first, second) if message.reasoning_content]
    content, thought = "\n".join(texts) if texts or not calls else None, "\n".join(thoughts) or None
    return ChatMessage(first.role, content, tool_calls=calls or None, reasoning_content=thought)


def _of_texts(role: str, texts: Sequence[Block], at: str) -> list[tuple[ChatMessage, str]]:
    return [(ChatMessage(role, _joined(texts)), at)] if texts else []


def _answer(blocks: Sequence[Block], at: str) -> ChatMessage:
    """An assistant's message. What it said is exactly the texts; where it called between them is not told."""
    text = "".join(block.text for block in blocks if isinstance(block, TextBlock))
    calls = tuple(_call(block) for block in blocks if isinstance(block, ToolUseBlock))
    if len(calls) > MAX_CALLS:
        raise BadRequest(f"{at}.content: there are {len(calls)} tool_use blocks; at most {MAX_CALLS} may be", param=at)
    thought = "\n".join(block.thinking for block in blocks if isinstance(block, ThinkingBlock))
    content = text or ("" if not calls else None)
    return ChatMessage("assistant", content, tool_calls=calls or None, reasoning_content=thought or None)


def _call(block: ToolUseBlock) -> ToolCall:
    return ToolCall(block.id, FunctionCall(block.name, bytes(block.input).decode()))


def _result(block: ToolResultBlock, at: str) -> ChatMessage:
    """Templates know no failed results: the model is told in words."""
    content = block.content or ""
    text = content if isinstance(content, str) else _joined(_read(content, f"{at}.content", ("text", "tool_reference")))
    return ChatMessage("tool", f"Error: {text}" if block.is_error else text, tool_call_id=block.tool_use_id)


def _joined(blocks: Sequence[Block]) -> str:
    return "\n".join(block.text for block in blocks if isinstance(block, TextBlock | ToolReferenceBlock))


def _read(raws: Sequence[Raw], at: str, allowed: tuple[str, ...]) -> list[Block]:
    """The blocks, apart from those without effect."""
    found: list[Block] = []
    for number, raw in enumerate(raws):
        here = f"{at}[{number}]"
        kind = bodies.decode(_KIND, raw, here).type
        if kind in _WITHOUT_EFFECT and "tool_use" in allowed:
            continue
        if kind is None:
            raise BadRequest(f"{here}.type is missing", param=f"{here}.type")
        if kind not in allowed:
            where = f"; here it may be {' or '.join(allowed)}"
            raise Unsupported(f"{here}: blocks of type {kind[:40]!r} are not supported{where}", param=f"{here}.type")
        block: Block = bodies.decode(BLOCKS[kind], raw, here)
        for field in ("citations", "toolset_name"):
            if is_given(getattr(block, field, UNSET)):
                raise unsupported(f"{here}.{field}")
        if isinstance(block, ToolUseBlock):
            bodies.decode(_OBJECT, block.input, f"{here}.input")
        found.append(block)
    return found
