"""A generation request as the relay runs it, and what it gives back. Tokens in, text out; no HTTP in here."""

import math
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from legato_gateway.prompt_scores import PromptScores
from legato_protocol.reasoning import ReasoningTokens
from legato_protocol.sampling_limits import Interval
from legato_protocol.sampling_params import SamplingParams
from legato_protocol.stream import TokenLogprobs

PRIORITY: Final = Interval(-1000, 1000)  # higher goes first
MAX_NAME_CHARACTERS: Final = 512  # of a tenant, or a salt
Operation = Literal["chat", "text_completion"]  # as traces name it


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt, already tokenized. `deadline` is seconds from now, `elapsed` seconds since the HTTP request arrived,
    `patience` the most seconds without a token, from that arrival to the first one; `choices` is OpenAI's `n`.

    `params.stop_token_ids` ends a sequence in the worker; `stop` strings end it here. `params.seed` is set already:
    the user's, or one drawn at random.
    """

    id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    deadline: float
    choices: int = 1
    model: str = ""  # as the client names it; empty: it named none
    adapter: str = ""  # name of the adapter that it is computed with, to its end; empty: the model alone
    stop: tuple[str, ...] = ()
    tenant: str = ""
    priority: int = 0
    cache_salt: str = ""
    explain: bool = False
    elapsed: float = 0.0
    patience: float = math.inf
    operation: Operation = "text_completion"
    trace: str = ""  # W3C traceparent of the HTTP request's span; empty: it is not traced
    include_stop: bool = False  # what ends a choice is a part of its text
    shown_tokens: frozenset[int] = frozenset()  # special tokens that show in the text all the same
    reasoning: ReasoningTokens | None = None  # what its reasoning is counted by, if it is
    explains_end: bool = False  # logprobs are told of the token that ends a choice, too
    least_tokens: int = 0  # of a choice: a stop string that is complete with these ends nothing
    own_stop_tokens: frozenset[int] = frozenset()  # of `params.stop_token_ids`: those that the client named
    special_stops: Mapping[int, str] = field(default_factory=dict)  # of those: special tokens that are stop strings


@dataclass(frozen=True, slots=True)
class TokenText:
    """One token as logprobs show it: its own bytes, which need not be whole characters.

    `offset` is where in the choice's text it begins: within a character of several tokens, where that begins.
    """

    token: int
    text: str
    raw: bytes
    logprobs: TokenLogprobs | None
    offset: int


@dataclass(frozen=True, slots=True)
class Delta:
    """Something new of one choice. `finish` is OpenAI's finish_reason and comes with the last delta of a choice, and
    with it `stop` or `stop_token`: the stop string, or the client's own stop token, that ended it, if one did. `late`
    is True if the deadline ended it. `scores` come with its first delta, if they are asked for.

    `token_ids` are the tokens since the delta before, those that end the choice included: all deltas together have each
    token once, also those whose text is held back or never shown.
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
    """What a request has cost so far."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int | None = None  # of the completion's; None: they are not counted


@dataclass(slots=True, eq=False)
class RouteRecord:
    """What `x-legato-route` and the gateway's `/state` tell of a request; filled in as it becomes known."""

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
    kv_blocks_reserved: int = 0  # by its decode worker when it began there, expected output included
    kv_blocks_peak: int = 0  # the most that it had at a decode worker; blocks that choices share count once
    workers: list[str] = field(default_factory=list)  # all that were given a part of it, in that order
    arrived: float = field(default_factory=time.time)  # Unix seconds

    def given(self, *names: str) -> None:
        """Those workers have a part of it now."""
        self.workers += [name for name in names if name and name not in self.workers]


class Generation(Protocol):
    """A request under way. Iterating yields its deltas in order and ends after every choice has finished.

    An error is raised from the iteration as a `legato_gateway.errors.GatewayError`, after every delta made before it;
    a deadline is raised only if there is no delta. Consumers that leave early call `cancel`, which does nothing once a
    request has ended.
    """

    def __aiter__(self) -> AsyncIterator[Delta]: ...

    async def __anext__(self) -> Delta: ...

    @property
    def usage(self) -> Usage:
        """Tokens so far; complete once the iteration has ended."""

    @property
    def route(self) -> RouteRecord:
        """What is known of the route so far."""

    async def wait_admitted(self) -> bool:
        """Returns once it may start, True, or has ended without."""

    def ready(self) -> list[Delta]:
        """Deltas that can be had without waiting, in order (they are taken: iteration goes on after them)."""

    async def cancel(self) -> None:
        """Stops all work for this request at once."""


class Relay(Protocol):
    """Runs requests."""

    def submit(self, request: GenerationRequest) -> Generation:
        """Starts `request`. Never raises for its content or for load: the generation does."""
