"""vLLM's optional fields of answers: token ids, and the usage so far."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from msgspec.json import encode

from legato_gateway.openai.schemas import SamplingBody
from legato_gateway.openai.sse import NO_EXTRA, ChunkExtra
from legato_gateway.serving.prepared_request import CollectedChoice


@dataclass(frozen=True, slots=True)
class Extras:
    """The extras of one request. `prompts` are its prompts' tokens, each with `choices` answers."""

    prompts: tuple[tuple[int, ...], ...] = ()
    choices: int = 1
    token_ids: bool = False
    tokens_as_ids: bool = False  # in log probabilities
    running_usage: bool = False
    prompt_in_choice: bool = False  # else in the answer itself

    def token_name(self, id: int, raw: bytes) -> str:
        """Returns a token's name in log probabilities. Text only is ambiguous for tokens with broken characters."""
        return f"token_id:{id}" if self.tokens_as_ids else raw.decode(errors="replace")

    def names(self, token_bytes: Callable[[int], bytes]) -> Callable[[int], bytes]:
        """Returns a function that maps tokens to their names in log probabilities, for callers that need bytes."""
        return (lambda id: b"token_id:%d" % id) if self.tokens_as_ids else token_bytes

    def answer_fields(self) -> dict[str, Any]:
        """Returns the extra fields of an answer that is not streamed."""
        return {"prompt_token_ids": self.prompts[0]} if self.token_ids and not self.prompt_in_choice else {}

    def choice_fields(self, choice: CollectedChoice) -> dict[str, Any]:
        """Returns the extra fields of one of its choices."""
        if not self.token_ids:
            return {}
        prompt = {"prompt_token_ids": self.prompts[choice.index // self.choices]} if self.prompt_in_choice else {}
        return {**prompt, "token_ids": choice.token_ids}


NO_EXTRAS = Extras()


def asked(body: SamplingBody, prompts: tuple[tuple[int, ...], ...], prompt_in_choice: bool) -> Extras:
    """Returns the extras that `body` asks for."""
    options = body.stream_options
    return Extras(
        prompts,
        body.n or 1,
        bool(body.return_token_ids),
        bool(body.return_tokens_as_token_ids),
        bool(options and options.include_usage and options.continuous_usage_stats),
        prompt_in_choice,
    )


@dataclass(slots=True)
class StreamExtras:
    """The extras in the chunks of one stream."""

    extras: Extras
    _made: dict[int, int] = field(default_factory=dict)  # tokens of each choice that has started

    def take(self, index: int, token_ids: tuple[int, ...] | None = None) -> ChunkExtra:
        """Returns the extras of a chunk with these tokens, or without, such as the first of a chat."""
        extras = self.extras
        if not (extras.token_ids or extras.running_usage):
            return NO_EXTRA
        whose = index if extras.prompt_in_choice else 0
        first = whose not in self._made
        made = self._made[index] = self._made.get(index, 0) + len(token_ids or ())
        self._made.setdefault(whose, 0)
        prompt = extras.prompts[index // extras.choices]
        choice = chunk = b""
        if extras.token_ids:
            choice = b',"token_ids":' + encode(token_ids) if token_ids is not None else b""
            ids = b',"prompt_token_ids":' + encode(prompt) if first else b""
            choice, chunk = (choice + ids, b"") if extras.prompt_in_choice else (choice, ids)
        return ChunkExtra(choice, chunk, _usage(len(prompt), made) if extras.running_usage else None)


def _usage(prompt: int, made: int) -> bytes:
    return encode({"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made})
