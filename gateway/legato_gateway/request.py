"""A generation request of the relay, and its results. Tokens in, text out; no HTTP in here."""

import math
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from legato_protocol.sampling.limits import Interval
from legato_protocol.sampling.parameters import SamplingParams
from legato_protocol.sampling.reasoning import ReasoningTokens
from legato_protocol.wire.packed_logprobs import PackedLogprobs, PromptToken
from legato_protocol.wire.stream import TokenLogprobs

PRIORITY: Final = Interval(-1000, 1000)  # higher goes first
TOKEN_MARK: Final = "\ufdd0"  # before special tokens in text that may also contain their text: a noncharacter
MAX_NAME_CHARACTERS: Final = 512  # of a tenant, or a salt
Operation = Literal["chat", "text_completion"]  # the names in traces


class PromptScores:
    """Logprobs of `prompt` from workers, with `alternatives`: each once, from whichever attempt sent it first.

    Iterating yields each known token from the second on, in order.
    """

    __slots__ = ("_alternatives", "_known", "_pieces", "prompt")

    def __init__(self, prompt: Sequence[int], alternatives: int) -> None:
        self.prompt = prompt
        self._alternatives = alternatives
        self._known = 1  # leading tokens of the prompt; the first has none
        self._pieces: list[PackedLogprobs] = []

    def __iter__(self) -> Iterator[PromptToken]:
        for piece in self._pieces:
            yield from piece

    @property
    def complete(self) -> bool:
        return self._known >= len(self.prompt)

    def take(self, start: int, piece: PackedLogprobs) -> str:
        """Adds the logprobs of tokens from `start` on. Returns their fault, or an empty text."""
        if piece.alternatives != self._alternatives:
            return f"logprobs with {piece.alternatives} alternatives, not {self._alternatives}"
        if fault := piece.fault():
            return fault
        if start > self._known:
            return f"no logprobs of tokens {self._known} to {start - 1} of its prompt"
        if start + len(piece) > len(self.prompt):
            return f"logprobs of {start + len(piece)} tokens of a prompt of {len(self.prompt)}"
        if start + len(piece) > self._known:
            self._pieces.append(piece.after(self._known - start))
            self._known = start + len(piece)
        return ""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One tokenized prompt. `choices` is OpenAI's `n`.

    Seconds: `deadline` from now, `elapsed` since the HTTP request arrived, and `patience` the longest time without a
    token, starting with that arrival.

    `params.stop_token_ids` ends a sequence in the worker; `stop` strings end it here. `params.seed` is always set: the
    user's, or one drawn at random.
    """

    id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    deadline: float
    choices: int = 1
    model: str = ""  # the client's name of it; empty: none
    adapter: str = ""  # name of its adapter; empty: none
    stop: tuple[str, ...] = ()
    tenant: str = ""
    priority: int = 0
    cache_salt: str = ""
    explain: bool = False
    elapsed: float = 0.0
    patience: float = math.inf
    operation: Operation = "text_completion"
    trace: str = ""  # W3C traceparent of the HTTP request's span; empty: not traced
    include_stop: bool = False  # the stop string that ends a choice is part of its text
    shown_tokens: frozenset[int] = frozenset()  # special tokens that are shown in the text
    marked_tokens: frozenset[int] = frozenset()  # special tokens that are shown in it after a mark
    reasoning: ReasoningTokens | None = None  # the marks by which reasoning is counted, if it is
    explains_end: bool = False  # logprobs include the token that ends a choice
    least_tokens: int = 0  # per choice: earlier stop strings have no effect
    own_stop_tokens: frozenset[int] = frozenset()  # the ones in `params.stop_token_ids` that the client named
    special_stops: Mapping[int, str] = field(default_factory=dict)  # special tokens among them that are stop strings


@dataclass(frozen=True, slots=True)
class TokenText:
    """One token in logprobs, with its own bytes, which need not be whole characters.

    `offset` is its start in the choice's text; a part of a character has the character's offset.
    """

    token: int
    text: str
    raw: bytes
    logprobs: TokenLogprobs | None
    offset: int


@dataclass(frozen=True, slots=True)
class Delta:
    """New output of one choice. The last delta of a choice has `finish`, `stop` or `length`, which each API converts
    to its own reasons.

    With it comes the stop string (`stop`) or the client's stop token (`stop_token`) that ended the choice, if one did.
    `late` is True if the deadline ended it. `scores` come with its first delta, if requested.

    `token_ids` are the tokens since the delta before, including ones that end the choice. All deltas together have each
    token once, also tokens whose text is withheld or never shown.
    """

    choice: int
    text: str
    tokens: tuple[TokenText, ...] = ()
    finish: str | None = None
    stop: str | None = None
    stop_token: int | None = None
    scores: PromptScores | None = None
    token_ids: tuple[int, ...] = ()
    late: bool = False


@dataclass(slots=True)
class Usage:
    """Tokens of a request so far."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int | None = None  # of the completion's; None: not counted


@dataclass(slots=True, eq=False)
class RouteRecord:
    """The route of a request in `x-legato-route` and the gateway's `/state`, filled in step by step."""

    id: str
    attempt: int = 0
    prefill: str = ""  # a worker's name, or "local"
    decode: str = ""
    prompt_tokens: int = 0
    cached_tokens: dict[str, int] = field(default_factory=dict)  # by worker, as the router saw it
    transport: str = ""
    why: str = ""
    handoffs: list[dict[str, object]] = field(default_factory=list)
    output_tokens: int = 0  # of all choices, once it has ended
    finish: str = ""
    # Keys: queue, prefill and handoff (their sum is first_token), decode, stream (waiting for its client to read) and
    # total. Per output token: tpot, as workers made them, and client_tpot, as a stream was written.
    seconds: dict[str, float] = field(default_factory=dict)
    preemptions: int = 0  # of its choices, in the last attempt of each
    kv_blocks_reserved: int = 0  # on its decode worker at the start, expected output included
    kv_blocks_peak: int = 0  # the most that it had on a decode worker; blocks shared by choices count once
    workers: list[str] = field(default_factory=list)  # all that got a part of it, in order
    arrived: float = field(default_factory=time.time)  # Unix seconds

    def add_workers(self, *names: str) -> None:
        """Adds workers that got a part of it."""
        self.workers += [name for name in names if name and name not in self.workers]


class Generation(Protocol):
    """A request in progress. Iterating yields its deltas in order, and ends after every choice has finished.

    The iteration raises errors as a `legato_gateway.errors.GatewayError`, after every delta made before; it raises a
    deadline only if there is no delta. Consumers that stop early call `cancel`, which does nothing once a request has
    ended.
    """

    def __aiter__(self) -> AsyncIterator[Delta]: ...

    async def __anext__(self) -> Delta: ...

    @property
    def usage(self) -> Usage:
        """Tokens so far; complete once the iteration has ended."""

    @property
    def route(self) -> RouteRecord:
        """The route so far."""

    async def wait_admitted(self) -> bool:
        """Waits until it is admitted or ended; returns True if admitted."""

    def ready(self) -> list[Delta]:
        """Removes and returns the deltas that can be had without waiting, in order."""

    async def cancel(self) -> None:
        """Stops all work for this request immediately."""


class Relay(Protocol):
    """Runs requests."""

    def submit(self, request: GenerationRequest) -> Generation:
        """Starts `request`. Never raises for its content or for load: the generation does."""
