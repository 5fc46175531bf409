"""The start of a chat's answer: a new message, or the continuation of the last one. Fields of vLLM's."""

from collections.abc import Sequence
from dataclasses import dataclass

from legato_gateway.errors import BadRequest
from legato_gateway.openai.chat.messages import text
from legato_gateway.openai.schemas import ChatBody, ChatMessage


@dataclass(frozen=True, slots=True)
class ChatStart:
    """The answer has `role`, and its content starts with `echo`.

    The prompt is `prompted` if it ends with the header of a new assistant message, and `continued` if it ends within
    the last message.
    """

    role: str = "assistant"
    echo: str = ""
    prompted: bool = True
    continued: bool = False


NEW_MESSAGE = ChatStart()
MAX_ECHOED = 8 << 20  # characters of all choices


def parse(body: ChatBody, messages: Sequence[ChatMessage]) -> ChatStart:
    """Raises BadRequest for contradictory fields, and for a last message that cannot be continued."""
    continued, last = bool(body.continue_final_message), messages[-1]
    if continued and body.add_generation_prompt:
        raise BadRequest(
            "continue_final_message and add_generation_prompt cannot both be true: an answer continues the last "
            "message, or it is a new one",
            param="continue_final_message",
        )
    if continued and (last.tool_calls or last.function_call or last.content is None):
        at = f"messages[{len(messages) - 1}]"
        raise BadRequest(f"continue_final_message: {at} ends with calls, not with text", param="continue_final_message")
    prompted = not continued if body.add_generation_prompt is None else body.add_generation_prompt
    role = "assistant" if prompted else last.role
    echo = text(last) if body.echo and last.role == role else ""
    check_echo(len(echo), body.n or 1)
    return ChatStart(role, echo, prompted, continued)


def check_echo(characters: int, choices: int) -> None:
    """Raises BadRequest if the echo makes an answer too large."""
    if characters * choices > MAX_ECHOED:
        text = f"echo repeats {characters} characters in {choices} choices; an answer repeats {MAX_ECHOED} at most"
        raise BadRequest(text, param="echo")
