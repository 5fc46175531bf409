"""One sequence: its known tokens, its computed tokens, and the blocks of its KV. No policy."""

from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from legato_engine.kvcache.window_table import WindowTable
from legato_engine.scheduler.batch import Constraint, LoadedAdapter, Sampled
from legato_engine.scheduler.requests.token_counts import TokenCounts
from legato_protocol.sampling.parameters import SamplingParams
from legato_protocol.wire.packed_tokens import unpack_tokens
from legato_protocol.wire.stream import Finish, Sequence


class RequestState(Enum):
    """The state of a request. Only `WAITING` and `PARKED` requests, and most `ENDED` ones, have no blocks."""

    WAITING = "waiting"  # queued, or preempted and queued again
    RUNNING = "running"  # has blocks and is scheduled
    COMPUTED = "computed"  # a granted hand-off's prompt is computed: keeps its blocks until the hand-off is over
    PARKED = "parked"  # an ungranted hand-off's prompt is computed
    ENDED = "ended"  # finished, cancelled, expired or migrated


# For code that runs per sequence and step: in Python 3.11 each `RequestState.RUNNING` is a slow lookup.
RUNNING = RequestState.RUNNING


class Outgoing(Protocol):
    """The part of an outgoing transfer's record that a request needs; see `scheduler.handoff.transfers`."""

    @property
    def keeping(self) -> bool: ...
    @property
    def stopped(self) -> bool: ...
    def releasable(self, firsts: tuple[int, ...]) -> tuple[int, ...]: ...


