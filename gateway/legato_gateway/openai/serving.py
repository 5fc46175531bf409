"""What the handlers share: their collaborators, how a checked request becomes a running one, and how ids are made."""

import asyncio
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from legato_gateway.clients.identify import Clients
from legato_gateway.errors import BadRequest, NotFound
from legato_gateway.generation_config import NEUTRAL, GenerationDefaults
from legato_gateway.openai import params
from legato_gateway.openai.body_budget import BodyBudget
from legato_gateway.openai.deadline import Deadline
from legato_gateway.openai.event_stream import StreamPolicy
from legato_gateway.openai.params import ModelLimits
from legato_gateway.openai.preparation import PreparationPool
from legato_gateway.openai.reasoning.support import ReasoningSupport
from legato_gateway.openai.schemas import SamplingBody
from legato_gateway.openai.tools.support import ToolSupport
from legato_gateway.request import Relay
from legato_gateway.tokenizer.tokens import TextTooLong, TokenizeError
from legato_protocol import names


class Tokenizer(Protocol):
    """What the handlers need of `tokens.ModelTokenizer`."""

    @property
    def eos_ids(self) -> Sequence[int]: ...

    @property
    def vocab_size(self) -> int: ...

    def encode(self, text: str, add_special: bool, most: int, keep: int | None = None) -> list[int]: ...

    @property
    def chat_template(self) -> str | None: ...

    def template_takes(self, variable: str) -> bool: ...

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        most: int,
        variables: Mapping[str, Any],
        *,
        add_special: bool = False,
        keep: int | None = None,
        continued: bool = False,
    ) -> list[int]: ...

    @property
    def special_around(self) -> tuple[tuple[int, ...], tuple[int, ...]]: ...

    def special_ids(self, texts: Collection[str]) -> frozenset[int]: ...

    @property
    def all_special_ids(self) -> frozenset[int]: ...

    def token_bytes(self, id: int) -> bytes: ...

    def token_text(self, id: int) -> str: ...


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What is served, as clients name it. `context` is the longest sequence: prompt and answer; `defaults` count for
    parameters of sampling that a request does not give."""

    name: str
    context: int
    parent: str = ""  # of an adapter: the model that it adapts
    created: int = field(default_factory=lambda: int(time.time()))
    fingerprint: str = "legato"
    defaults: GenerationDefaults = NEUTRAL


@dataclass(frozen=True, slots=True)
class ModelServing:
    """The model that is served, with its tokens: what it takes to check a request. Picklable but for `tokens`."""

    tokens: Tokenizer
    model: ServedModel
    tools: ToolSupport = field(default_factory=ToolSupport)
    reasoning: ReasoningSupport = field(default_factory=ReasoningSupport)
    adapters: tuple[str, ...] = ()  # served beside the model, by name

    @property
    def models(self) -> tuple[ServedModel, ...]:
        """All that clients can name, the model first."""
        adapted = [replace(self.model, name=name, parent=self.model.name) for name in self.adapters]
        return (self.model, *adapted)

    @property
    def limits(self) -> ModelLimits:
        return ModelLimits(self.tokens.vocab_size, tuple(self.tokens.eos_ids), self.model.context, self.model.defaults)

    def check_model(self, name: str | None) -> ServedModel:
        """The model or adapter of that name; who names none means the model. Raises NotFound."""
        for served in self.models:
            if name in (None, served.name):
                return served
        served_here = ", ".join(repr(served.name) for served in self.models)
        text = f"the model {str(name)[:200]!r} does not exist; {served_here} {'do' if self.adapters else 'does'}"
        raise NotFound(text, param="model", code="model_not_found")

    @contextmanager
    def tokenizing(self, param: str) -> Iterator[None]:
        """Says what is wrong with a text as an error of the field it came from."""
        try:
            yield
        except TextTooLong as error:
            raise params.too_long(self.model.context, f"a prompt of {error.size} bytes is more", param) from None
        except TokenizeError as error:
            raise BadRequest(str(error), param=param) from None

    def shown_tokens(self, body: SamplingBody) -> frozenset[int]:
        """Special tokens that are a part of an answer's text."""
        return self.tokens.all_special_ids if body.skip_special_tokens is False else frozenset()

    def check_prompt(self, prompt: Sequence[int], param: str) -> None:
        """Raises BadRequest for ids beyond the vocabulary, and for a prompt of no tokens."""
        if not prompt:
            raise BadRequest(f"{param} has no tokens", param=param)
        if max(prompt) >= self.tokens.vocab_size:
            text = f"not a valid token id in {param}: {max(prompt)} (0 to {self.tokens.vocab_size - 1})"
            raise BadRequest(text, param=param)


@dataclass(frozen=True, slots=True)
class OpenAIServing:
    """The collaborators of the handlers. `default_deadline` is in seconds."""

    of_model: ModelServing
    relay: Relay
    default_deadline: float
    max_body_bytes: int
    pending_bodies: BodyBudget
    streams: StreamPolicy
    clock: Callable[[], float]
    preparation: PreparationPool
    clients: Clients
    body_turns: asyncio.Lock = field(default_factory=asyncio.Lock)  # for `bodies.read`

    def deadline(self, headers: Mapping[str, str]) -> Deadline:
        """That of a request that arrives now. Raises BadRequest."""
        said = headers.get(names.HEADER_DEADLINE)
        now, seconds = self.clock(), self.default_deadline if said is None else params.seconds(said)
        return Deadline(now, now + seconds, self.clock)


def new_id(prefix: str) -> str:
    """An id for one answer."""
    return f"{prefix}-{secrets.token_hex(16)}"
