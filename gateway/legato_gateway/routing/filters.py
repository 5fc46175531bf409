"""Who may run a sequence at all. Each check gives the reason against a worker, or nothing."""

from collections.abc import Callable
from dataclasses import dataclass

from legato_gateway.routing.fleet_snapshot import WorkerView


@dataclass(frozen=True, slots=True)
class Need:
    """What a sequence asks of a worker. `tokens` are all known ones; `growth` is how many may still come per choice."""

    id: str
    tokens: int
    growth: int
    choices: int = 1
    kv_revision: str = ""  # only workers of this revision, when a sequence with output goes on
    avoid: frozenset[str] = frozenset()  # workers that must not take it, for instance as they failed it before


Check = Callable[[WorkerView, Need, int], str | None]


def not_ready(worker: WorkerView, need: Need, matched: int) -> str | None:
    return None if worker.ready else "not ready"


def is_draining(worker: WorkerView, need: Need, matched: int) -> str | None:
    return "draining" if worker.draining else None


def is_broken(worker: WorkerView, need: Need, matched: int) -> str | None:
    return "failed too often just now" if worker.broken else None


def is_avoided(worker: WorkerView, need: Need, matched: int) -> str | None:
    return "to be avoided" if worker.name in need.avoid else None


def has_other_weights(worker: WorkerView, need: Need, matched: int) -> str | None:
    return "other KV revision" if need.kv_revision not in ("", worker.kv_revision) else None


def is_too_small(worker: WorkerView, need: Need, matched: int) -> str | None:
    """It could not hold the sequence even if it held nothing else."""
    longest = need.tokens + (need.growth if worker.decodes else 0)
    if longest > worker.max_length:
        return f"takes at most {worker.max_length} tokens"
    if worker.blocks_for(longest) > worker.num_blocks:
        return f"has {worker.num_blocks} blocks in all"
    return None


def is_full(worker: WorkerView, need: Need, matched: int) -> str | None:
    """No blocks for the sequence now: what is known of it, and one block for each choice to grow into."""
    wanted = worker.blocks_for(need.tokens) - matched + need.choices
    wanted = min(wanted, worker.num_blocks)  # a sequence that fills the whole arena needs no block beyond it
    return None if wanted <= worker.room else f"has room for {worker.room} of {wanted} blocks"


def has_no_credit(worker: WorkerView, need: Need, matched: int) -> str | None:
    if worker.credits is None or worker.credits > worker.pending_sequences:
        return None
    return "takes no more sequences from this gateway"


# What passing time does not change, worst first; then what it does.
LASTING: tuple[Check, ...] = (has_other_weights, is_too_small)
PASSING: tuple[Check, ...] = (not_ready, is_draining, is_broken, is_avoided, has_no_credit)


def why_not(worker: WorkerView, need: Need, matched: int) -> str | None:
    """The first reason why `worker` cannot take this sequence now, or None. Prefill workers queue and need no room."""
    for check in (*LASTING, *PASSING):
        if reason := check(worker, need, matched):
            return reason
    return is_full(worker, need, matched) if worker.decodes else None


def never(worker: WorkerView, need: Need) -> str | None:
    """Why `worker` will not take it however long one waits, or None."""
    for check in LASTING:
        if reason := check(worker, need, 0):
            return reason
    return None
