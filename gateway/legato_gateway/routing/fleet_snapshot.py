"""The fleet as policy sees it at one moment: plain values, made by `fleet`, read by `routing` and `admission`."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from legato_protocol.load import DecodeCoefficients, PrefillCoefficients
from legato_protocol.stream import Role


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker: what its last `Hello` and `Load` said, and what this gateway has added since.

    `pending_*` count what this gateway sent after the worker's last `Load`, which therefore does not show in it yet;
    added to the reported figures they keep requests of one moment from all choosing the same worker.
    """

    name: str
    role: Role
    epoch: str
    kv_revision: str
    block_size: int
    num_blocks: int
    max_length: int
    address: bytes = b""  # of its link, as `Peer.address` wants it
    transport: str = ""
    ready: bool = True  # connected, and its core lives
    draining: bool = False
    broken: bool = False  # its circuit breaker is open: it failed too often just now
    queue_tokens: int = 0  # prompt tokens waiting there that no cache covers
    waiting: int = 0  # sequences
    running: int = 0
    free_blocks: int = 0
    cached_blocks: int = 0  # can be evicted when room is needed
    asked_blocks: int = 0  # that sequences there wait for
    paused_blocks: int = 0  # of sequences that give way to others, since their clients read too slowly
    prefill_rate: float = 0.0  # tokens per second; 0 when not measured yet
    prefill_cost: PrefillCoefficients | None = None  # None when not measured yet
    step_time: float = 0.0  # seconds
    decode_cost: DecodeCoefficients | None = None
    context_tokens: int = 0  # of sequences that decode
    slots: int = 0  # sequences that it can run at once; 0: it did not say
    grammars: tuple[str, ...] = ()  # kinds of grammar that it makes output match
    params: tuple[str, ...] = ()  # sampling parameters that it obeys beside those of release 0.1.0
    adapters: Mapping[str, str] = field(
        default_factory=dict
    )  # digest of each adapter that it can compute with, by name
    former_adapters: tuple[str, ...] = ()  # digests of others, which only go on with what began with them
    loaded_adapters: tuple[str, ...] = ()  # digests of those in its memory
    credits: int | None = None  # how many more sequences it takes; None: it sets no limit
    pending_tokens: int = 0
    pending_blocks: int = 0
    pending_sequences: int = 0

    @property
    def prefills(self) -> bool:
        """It computes prompts for others to decode."""
        return self.role == "prefill"

    @property
    def decodes(self) -> bool:
        return self.role != "prefill"

    @property
    def usable(self) -> bool:
        """It may be given something, if it has room."""
        return self.ready and not self.draining and not self.broken

    @property
    def credits_left(self) -> int | None:
        """How many more sequences it takes from this gateway; None: it sets no limit."""
        return None if self.credits is None else self.credits - self.pending_sequences

    @property
    def backlog(self) -> int:
        """Prompt tokens that come before a prompt sent now."""
        return self.queue_tokens + self.pending_tokens

    @property
    def room(self) -> int:
        """Blocks that a new sequence could have."""
        return max(0, self.free_blocks + self.cached_blocks + self.paused_blocks - self.pending_blocks)

    @property
    def in_flight(self) -> int:
        """Sequences there, running or waiting."""
        return self.running + self.waiting + self.pending_sequences

    def blocks_for(self, tokens: int) -> int:
        """How many of its blocks hold `tokens` tokens."""
        return -(-tokens // self.block_size)


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """All workers known, in any state."""

    workers: tuple[WorkerView, ...] = ()
