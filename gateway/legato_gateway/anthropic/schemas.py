"""Request bodies of Anthropic's Messages API. Types and ranges only; `blocks` and `tools` interpret them.

Every field of the API's requests is here; others are refused. https://platform.claude.com/docs/en/api/messages
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from legato_gateway.openai.chat.tool_definitions import MAX_TOOLS
from legato_gateway.openai.schemas import (
    MAX_CONTENT_PARTS,
    MAX_MESSAGES,
    MAX_STOP_CHARACTERS,
    Absent,
    Extra,
    NoEffect,
    Stops,
    number,
    whole,
)
from legato_gateway.serving.openapi import json_schema
from legato_protocol.sampling.limits import RANGES

Name = Annotated[str, Meta(min_length=1)]  # a name, or an id


class ObjectType(msgspec.Struct, frozen=True, gc=False):
    """The type of an object, which decides how the rest is read."""

    type: str | None = None


class TextBlock(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    type: Literal["text"]
    text: str
    citations: Absent = UNSET
    cache_control: NoEffect = UNSET


class ToolUseBlock(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    type: Literal["tool_use"]
    id: Name
    name: Name
    input: Annotated[Raw, Meta(extra_json_schema={"type": "object"})]
    toolset_name: Absent = UNSET
    caller: NoEffect = UNSET
    cache_control: NoEffect = UNSET


class ThinkingBlock(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    type: Literal["thinking"]
    thinking: str
    signature: NoEffect = UNSET


class ToolReferenceBlock(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """A result of a search for tools. It has no effect, as all tools are offered from the start."""

    type: Literal["tool_reference"]
    tool_name: Name
    cache_control: NoEffect = UNSET

    @property
    def text(self) -> str:
        return self.tool_name


class ToolResultBlock(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    type: Literal["tool_result"]
    tool_use_id: Name
    content: str | Annotated[tuple[Raw, ...], Meta(max_length=MAX_CONTENT_PARTS)] | None = None
    is_error: bool | None = None
    toolset_name: Absent = UNSET
    cache_control: NoEffect = UNSET


class MessageParam(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    role: str
    content: str | Annotated[tuple[Raw, ...], Meta(min_length=1, max_length=MAX_CONTENT_PARTS)]


class ToolParam(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    input_schema: dict[str, Any]
    type: Literal["custom"] | None = None
    description: str | None = None
    strict: bool | None = None
    allowed_callers: tuple[str, ...] | None = None  # must contain `direct`
    defer_loading: bool | None = None  # ignored by name, like the next
    input_examples: Extra = UNSET
    # without effect on an answer
    eager_input_streaming: NoEffect = UNSET  # arguments are always sent as they are written
    cache_control: NoEffect = UNSET


class ToolChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class OutputFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: OutputFormat | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    task_budget: Extra = UNSET


class Thinking(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Annotated[int, Meta(ge=0, lt=2**31)] | None = None
    display: Literal["summarized", "omitted", "updates"] | None = None
    block_binding: NoEffect = UNSET  # no signature is checked


Messages = Annotated[tuple[MessageParam, ...], Meta(min_length=1, max_length=MAX_MESSAGES)]
System = str | Annotated[tuple[Raw, ...], Meta(max_length=MAX_CONTENT_PARTS)]
Tools = Annotated[tuple[Raw, ...], Meta(max_length=MAX_TOOLS)]

_SHOWN_BLOCKS = {"anyOf": [json_schema(block) for block in (TextBlock, ToolUseBlock, ToolResultBlock, ThinkingBlock)]}
_SHOWN_CONTENT = {"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": _SHOWN_BLOCKS}]}
_SHOWN_MESSAGES = {
    "type": "array",
    "minItems": 1,
    "maxItems": MAX_MESSAGES,
    "items": {
        "type": "object",
        "properties": {"role": {"enum": ["user", "assistant", "system"]}, "content": _SHOWN_CONTENT},
        "required": ["role", "content"],
    },
}
_SHOWN_SYSTEM = {"anyOf": [{"type": "string"}, {"type": "array", "items": json_schema(TextBlock)}]}
_SHOWN_TOOLS = {"type": "array", "maxItems": MAX_TOOLS, "items": json_schema(ToolParam)}


class PromptBody(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of both paths."""

    messages: Annotated[Raw, Meta(extra_json_schema=_SHOWN_MESSAGES)]
    model: str | None = None
    system: Annotated[Raw | UnsetType, Meta(extra_json_schema=_SHOWN_SYSTEM)] = UNSET
    tools: Annotated[Raw | UnsetType, Meta(extra_json_schema=_SHOWN_TOOLS)] = UNSET
    tool_choice: Annotated[Raw | UnsetType, Meta(extra_json_schema=json_schema(ToolChoice))] = UNSET
    output_config: Annotated[Raw | UnsetType, Meta(extra_json_schema=json_schema(OutputConfig))] = UNSET
    thinking: Annotated[Raw | UnsetType, Meta(extra_json_schema=json_schema(Thinking))] = UNSET
    context_management: Extra = UNSET
    mcp_servers: Extra = UNSET  # like other tools that run at Anthropic
    # a missing feature
    compaction: Absent = UNSET
    # without effect on an answer
    billing_policy: NoEffect = UNSET
    cache_control: NoEffect = UNSET  # prefixes are cached without it
    speed: NoEffect = UNSET
    user_profile_id: NoEffect = UNSET
    workspace_id: NoEffect = UNSET


class CountTokensBody(PromptBody, frozen=True, kw_only=True):
    pass


class MessagesBody(PromptBody, frozen=True, kw_only=True):
    max_tokens: Annotated[int, whole(RANGES["max_tokens"]._replace(least=0))]  # 0 only computes the prompt, to cache it
    stream: bool | None = None
    stop_sequences: Annotated[
        Stops | None, Meta(description=f"a list of up to 16 texts of 1 to {MAX_STOP_CHARACTERS} characters")
    ] = None
    temperature: Annotated[float, number(RANGES["temperature"])] | None = None
    top_p: Annotated[float, number(RANGES["top_p"])] | None = None
    top_k: Annotated[int, whole(RANGES["top_k"])] | None = None
    thread: Raw | UnsetType = UNSET  # refused: the official SDK continues without it
    diagnostics: Extra = UNSET
    fallbacks: Extra = UNSET
    # features that this server does not have
    container: Absent = UNSET
    inference_geo: Absent = UNSET
    # without effect on an answer
    fallback_credit_token: NoEffect = UNSET
    metadata: NoEffect = UNSET
    service_tier: NoEffect = UNSET