@dataclass(eq=False, slots=True, weakref_slot=True)
class Request:
    """One sequence of the wire request (`id`, `attempt`); several choices until it forks after the prompt.

    `tokens` are the prompt and all output; KV of the first `computed` of them lies in `blocks`, and in the tables
    `windows` of further groups of layers. With `room` the request
    is a prefill for a hand-off: its first tokens go to `first` (by choice) and never to `tokens`. Times are the
    caller's monotonic seconds.
    """

    id: str
    attempt: int
    tokens: list[int]
    prompt_len: int
    params: SamplingParams
    deadline: float
    choices: tuple[int, ...] = (0,)
    priority: int = 0
    tenant: str = ""
    cache_salt: str = ""
    adapter: str = ""  # its digest
    trace: str = ""  # as in `stream.Sequence`
    room: int | None = None
    handed_off: bool = False  # another worker computed its prompt
    grammar: Constraint | None = None  # constrains the output
    loaded_adapter: LoadedAdapter | None = None  # of digest `adapter`

    state: RequestState = RequestState.WAITING
    started: bool = False  # a step has computed tokens of it
    finish: Finish | None = None
    paused: bool = False
    outgoing: "Outgoing | None" = None  # the current or last transfer to another worker
    computed: int = 0
    cached_tokens: int = 0  # known tokens from the prefix cache of the worker that computed the prompt
    blocks: list[int] = field(default_factory=list)
    windows: tuple[WindowTable, ...] = ()
    hashes: list[bytes] = field(default_factory=list)  # of leading full blocks of `tokens`; extended as needed
    counts: TokenCounts = field(default_factory=TokenCounts)  # of leading `tokens`; extended as penalties need them
    stored: int = 0  # leading blocks that are in the prefix cache, or released
    writable: int = 0  # positions from `computed` up to here are in blocks that no other request reads
    scored: int = 1  # leading prompt tokens whose requested logprobs were reported; the first token has none
    first: dict[int, Sampled] = field(default_factory=dict)
    arrival: float = 0.0
    number: int = 0  # order of arrival at this worker
    uncached: int = 0  # known tokens that no cache covered when it was queued
    start_tag: float = 0.0  # its tenant's virtual time when it started, see `scheduler.queueing.fair_queueing`
    finish_tag: float | None = None  # of its prompt; None before it started
    preemptions: int = 0  # since it last made progress
    preempted: int = 0  # number of times in all
    reserved_blocks: int = 0  # reserved by admission when it last started, including expected output
    most_blocks: int = 0  # largest number of blocks that it had when it released them
    borrowed_blocks: int = 0  # full blocks of the first group, of the request that it was forked from
    farthest: int = 0  # largest value that `computed` ever had
    moving: int = 0  # steps that are not processed and may move blocks into or out of the memory of its blocks

    @classmethod
    def from_sequence(cls, id: str, attempt: int, sequence: Sequence, now: float, room: int | None = None) -> "Request":
        """Creates the request for a sequence in a gateway's frame; its deadline counts from `now`."""
        return cls(
            id=id,
            attempt=attempt,
            tokens=unpack_tokens(sequence.token_ids),
            prompt_len=sequence.prompt_len,
            params=sequence.params,
            deadline=now + sequence.deadline,
            choices=sequence.choices,
            priority=sequence.priority,
            tenant=sequence.tenant,
            cache_salt=sequence.cache_salt,
            adapter=sequence.adapter,
            trace=sequence.trace,
            room=room,
            arrival=now,
        )

    @property
    def choice(self) -> int:
        """The request's only choice, after the fork."""
        return self.choices[0]

    @property
    def outputs(self) -> int:
        """Tokens after the prompt; also the output index of the next one."""
        return len(self.tokens) - self.prompt_len

    @property
    def remaining(self) -> int:
        """Known tokens whose KV is not computed."""
        return len(self.tokens) - self.computed

    @property
    def scoring(self) -> bool:
        """True if prompt logprobs are still to be computed; cached blocks cannot provide their logits."""
        return self.params.prompt_logprobs is not None and self.scored < self.prompt_len

    @property
    def sending(self) -> bool:
        """True if its blocks are read for a transfer: they stay, whatever happens to the request."""
        return self.outgoing is not None and self.outgoing.keeping

    @property
    def ungranted(self) -> bool:
        """True if it is a prefill for a hand-off that has no grant yet."""
        return self.room is not None and not self.sending

    @property
    def held_blocks(self) -> int:
        """The number of its blocks in all groups."""
        if not self.windows:
            return len(self.blocks)
        return len(self.blocks) + sum([len(table.blocks) for table in self.windows])

    @property
    def peak_blocks(self) -> int:
        """The largest number of blocks that it ever had, without borrowed ones."""
        held, most = self.held_blocks if self.windows else len(self.blocks), self.most_blocks
        return (held if held > most else most) - self.borrowed_blocks

    @property
    def incoming(self) -> bool:
        """True if its KV comes from another worker."""
        return self.room is not None and self.outgoing is None

    def releasable(self, firsts: tuple[int, ...]) -> tuple[int, ...]:
        """The blocks of windows, at most `firsts`, before which blocks may be released: no transfer needs them."""
        return firsts if self.outgoing is None else self.outgoing.releasable(firsts)

    @property
    def schedulable(self) -> bool:
        return self.state is RUNNING and not (self.paused or (self.outgoing is not None and self.outgoing.stopped))

    def full_blocks(self, block_size: int) -> int:
        """Number of complete blocks: they no longer change and can be pushed. None while steps move blocks."""
        return 0 if self.moving else self.computed // block_size

    def fork(self, choice: int, blocks: Items[int], windows: tuple[WindowTable, ...] = ()) -> "Request":
        """Returns a copy of the sequence for one choice, on blocks whose references the caller takes."""
        return Request(
            id=self.id,
            attempt=self.attempt,
            tokens=list(self.tokens),
            prompt_len=self.prompt_len,
            params=self.params,
            deadline=self.deadline,
            choices=(choice,),
            priority=self.priority,
            tenant=self.tenant,
            cache_salt=self.cache_salt,
            adapter=self.adapter,
            trace=self.trace,
            handed_off=self.handed_off,
            grammar=self.grammar.at_start() if self.grammar is not None else None,
            loaded_adapter=self.loaded_adapter,
            state=RequestState.RUNNING,
            started=True,
            paused=self.paused,
            computed=self.computed,
            cached_tokens=self.cached_tokens,
            blocks=list(blocks),
            windows=windows,
            hashes=list(self.hashes),
            counts=self.counts.copy(),
            stored=self.stored,
            arrival=self.arrival,
            farthest=self.computed,
            scored=self.scored,
        )
