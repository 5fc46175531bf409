"""Filters out workers that cannot run a sequence. Each function returns the reason against a worker, or None."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from legato_gateway.routing.fleet_snapshot import FleetSnapshot, WorkerView
from legato_protocol.wire import transports

LONGEST = 1 << 24  # maximum number of tokens of a sequence, for any model
Matches = Mapping[str, int]  # worker → leading blocks of this sequence that it has cached


@dataclass(frozen=True, slots=True)
class Need:
    """A sequence's needs from a worker.

    `tokens` are the known ones; `growth` is the most that may follow per choice.
    """

    id: str
    tokens: int
    growth: int
    choices: int = 1
    kv_revision: str = ""  # required, when a sequence with output continues
    avoid: frozenset[str] = frozenset()  # workers that must not take it, for example after they failed it
    grammar: str = ""  # kind of the grammar that its output has to match
    params: tuple[str, ...] = ()  # sampling parameters that not every worker supports (the protocol's `LATER_PARAMS`)
    adapter: str = ""  # name of its adapter
    digest: str = ""  # of that adapter, when a sequence with output continues
    waited: float = 0.0  # seconds since it arrived; 0 once it has a token
    behind: int = 0  # uncached prompt tokens queued in the gateway, which start after it; long prompts by their cost
    tenants: int = 0  # tenants whose prompts workers alternate between, if it is the only one of its tenant; else 0
    local: bool = False  # without a prefill worker: after a failed hand-off if the policy says so, or for a migration
    new_revision: bool | None = None  # of its workers, while a canary runs; None: either


def too_small(worker: WorkerView, need: Need) -> str | None:
    """Returns the reason why even an empty `worker` could not hold the sequence, or None."""
    longest = need.tokens if worker.role == "prefill" else need.tokens + need.growth
    if longest > worker.max_length:
        return f"takes at most {worker.max_length} tokens"
    if worker.blocks_for(longest) > worker.num_blocks:
        return f"has {worker.num_blocks} blocks in all"
    if worker.slots and need.choices > worker.slots:
        return f"runs at most {worker.slots} choices concurrently"
    return None


def never(worker: WorkerView, need: Need) -> str | None:
    """Returns the reason why `worker` can never take it, or None."""
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
    """True if the worker has the adapter: by digest if that is known, whatever its name there, or else by name."""
    if not digest:
        return name in worker.adapters
    return digest in worker.adapters.values() or digest in worker.former_adapters


def lineage(worker: WorkerView, need: Need) -> tuple[str, str]:
    """Returns the KV revision and adapter digest: a sequence can move between workers where both are equal."""
    return worker.kv_revision, need.digest or worker.adapters.get(need.adapter, "")


def partners(worker: WorkerView, need: Need) -> tuple[tuple[str, str], str]:
    """Returns lineage and network: workers can hand such a sequence off to each other where both are equal."""
    return lineage(worker, need), transports.network(worker.transport)


def why_not(worker: WorkerView, need: Need, matched: int) -> str | None:
    """Returns the first reason why `worker`, with `matched` blocks cached, cannot take the sequence now, or None."""
    if lasting := never(worker, need):
        return lasting
    if not worker.ready:
        return "not ready"
    if worker.draining:
        return "draining"
    if worker.broken:
        return "failed too often just now"
    if need.new_revision is not None and worker.new_revision not in (None, need.new_revision):
        return "is of the other revision"
    if worker.name in need.avoid:
        return "to be avoided"
    if not has_credit(worker):
        return "has no credit left for this gateway"
    return None if worker.role == "prefill" else full(worker, need, matched)  # prefill workers queue without room


def forgiven(snapshot: FleetSnapshot, need: Need) -> FleetSnapshot:
    """Closes the circuit breakers of a role, prefill or decode, that has no other worker left for `need`.

    A full worker counts as left: it is better to wait for it.
    """
    left = {w.prefills for w in snapshot.workers if w.ready and not w.draining and not w.broken and not never(w, need)}
    return FleetSnapshot(tuple(w if w.prefills in left else replace(w, broken=False) for w in snapshot.workers))


def full(worker: WorkerView, need: Need, matched: int) -> str | None:
    """Returns the reason if slots are missing, or blocks for the known tokens and one more per choice, or None."""
    if worker.crowded:
        return f"has {worker.in_flight} sequences, and runs {worker.slots} concurrently"
    needed, room = wanted(worker, need, matched), worker.room
    return None if needed <= room else f"has room for {room} of {needed} blocks"


def most_room(snapshot: FleetSnapshot) -> dict[str, int]:
    """Returns, by KV revision, the tokens that fit into the free blocks of the decoding worker with the most.

    A quick test: a sequence with more uncached tokens fits nowhere. Workers with an open circuit breaker count, as they
    are the last resort.
    """
    most: dict[str, int] = {}
    for worker in snapshot.workers:
        if worker.ready and not worker.draining and worker.decodes and has_credit(worker) and not worker.crowded:
            tokens = worker.room * worker.block_size
            if tokens > most.get(worker.kv_revision, -1):
                most[worker.kv_revision] = tokens
    return most


def has_credit(worker: WorkerView) -> bool:
    """True if it takes another sequence from this gateway."""
    left = worker.credits_left
    return left is None or left > 0


def wanted(worker: WorkerView, need: Need, matched: int) -> int:
    """Returns the blocks that it needs there. A sequence that fills the whole arena needs none beyond it."""
    further = need.choices * (1 + len(worker.windows))
    return min(worker.blocks_for(need.tokens) - worker.blocks_of(matched) + further, worker.num_blocks)


def matched(worker: WorkerView, need: Need, matches: Matches) -> int:
    """Returns the blocks in the worker's arena that count."""
    return min(matches.get(worker.name, 0), most_blocks(worker, need))


def most_blocks(worker: WorkerView, need: Need) -> int:
    """Returns the maximum of cached blocks that count: the last known token is always computed, to sample from it."""
    return (need.tokens - 1) // worker.block_size
