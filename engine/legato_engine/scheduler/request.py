"""One running sequence: what is known, what is computed, where its KV lies. No policy in here."""

from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from legato_engine.scheduler.batch import Adapter, Constraint, Sampled
from legato_engine.scheduler.token_counts import TokenCounts
from legato_protocol.packed_tokens import unpack_tokens
from legato_protocol.sampling_params import SamplingParams
from legato_protocol.stream import Finish, Sequence


class RequestState(Enum):
    """Where a request is. `WAITING` and `PARKED` hold no blocks."""

    WAITING = "waiting"  # queued, or preempted and queued again
    RUNNING = "running"  # owns blocks and is scheduled
    COMPUTED = "computed"  # prompt done for a hand-off that is granted: keeps its blocks until the hand-off is over
    PARKED = "parked"  # prompt done for a hand-off that is not granted yet
    ENDED = "ended"  # finished, cancelled, expired or migrated


RUNNING = (
    RequestState.RUNNING
)  # by this name for what runs per sequence and step: Python 3.11 computes each `RequestState.RUNNING`


class Outgoing(Protocol):
    """What a request has to know of its KV's transfer to elsewhere: `scheduler.transfers` has the whole record."""

    @property
    def keeping(self) -> bool: ...
    @property
    def stopped(self) -> bool: ...


@dataclass(eq=False, slots=True)
class Request:
    """One sequence of the wire request (`id`, `attempt`); several choices until it forks after the prompt.

    `tokens` are the prompt and all output; KV of the first `computed` of them lies in `blocks`. With `room` the request
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
    grammar: Constraint | None = None  # what its output has to match
    loaded_adapter: Adapter | None = None  # that of `adapter`

    state: RequestState = RequestState.WAITING
    begun: bool = False  # it had a part in some step
    finish: Finish | None = None
    paused: bool = False
    outgoing: "Outgoing | None" = None  # of its KV to elsewhere, under way or the last one there was
    computed: int = 0
    cached_tokens: int = 0  # known tokens that the prefix cache gave, wherever the prompt was computed
    blocks: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)  # of the full blocks of `tokens`, as far as they were needed
    counts: TokenCounts = field(default_factory=TokenCounts)  # of `tokens`, as far as penalties needed them
    stored: int = 0  # leading blocks that the prefix cache was told of
    writable: int = 0  # positions from `computed` up to here lie in blocks that nobody else reads
    scored: int = 1  # leading tokens of the prompt whose logprobs were told, if they are asked for: the first has none
    first: dict[int, Sampled] = field(default_factory=dict)
    arrival: float = 0.0
    number: int = 0  # order of arrival at this worker
    uncached: int = 0  # known tokens that no cache covered when it was queued
    virtual_start: float = 0.0  # of its tenant's, when it began: see `scheduler.tenant_turns`
    turn: float | None = None  # of its prompt among those of all tenants, since it began
    preemptions: int = 0  # since it last made progress
    preempted: int = 0  # number of times
    reserved_blocks: int = 0  # reserved by admission when it last began, expected output included
    most_blocks: int = 0  # largest number of blocks that it had when it gave them back
    borrowed_blocks: int = 0  # of `blocks`: full blocks of the request that it was forked from
    farthest: int = 0  # most tokens it ever had computed

    @classmethod
    def of(cls, id: str, attempt: int, sequence: Sequence, now: float, room: int | None = None) -> "Request":
        """The request that a gateway's frame asks for; its deadline counts from `now`."""
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
        """The choice it stands for, once it stands for one."""
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
        """Logprobs of its prompt are still to be computed, and so is what they follow from, whatever is cached."""
        return self.params.prompt_logprobs is not None and self.scored < self.prompt_len

    @property
    def sending(self) -> bool:
        """Its blocks are read for a transfer: they stay, whatever happens to the request."""
        return self.outgoing is not None and self.outgoing.keeping

    @property
    def ungranted(self) -> bool:
        """It is a prefill for a hand-off that nobody has blocks for yet."""
        return self.room is not None and not self.sending

    @property
    def peak_blocks(self) -> int:
        """Largest number of blocks that it has had, without borrowed ones."""
        return max(self.most_blocks, len(self.blocks)) - self.borrowed_blocks

    @property
    def schedulable(self) -> bool:
        return self.state is RUNNING and not (self.paused or (self.outgoing is not None and self.outgoing.stopped))

    def full_blocks(self, block_size: int) -> int:
        """How many of `blocks` are complete: they never change any more and can be pushed."""
        return self.computed // block_size

    def fork(self, choice: int, blocks: Items[int]) -> "Request":
        """The same sequence for one of its choices, on `blocks` (whose references the caller took)."""
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
            begun=True,
            paused=self.paused,
            computed=self.computed,
            cached_tokens=self.cached_tokens,
            blocks=list(blocks),
            hashes=list(self.hashes),
            counts=self.counts.copy(),
            stored=self.stored,
            arrival=self.arrival,
            farthest=self.computed,
            scored=self.scored,
        )
