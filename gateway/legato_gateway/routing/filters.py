"""Who may run a sequence at all. Each function gives the reason against a worker, or nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from legato_gateway.routing.fleet_snapshot import FleetSnapshot, WorkerView
from legato_protocol import transports

LONGEST = 1 << 24  # maximum number of tokens of a sequence, for any model
Matches = Mapping[str, int]  # worker → how many leading blocks of this sequence it holds


@dataclass(frozen=True, slots=True)
class Need:
    """What a sequence asks of a worker. `tokens` are all known ones; `growth` is how many may still come per choice."""

    id: str
    tokens: int
    growth: int
    choices: int = 1
    kv_revision: str = ""  # only workers of this revision, when a sequence with output goes on
    avoid: frozenset[str] = frozenset()  # workers that must not take it, for instance as they failed it before
    grammar: str = ""  # kind of the grammar that its output has to match
    params: tuple[str, ...] = ()  # sampling parameters that not every worker obeys (`LATER_PARAMS` of the protocol)
    adapter: str = ""  # name of the adapter that it is computed with
    digest: str = ""  # of that adapter, when a sequence with output goes on
    waited: float = 0.0  # seconds since it arrived; 0 once it has a token
    behind: int = 0  # uncached prompt tokens of requests that the gateway holds, which start after it
    turns: int = 0  # of tenants whose prompts workers compute in turn, if it is the only prompt of its own; else 0
    local: bool = False  # without a prefill worker: its hand-off failed and the policy says so, or it migrates


def too_small(worker: WorkerView, need: Need) -> str | None:
    """Why `worker` could not hold the sequence even if it held nothing else, or None."""
    longest = need.tokens if worker.role == "prefill" else need.tokens + need.growth
    if longest > worker.max_length:
        return f"takes at most {worker.max_length} tokens"
    if longest > worker.num_blocks * worker.block_size:
        return f"has {worker.num_blocks} blocks in all"
    if worker.slots and need.choices > worker.slots:
        return f"runs at most {worker.slots} choices at once"
    return None


def never(worker: WorkerView, need: Need) -> str | None:
    """Why `worker` will not take it however long one waits, or None."""
    if need.kv_revision not in ("", worker.kv_revision):
        return "other KV revision"
    if need.grammar and need.grammar not in worker.grammars:
        return f"cannot make output match a grammar of kind {need.grammar}"
    if lacking := [name for name in need.params if name not in worker.params]:
        return f"cannot obey {lacking[0]}"
    if need.adapter and not has_adapter(worker, need.adapter, need.digest):
        other = "another" if need.digest and need.adapter in worker.adapters else "no"
        return f"has {other} adapter {need.adapter}"
    return too_small(worker, need)


def has_adapter(worker: WorkerView, name: str, digest: str) -> bool:
    """One of that digest, where that is known already, whatever its name is there now; or else of that name."""
    if not digest:
        return name in worker.adapters
    return digest in worker.adapters.values() or digest in worker.former_adapters


def lineage(worker: WorkerView, need: Need) -> tuple[str, str]:
    """Equal for workers between which a sequence like this can go: KV revision, and digest of its adapter."""
    return worker.kv_revision, need.digest or worker.adapters.get(need.adapter, "")


def partners(worker: WorkerView, need: Need) -> tuple[tuple[str, str], str]:
    """Equal for workers that can hand such a sequence over to each other: of one lineage, on one network."""
    return lineage(worker, need), transports.network(worker.transport)


def why_not(worker: WorkerView, need: Need, matched: int) -> str | None:
    """The first reason why `worker` cannot take this sequence now, or None. It holds `matched` blocks of it already."""
    if lasting := never(worker, need):
        return lasting
    if not worker.ready:
        return "not ready"
    if worker.draining:
        return "draining"
    if worker.broken:
        return "failed too often just now"
    if worker.name in need.avoid:
        return "to be avoided"
    if not has_credit(worker):
        return "takes no more sequences from this gateway"
    return (
        None if worker.role == "prefill" else full(worker, need, matched)
    )  # prefill workers queue: no room needed now


def forgiven(snapshot: FleetSnapshot, need: Need) -> FleetSnapshot:
    """The fleet without the circuit breakers of a part, prefill or decode, that has no other worker left for `need`.

    One that is merely full is left: it is better to wait for it.
    """
    left = {w.prefills for w in snapshot.workers if w.ready and not w.draining and not w.broken and not never(w, need)}
    return FleetSnapshot(tuple(w if w.prefills in left else replace(w, broken=False) for w in snapshot.workers))


def full(worker: WorkerView, need: Need, matched: int) -> str | None:
    """Whether there are blocks for what is known of the sequence, and one for each choice to grow into."""
    needed, room = wanted(worker, need, matched), worker.room
    return None if needed <= room else f"has room for {room} of {needed} blocks"


def most_room(snapshot: FleetSnapshot) -> dict[str, int]:
    """By KV revision, the tokens that fit into the free blocks of the decoding worker with most of them.

    A sequence of more uncached tokens than that fits nowhere: a quick answer for what is asked often. Workers that
    failed often count, since they are used where no other is left.
    """
    most: dict[str, int] = {}
    for worker in snapshot.workers:
        if worker.ready and not worker.draining and worker.decodes and has_credit(worker):
            tokens = worker.room * worker.block_size
            if tokens > most.get(worker.kv_revision, -1):
                most[worker.kv_revision] = tokens
    return most


def has_credit(worker: WorkerView) -> bool:
    """Whether it takes one more sequence from this gateway."""
    left = worker.credits_left
    return left is None or left > 0


def wanted(worker: WorkerView, need: Need, matched: int) -> int:
    """Blocks that it needs there. A sequence that fills the whole arena needs none beyond it."""
    return min(worker.blocks_for(need.tokens) - matched + need.choices, worker.num_blocks)


def matched(worker: WorkerView, need: Need, matches: Matches) -> int:
    """Blocks held, as far as they count: the last known token is always computed, to have logits to sample from."""
    return min(matches.get(worker.name, 0), (need.tokens - 1) // worker.block_size)
