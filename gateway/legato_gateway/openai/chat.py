"""`POST /v1/chat/completions`: from its body to a request of the relay, and how its answers are spelled."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from legato_gateway.errors import BadRequest
from legato_gateway.openai import bodies, params, unsupported
from legato_gateway.openai.params import Asked
from legato_gateway.openai.responses import PreparedRequest
from legato_gateway.openai.schemas import ChatBody, ChatMessage, Messages
from legato_gateway.openai.serving import ModelServing, new_id
from legato_gateway.openai.sse import ChunkEncoder, CollectedChoice, ResponseHead, encode, finite, usage_fields
from legato_gateway.request import Delta, TokenText, Usage
from legato_protocol.stream import TokenLogprobs

KIND = "chat.completion"
_MESSAGES = msgspec.json.Decoder(Messages)
_NOTHING = b'"delta":{}'


def prepare(serving: ModelServing, asked: Asked, raw: bytearray) -> PreparedRequest:
    """Checks and tokenizes. Slow for long prompts: it runs in another thread or process, so all that it is given is
    picklable. Raises what the client is told."""
    body = bodies.parse(ChatBody, raw)
    serving.check_model(body.model)
    unsupported.check_chat(body)
    messages = bodies.decode(_MESSAGES, body.messages, "messages")
    for number, message in enumerate(messages):
        unsupported.check_message(message, f"messages[{number}]")
    options = params.options(asked, body)
    logprobs = _logprobs(body)
    prompt = _prompt(serving, messages)
    wanted = body.max_completion_tokens or body.max_tokens
    most = params.limit(wanted, len(prompt), serving.model.context, None, "messages")
    sampling = params.sampling(body, serving.limits, most, logprobs)
    head = ResponseHead(new_id("chatcmpl"), int(time.time()), serving.model)
    usage = bool(body.stream_options and body.stream_options.include_usage)
    return PreparedRequest(
        requests=(params.request(head.id, prompt, sampling, body, options),),
        writer=ChatWriter(head, usage, logprobs is not None, serving.tokens.token_bytes),
        stream=bool(body.stream),
        explain=options.explain,
        id=head.id,
        model=serving.model.name,
    )


def _prompt(serving: ModelServing, messages: Sequence[ChatMessage]) -> tuple[int, ...]:
    with serving.tokenizing("messages"):
        templated = [_templated(message) for message in messages]
        prompt = tuple(serving.tokens.encode_chat(templated, most=serving.model.context))
    serving.check_prompt(prompt, "messages")
    return prompt


def _templated(message: ChatMessage) -> dict[str, str]:
    """A message as chat templates know them: text only, and the older name of the role `developer`."""
    content = message.content or ""
    text = content if isinstance(content, str) else "".join(part.text or "" for part in content)
    return {"role": "system" if message.role == "developer" else message.role, "content": text}


def _logprobs(body: ChatBody) -> int | None:
    if body.top_logprobs is not None and not body.logprobs:
        raise BadRequest("top_logprobs needs logprobs: true", param="top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None


class ChatWriter:
    """Chat completions and their chunks."""

    def __init__(
        self, head: ResponseHead, include_usage: bool, logprobs: bool, token_bytes: Callable[[int], bytes]
    ) -> None:
        self._head = head
        self._events = ChunkEncoder(head, f"{KIND}.chunk", include_usage)
        self._logprobs = logprobs
        self._token_bytes = token_bytes
        self._begun: set[int] = set()

    def delta(self, index: int, delta: Delta) -> bytes:
        said = b""
        if index not in self._begun:
            self._begun.add(index)
            said = self._events.chunk(index, b'"delta":{"role":"assistant","content":""}', b"null", None)
        shown = self._logprobs and bool(delta.tokens)
        if not (delta.text or shown or delta.finish):
            return said
        content = b'"delta":{"content":' + encode(delta.text) + b"}" if delta.text or shown else _NOTHING
        logprobs = encode(self._logprob_fields(delta.tokens)) if shown else b"null"
        return said + self._events.chunk(index, content, logprobs, delta.finish)

    def usage(self, usage: Usage) -> bytes:
        return self._events.usage(usage)

    def whole(self, answers: Sequence[CollectedChoice], usage: Usage) -> bytes:
        choices = [self._choice(answer) for answer in answers]
        return encode({**self._head.fields(KIND), "choices": choices, "usage": usage_fields(usage)})

    def _choice(self, answer: CollectedChoice) -> dict[str, Any]:
        return {
            "index": answer.index,
            "message": {"role": "assistant", "content": "".join(answer.text), "refusal": None},
            "logprobs": self._logprob_fields(answer.tokens) if self._logprobs else None,
            "finish_reason": answer.finish,
        }

    def _logprob_fields(self, tokens: Sequence[TokenText]) -> dict[str, Any]:
        return {"content": [self._token(token, token.logprobs) for token in tokens if token.logprobs], "refusal": None}

    def _token(self, token: TokenText, logprobs: TokenLogprobs) -> dict[str, Any]:
        top = [_spelled(self._token_bytes(best.token), best.logprob) for best in logprobs.top]
        return {**_spelled(token.raw, logprobs.logprob), "top_logprobs": top}


def _spelled(raw: bytes, logprob: float) -> dict[str, Any]:
    return {"token": raw.decode(errors="replace"), "logprob": finite(logprob), "bytes": list(raw)}
