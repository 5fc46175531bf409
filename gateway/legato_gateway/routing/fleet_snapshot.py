"""A snapshot of the fleet for policy: plain values, built by `fleet`, read by `routing` and `admission`."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from legato_protocol.wire.kv_windows import sequence_blocks
from legato_protocol.wire.load import DecodeCoefficients, PrefillCoefficients
from legato_protocol.wire.stream import Role

WAITING = 1 / 8  # sequences that may wait for a slot, per slot: a slot that becomes free has its next one there already


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker: its last `Hello` and `Load`, and what this gateway has sent since.

    `pending_*` count what this gateway sent after the worker's last `Load`, which cannot include it. Added to the
    reported figures, they keep requests of one moment from all choosing the same worker.
    """

    name: str
    role: Role
    epoch: str
    kv_revision: str
    block_size: int
    num_blocks: int
    max_length: int
    windows: tuple[int, ...] = ()  # of groups of layers that take further blocks
    address: bytes = b""  # of its link, for `Peer.address`
    transport: str = ""
    ready: bool = True  # connected, and its core is alive
    draining: bool = False
    new_revision: bool | None = None  # while a canary runs; None: it belongs to both revisions
    broken: bool = False  # its circuit breaker is open: it has just failed too often
    queue_tokens: int = 0  # prompt tokens waiting there that no cache covers
    waiting: int = 0  # sequences
    running: int = 0
    free_blocks: int = 0
    cached_blocks: int = 0  # can be evicted when room is needed
    asked_blocks: int = 0  # that sequences there wait for
    growth_blocks: int = 0  # that its sequences are expected to need in addition, at most at one time
    next_growth_blocks: int = 0  # by which another sequence raises that
    paused_blocks: int = 0  # of sequences that yield to others, since their clients read too slowly
    paused: int = 0  # number of such sequences
    granted: int = 0  # sequences that have a slot and wait for their KV
    prefill_rate: float = 0.0  # tokens per second; 0 when not measured yet
    prefill_cost: PrefillCoefficients | None = None  # None when not measured yet
    step_time: float = 0.0  # seconds
    decode_cost: DecodeCoefficients | None = None
    put_rate: float = 0.0  # KV blocks per second that it sends to others; 0 when not measured lately
    shares_cores: bool = False  # with other workers, which its steps slow down
    context_tokens: int = 0  # of sequences that decode
    slots: int = 0  # sequences that it can run concurrently; 0: not reported
    grammars: tuple[str, ...] = ()  # kinds of grammar that it supports
    params: tuple[str, ...] = ()  # sampling parameters that it supports, without the ones that release 0.1.0 had
    adapters: Mapping[str, str] = field(default_factory=dict)  # digest of each adapter that it serves, by name
    former_adapters: tuple[str, ...] = ()  # digests of adapters that only continue sequences that started with them
    loaded_adapters: tuple[str, ...] = ()  # digests of the adapters in its memory
    tiers: tuple[int, ...] = ()  # of KV in addition to the arena, from the fastest on
    restore_seconds: tuple[float, ...] = ()  # of a block, for each tier; 0 when not measured yet
    credits: int | None = None  # sequences that it takes in addition; None: no limit
    pending_tokens: int = 0
    pending_blocks: int = 0
    pending_sequences: int = 0

    @property
    def prefills(self) -> bool:
        """True if it computes prompts for others to decode."""
        return self.role == "prefill"

    @property
    def decodes(self) -> bool:
        return self.role != "prefill"

    @property
    def usable(self) -> bool:
        """True if it may be sent requests, room permitting."""
        return self.ready and not self.draining and not self.broken

    @property
    def credits_left(self) -> int | None:
        """Sequences that it takes in addition from this gateway; None: no limit."""
        return None if self.credits is None else self.credits - self.pending_sequences

    @property
    def backlog(self) -> int:
        """Prompt tokens queued before a prompt that is sent now."""
        return self.queue_tokens + self.pending_tokens

    @property
    def room(self) -> int:
        """Blocks available to a new sequence."""
        return max(0, self.free_blocks + self.cached_blocks + self.paused_blocks - self.pending_blocks)

    @property
    def in_flight(self) -> int:
        """Sequences on it: running, waiting or being handed over."""
        return self.running + self.waiting + self.granted + self.pending_sequences

    @property
    def crowded(self) -> bool:
        """True if more sequences would only wait there for slots."""
        return self.slots > 0 and self.in_flight - self.paused >= self.slots + max(1, int(self.slots * WAITING))

    def blocks_for(self, tokens: int) -> int:
        """Returns the number of blocks, of all groups of layers, for `tokens` tokens."""
        return sequence_blocks(tokens, self.block_size, self.windows)

    def blocks_of(self, matched: int) -> int:
        """Returns the number of blocks of a cached prefix of `matched` blocks, each of `block_size` tokens."""
        return self.blocks_for(matched * self.block_size)


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """All known workers, in any state."""

    workers: tuple[WorkerView, ...] = ()
