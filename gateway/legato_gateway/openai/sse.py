"""Server-sent events, and the JSON of answers. Each token appends a few bytes to a prefix encoded once per choice."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from msgspec.json import encode

from legato_gateway import errors
from legato_gateway.request import Delta, TokenText, Usage
from legato_gateway.serving.model_serving import ServedModel
from legato_gateway.serving.prepared_request import CollectedChoice

DONE = b"data: [DONE]\n\n"
DEADLINE = "deadline"
LEAST_LOGPROB = -9999.0  # JSON has no infinity


class ChunkExtra(NamedTuple):
    """JSON added to one chunk: more fields of its choice and of the chunk, and its usage."""

    choice: bytes = b""
    chunk: bytes = b""
    usage: bytes | None = None


NO_EXTRA = ChunkExtra()


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """The first fields of every object of one answer."""

    id: str
    created: int
    model: ServedModel

    def fields(self, kind: str) -> dict[str, Any]:
        fingerprint = self.model.fingerprint
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model.name,
            "system_fingerprint": fingerprint,
        }


class ChunkEncoder:
    """Writes the chunks of one answer. The constant parts of a choice are encoded once."""

    def __init__(self, head: ResponseHead, kind: str, include_usage: bool) -> None:
        self._fields = head.fields(kind)
        self._include_usage = include_usage
        self._start = b"data: " + encode(self._fields)[:-1] + b',"choices":[{"index":'
        self._end = b',"usage":null}\n\n' if include_usage else b"}\n\n"
        self._prefixes: dict[int, bytes] = {}

    def chunk(
        self,
        index: int,
        content: bytes,
        logprobs: bytes,
        finish: str | None,
        extra: ChunkExtra = NO_EXTRA,
        stop: str | int | None = None,
    ) -> bytes:
        """Returns an event with one choice. `content` is the JSON of its own fields, as in `"text":"Paris"`; `stop`
        is written only with a `finish`."""
        prefix = self._prefixes.get(index)
        if prefix is None:
            prefix = self._prefixes[index] = self._start + b"%d," % index
        reason = b"null" if finish is None else b'"%b","stop_reason":%b' % (finish.encode(), encode(stop))
        choice = (prefix, content, b',"logprobs":', logprobs, b',"finish_reason":', reason, extra.choice, b"}]")
        end = self._end if extra.usage is None else b',"usage":' + extra.usage + b"}\n\n"
        return b"".join((*choice, extra.chunk, end))

    def end(self, usage: Usage) -> bytes:
        """Returns the event with the usage, if the client requested it, and the last event."""
        if not self._include_usage:
            return DONE
        return event({**self._fields, "choices": [], "usage": usage_fields(usage)}) + DONE

    def failed(self, error: errors.GatewayError) -> bytes:
        """Returns the event for a failure after the status was sent."""
        return b"event: error\ndata: " + errors.body(error) + b"\n\n"


def stop_reason(ended: Delta | CollectedChoice) -> str | int | None:
    """Returns vLLM's `stop_reason`: `deadline`, or the request's stop string or stop token that ended the choice."""
    if ended.late:
        return DEADLINE
    return ended.stop if ended.stop is not None else ended.stop_token


def event(fields: dict[str, Any]) -> bytes:
    """Returns one event."""
    return b"data: " + encode(fields) + b"\n\n"


def usage_fields(usage: Usage) -> dict[str, Any]:
    """Returns the usage in OpenAI's format."""
    fields: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
    if usage.reasoning_tokens is not None:
        fields["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    return fields


def finite(logprob: float) -> float:
    """Returns `logprob`, or the least number that is sent instead of minus infinity."""
    return max(logprob, LEAST_LOGPROB)


def new_id(prefix: str) -> str:
    """Returns an id for one answer."""
    return f"{prefix}-{secrets.token_hex(16)}"


def token_name(id: int, raw: bytes) -> str:
    """Returns a token's name: its bytes as text, with replacement characters where they are not UTF-8."""
    return raw.decode(errors="replace")


def logprob_fields(
    token: TokenText, token_bytes: Callable[[int], bytes], name: Callable[[int, bytes], str] = token_name
) -> dict[str, Any]:
    """Returns a token with its log probabilities. `token_bytes` and `name` map a token id to its bytes and its name."""
    assert token.logprobs is not None
    top = [_entry(name(best.token, raw := token_bytes(best.token)), raw, best.logprob) for best in token.logprobs.top]
    return {**_entry(name(token.token, token.raw), token.raw, token.logprobs.logprob), "top_logprobs": top}


def _entry(name: str, raw: bytes, logprob: float) -> dict[str, Any]:
    return {"token": name, "logprob": finite(logprob), "bytes": list(raw)}
