"""Converts conversations of Anthropic's API to chat messages: blocks of text, calls and results."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from legato_gateway.anthropic.schemas import (
    MessageParam,
    Messages,
    ObjectType,
    System,
    TextBlock,
    ThinkingBlock,
    ToolReferenceBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from legato_gateway.errors import BadRequest, Unsupported
from legato_gateway.openai.schemas import MAX_CALLS, Absent, ChatMessage, FunctionCall, ToolCall, marked
from legato_gateway.serving.bodies import parsing

_ROLES = ("user", "assistant", "system")
_WITHOUT_EFFECT = ("redacted_thinking",)  # of earlier answers; this server cannot read it
_MESSAGES = msgspec.json.Decoder(Messages)
_SYSTEM = msgspec.json.Decoder(System | None)
_KIND = msgspec.json.Decoder(ObjectType)
_OBJECT = msgspec.json.Decoder(dict[str, Raw])
BLOCKS: dict[str, msgspec.json.Decoder[Any]] = {
    "text": msgspec.json.Decoder(TextBlock),
    "tool_use": msgspec.json.Decoder(ToolUseBlock),
    "tool_reference": msgspec.json.Decoder(ToolReferenceBlock),
    "tool_result": msgspec.json.Decoder(ToolResultBlock),
    "thinking": msgspec.json.Decoder(ThinkingBlock),
}
_ALLOWED_BLOCKS = {"user": ("text", "tool_result"), "assistant": ("text", "tool_use", "thinking")}
# Claude Code adds such a line to the system prompt for accounting. It differs in each request, so nothing after it
# could be cached. vLLM drops it as well.
_ACCOUNTING = re.compile(r"^x-anthropic-billing-header.*\n?", re.MULTILINE)

Block = TextBlock | ToolUseBlock | ToolReferenceBlock | ToolResultBlock | ThinkingBlock


@dataclass(frozen=True, slots=True)
class ConvertedMessages:
    """Chat messages, and the path in the request of each."""

    messages: tuple[ChatMessage, ...]
    places: tuple[str, ...]


def conversation(system: Raw | UnsetType, messages: Raw) -> ConvertedMessages:
    """Converts the fields `system` and `messages`. Raises BadRequest with the path of an error."""
    chat: list[tuple[ChatMessage, str]] = []
    if said := _system(system):
        chat.append((ChatMessage("system", said), "system"))
    given = parsing.decode(_MESSAGES, messages, "messages")
    for number, message in enumerate(given):
        for made, place in _chat(message, f"messages[{number}]"):
            if chat and made.role in ("user", "assistant") and made.role == chat[-1][0].role:
                chat[-1] = (_merged(chat[-1][0], made), chat[-1][1])
            else:
                chat.append((made, place))
    if chat[-1][0].role == "assistant":
        text = (
            "a last message of the role assistant, which the answer would go on with, is not supported by this server"
        )
        raise Unsupported(text, param=chat[-1][1])
    return ConvertedMessages(tuple(message for message, _ in chat), tuple(place for _, place in chat))


def is_given(raw: Raw | UnsetType) -> bool:
    """True if a field has a value."""
    return raw is not UNSET and bytes(memoryview(raw)[:16]).strip() not in (b"null", b"[]", b"{}", b'""', b"false")


def unsupported(at: str) -> Unsupported:
    """Returns the error for a field that this server does not support."""
    return Unsupported(f"{at} is not supported by this server", param=at)


def _system(raw: Raw | UnsetType) -> str:
    given = parsing.optional(_SYSTEM, raw, "system")
    return "" if given is None else _system_text(given, "system")


def _system_text(content: str | Sequence[Raw], at: str) -> str:
    """Returns the system prompt without Claude Code's accounting lines."""
    return _ACCOUNTING.sub("", content if isinstance(content, str) else _joined(_read(content, at, ("text",))))


def _chat(message: MessageParam, at: str) -> list[tuple[ChatMessage, str]]:
    if message.role not in _ROLES:
        text = f"not a valid {at}.role: {message.role[:40]!r} ({', '.join(_ROLES)})"
        raise BadRequest(text, param=f"{at}.role")
    if message.role == "system":
        return [(ChatMessage("system", _system_text(message.content, f"{at}.content")), at)]
    if isinstance(message.content, str):
        return [(ChatMessage(message.role, message.content), at)]
    blocks = _read(message.content, f"{at}.content", _ALLOWED_BLOCKS[message.role])
    if message.role == "assistant":
        return [(_answer(blocks, at), at)]
    messages: list[tuple[ChatMessage, str]] = []
    texts: list[Block] = []
    for number, block in enumerate(blocks):
        if isinstance(block, ToolResultBlock):
            messages += _text_message(message.role, texts, at)
            texts = []
            here = f"{at}.content[{number}]"
            messages.append((_result(block, here), here))
        else:
            texts.append(block)
    return messages + _text_message(message.role, texts, at)


def _merged(first: ChatMessage, second: ChatMessage) -> ChatMessage:
    """Merges consecutive messages of one role into one turn: chat templates require turns to alternate."""
    texts = [str(message.content) for message in (first, second) if message.content]
    calls = (*(first.tool_calls or ()), *(second.tool_calls or ()))
    thoughts = [message.reasoning_content for message in (first, second) if message.reasoning_content]
    content, thought = "\n".join(texts) if texts or not calls else None, "\n".join(thoughts) or None
    return ChatMessage(first.role, content, tool_calls=calls or None, reasoning_content=thought)


def _text_message(role: str, texts: Sequence[Block], at: str) -> list[tuple[ChatMessage, str]]:
    return [(ChatMessage(role, _joined(texts)), at)] if texts else []


def _answer(blocks: Sequence[Block], at: str) -> ChatMessage:
    """Converts an assistant's message: its texts joined, then its calls. Their order is lost."""
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
    """Converts a result. Chat templates have no failed results, so failure is stated in words."""
    content = block.content or ""
    text = content if isinstance(content, str) else _joined(_read(content, f"{at}.content", ("text", "tool_reference")))
    return ChatMessage("tool", f"Error: {text}" if block.is_error else text, tool_call_id=block.tool_use_id)


def _joined(blocks: Sequence[Block]) -> str:
    return "\n".join(block.text for block in blocks if isinstance(block, TextBlock | ToolReferenceBlock))


def _read(raws: Sequence[Raw], at: str, allowed: tuple[str, ...]) -> list[Block]:
    """Decodes the blocks, without those that have no effect."""
    decoded: list[Block] = []
    for number, raw in enumerate(raws):
        here = f"{at}[{number}]"
        kind = parsing.decode(_KIND, raw, here).type
        if kind in _WITHOUT_EFFECT and "tool_use" in allowed:
            continue
        if kind is None:
            raise BadRequest(f"{here}.type is missing", param=f"{here}.type")
        if kind not in allowed:
            where = f"; here it may be {' or '.join(allowed)}"
            raise Unsupported(f"{here}: blocks of type {kind[:40]!r} are not supported{where}", param=f"{here}.type")
        block: Block = parsing.decode(BLOCKS[kind], raw, here)
        for field in marked(type(block), Absent):
            if is_given(getattr(block, field)):
                raise unsupported(f"{here}.{field}")
        if isinstance(block, ToolUseBlock):
            parsing.decode(_OBJECT, block.input, f"{here}.input")
        decoded.append(block)
    return decoded
