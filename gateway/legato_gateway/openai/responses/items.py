"""Items of a conversation in the Responses API: messages, calls and their results. They are converted to messages of a
chat here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, structs

from legato_gateway.errors import BadRequest, Unsupported
from legato_gateway.openai.responses.output import Fields, Status, item_id
from legato_gateway.openai.responses.tools import chat_name, custom_arguments
from legato_gateway.openai.schemas import MAX_CONTENT_PARTS, MAX_MESSAGES, ChatMessage, FunctionCall, ToolCall

MAX_ITEMS: Final = MAX_MESSAGES
KINDS: Final = (
    *("message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output", "reasoning"),
    "agent_message",  # between agents of Codex
)
_TEXTS: Final = ("input_text", "output_text", "reasoning_text", "text")  # kinds of parts
_ARGUMENTS = msgspec.json.Decoder(dict[str, Any])


class ItemPart(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    type: str
    text: str | None = None
    refusal: str | None = None


Content = str | Annotated[tuple[ItemPart, ...], Meta(max_length=MAX_CONTENT_PARTS)]


class InputItem(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One of `KINDS`. Other fields that clients send back with items of an answer are ignored."""

    type: str | None = None  # None: a message
    role: str | None = None
    content: Content | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None
    namespace: str | None = None
    output: Content | None = None


class StoredItem(InputItem, frozen=True, gc=False, omit_defaults=True):
    """An item of a stored conversation. This server makes its id, so that ids are unique."""

    id: str = ""
    status: Status = "completed"


_STORED = msgspec.json.Decoder(tuple[StoredItem, ...])
_PREFIXES: Final = {  # of ids
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
    "agent_message": "amsg",
}
Items = Annotated[tuple[InputItem, ...], Meta(min_length=1, max_length=MAX_ITEMS)]
Input = str | Items


@dataclass(slots=True)
class Conversation:
    """Messages of a chat, and the path in the request of each."""

    messages: list[ChatMessage] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    called: set[str] = field(default_factory=set)  # ids of the calls so far
    thought: list[str] = field(default_factory=list)  # reasoning, for the next item

    def say(self, role: str, content: str, at: str) -> None:
        """Adds a message that is only text."""
        self._add(ChatMessage(role, content), at)

    def add(self, item: InputItem, at: str) -> None:
        """Adds the next item. Raises BadRequest, Unsupported with the path of an error."""
        match item.type or "message":
            case "message":
                self._message(item, at)
            case "agent_message":
                self.say("user", _text(item.content, f"{at}.content"), at)
            case "function_call":
                self._call(item, _given(item.arguments, f"{at}.arguments"), at)
            case "custom_tool_call":
                self._call(item, custom_arguments(_given(item.input, f"{at}.input")), at)
            case "function_call_output" | "custom_tool_call_output":
                self._result(item, at)
            case "reasoning":
                self.thought += [_text(item.content, f"{at}.content")] if item.content is not None else []
            case _:
                text = f"items of type {str(item.type)[:40]!r} are not supported by this server ({', '.join(KINDS)})"
                raise Unsupported(text, param=f"{at}.type")

    def _message(self, item: InputItem, at: str) -> None:
        role = _given(item.role, f"{at}.role")
        if role in ("tool", "function"):
            text = f"not a valid {at}.role: {role!r} (results of calls are items of type 'function_call_output')"
            raise BadRequest(text, param=f"{at}.role")
        self.say(role, _text(item.content, f"{at}.content", "" if role == "assistant" else "\n"), at)

    def _call(self, item: InputItem, arguments: str, at: str) -> None:
        """Adds a call to the assistant message before it, if there is one."""
        id, name = _given(item.call_id, f"{at}.call_id"), chat_name(item.namespace, _given(item.name, f"{at}.name"))
        self.called.add(id)
        call = ToolCall(id, FunctionCall(name, arguments))
        last = self.messages[-1] if self.messages and not self.thought else None
        if last is not None and last.role == "assistant":
            self.messages[-1] = structs.replace(last, tool_calls=(*(last.tool_calls or ()), call))
        else:
            self._add(ChatMessage("assistant", tool_calls=(call,)), at)

    def _result(self, item: InputItem, at: str) -> None:
        id = _given(item.call_id, f"{at}.call_id")
        if id not in self.called:
            text = f"{at}.call_id: no earlier item is a call with this id: {id[:60]!r}"
            raise BadRequest(text, param=f"{at}.call_id")
        self._add(ChatMessage("tool", _text(item.output, f"{at}.output"), tool_call_id=id), at)

    def _add(self, message: ChatMessage, at: str) -> None:
        if self.thought and message.role == "assistant":
            message = structs.replace(message, reasoning="".join(self.thought))
        self.thought.clear()
        self.messages.append(message)
        self.places.append(at)


def encoded(input: Input) -> bytes:
    """Encodes items of a request as JSON, for `decoded`, and gives them ids."""
    given = (InputItem(role="user", content=input),) if isinstance(input, str) else input
    return msgspec.json.encode([StoredItem(**structs.asdict(item), id=_new_id(item)) for item in given])


def encoded_output(output: Sequence[Fields]) -> bytes:
    """Encodes items of an answer as JSON, for `decoded`."""
    return msgspec.json.encode(msgspec.convert(output, tuple[StoredItem, ...]))


def decoded(turns: Iterable[bytes]) -> tuple[StoredItem, ...]:
    """Decodes the items of all turns."""
    return tuple(item for turn in turns for item in _STORED.decode(turn))


def _new_id(item: InputItem) -> str:
    return item_id(_PREFIXES[item.type or "message"])


def conversation(instructions: str | None, before: Sequence[InputItem], input: Input) -> Conversation:
    """Converts items to a chat. `before` are items of earlier responses. Raises BadRequest, Unsupported."""
    new = 1 if isinstance(input, str) else len(input)
    if len(before) + new > MAX_ITEMS:
        text = (
            f"input has {new} items after {len(before)} of earlier responses; together at most {MAX_ITEMS} are allowed"
        )
        raise BadRequest(text, param="input")
    talk = Conversation()
    if instructions:
        talk.say("system", instructions, "instructions")
    for item in before:
        talk.add(item, "previous_response_id")
    if isinstance(input, str):
        talk.say("user", input, "input")
        return talk
    for number, item in enumerate(input):
        talk.add(item, f"input[{number}]")
    if not talk.messages:
        raise BadRequest("input has no message", param="input")
    return talk


def _given(value: str | None, at: str) -> str:
    if value is None:
        raise BadRequest(f"{at} is missing", param=at)
    return value


def _text(content: Content | None, at: str, between: str = "\n") -> str:
    if content is None:
        raise BadRequest(f"{at} is missing", param=at)
    if isinstance(content, str):
        return content
    return between.join(_part(part, f"{at}[{number}]") for number, part in enumerate(content))


def _part(part: ItemPart, at: str) -> str:
    if part.type == "refusal":
        return _given(part.refusal, f"{at}.refusal")
    if part.type not in _TEXTS:
        text = f"content parts of type {part.type[:40]!r} are not supported by this server; only text is"
        raise Unsupported(text, param=f"{at}.type")
    return _given(part.text, f"{at}.text")
