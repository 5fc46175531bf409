"""The life of a sub-request as one table: stages × events → next stage and actions. No workers, no clock, no I/O.

`driver` performs the actions that `step` returns, in their order. What is not in the table is illegal and raises. News
of attempts that are over never comes here: whoever receives a frame compares its attempt first. The diagram in
docs/requests.md is made from this table by `diagram`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class IllegalEvent(Exception):
    """The table has no row for this event at this stage."""


class Stage(Enum):
    """In the order of a life without faults: of two stages the earlier one is further behind."""

    ARRIVED = "arrived"  # its prompt is being hashed
    HELD = "held"  # in admission's queue
    WAITING = "waiting"  # admitted; no worker can take it now
    BACKING_OFF = "backing off"  # pauses after failures in a row
    QUEUED = "queued"  # sent to workers; none has begun to compute it
    PREFILLING = "prefilling"
    DECODING = "decoding"  # a token of this attempt came
    MIGRATING = "migrating"  # it decodes on while it is handed to another worker
    ENDED = "ended"


class LifecycleEvent(Enum):
    HELD = "held"
    ADMITTED = "admitted"
    PLACED = "placed"
    BEGUN = "begun"
    FIRST_TOKEN = "first token"  # of the attempt
    FAILED = "failed"  # and may be tried again at once
    FAILED_OFTEN = "failed again"  # and is tried again after a pause
    WORKER_LOST = "worker lost"  # one that the attempt needs, or the target of its migration
    RETRY_DUE = "retry due"
    DRAIN = "worker drains"
    MIGRATION_BEGUN = "migration begun"
    COMMITTED = "migration committed"
    MIGRATION_FAILED = "migration failed"
    SPLIT = "split"  # each of its choices goes on as a sub-request of its own, from the same stage
    FINISHED = "finished"  # the worker made its last token and keeps nothing of it
    STOPPED = "stopped"  # by the gateway: a stop string, a deadline, an error, a client that left


class LifecycleAction(Enum):
    DISPATCH = "dispatch"  # to workers that can take it; otherwise it waits
    CANCEL = "cancel"  # all work for it, at every worker that has something of it
    START_TIMER = "start timer"
    STOP_TIMER = "stop timer"
    SEEK_TARGET = "seek target"  # a worker to which it may migrate
    ADOPT_TARGET = "adopt target"  # the migration's target is its worker now
    CANCEL_TARGET = "cancel target"
    DELAY_MIGRATION = "delay migration"
    FORGET = "forget"


@dataclass(frozen=True, slots=True)
class LifecycleTransition:
    stage: Stage
    actions: tuple[LifecycleAction, ...] = ()


Table = dict[tuple[Stage, LifecycleEvent], LifecycleTransition]

S, E, A = Stage, LifecycleEvent, LifecycleAction

PLACED = (S.QUEUED, S.PREFILLING, S.DECODING, S.MIGRATING)  # workers have something of it
RUNNING = (S.DECODING, S.MIGRATING)


def _stay(stages: Iterable[Stage], *events: LifecycleEvent) -> Table:
    return {(stage, event): LifecycleTransition(stage) for stage in stages for event in events}


def _all(stages: Iterable[Stage], event: LifecycleEvent, to: Stage, *actions: LifecycleAction) -> Table:
    return {(stage, event): LifecycleTransition(to, actions) for stage in stages}


TABLE: Table = {
    # admission
    (S.ARRIVED, E.HELD): LifecycleTransition(S.HELD),
    **_all((S.ARRIVED, S.HELD), E.ADMITTED, S.WAITING, A.DISPATCH),
    # an attempt
    (S.WAITING, E.PLACED): LifecycleTransition(S.QUEUED),
    (S.QUEUED, E.BEGUN): LifecycleTransition(S.PREFILLING),
    **_stay((S.PREFILLING, *RUNNING), E.BEGUN),
    **_all((S.QUEUED, S.PREFILLING), E.FIRST_TOKEN, S.DECODING),
    # it starts over with what the client has
    **_all(PLACED, E.FAILED, S.WAITING, A.CANCEL, A.DISPATCH),
    **_all(PLACED, E.WORKER_LOST, S.WAITING, A.CANCEL, A.DISPATCH),
    **_all(PLACED, E.FAILED_OFTEN, S.BACKING_OFF, A.CANCEL, A.START_TIMER),
    (S.BACKING_OFF, E.RETRY_DUE): LifecycleTransition(S.WAITING, (A.DISPATCH,)),
    # it leaves a worker that drains, once it runs there
    **_stay((S.QUEUED, S.PREFILLING, S.MIGRATING), E.DRAIN),
    (S.DECODING, E.DRAIN): LifecycleTransition(S.DECODING, (A.SEEK_TARGET,)),
    (S.DECODING, E.MIGRATION_BEGUN): LifecycleTransition(S.MIGRATING),
    (S.MIGRATING, E.COMMITTED): LifecycleTransition(S.DECODING, (A.ADOPT_TARGET,)),
    (S.MIGRATING, E.MIGRATION_FAILED): LifecycleTransition(S.DECODING, (A.CANCEL_TARGET, A.DELAY_MIGRATION)),
    # its choices go apart: those that differ start over alone, those of a worker that drains migrate alone
    **_all((S.WAITING, S.DECODING), E.SPLIT, S.ENDED, A.FORGET),
    # the end; the target of a migration does not know that the last token was made
    (S.DECODING, E.FINISHED): LifecycleTransition(S.ENDED, (A.FORGET,)),
    (S.MIGRATING, E.FINISHED): LifecycleTransition(S.ENDED, (A.CANCEL, A.FORGET)),
    **_all((S.ARRIVED, S.HELD, S.WAITING), E.STOPPED, S.ENDED, A.FORGET),
    (S.BACKING_OFF, E.STOPPED): LifecycleTransition(S.ENDED, (A.STOP_TIMER, A.FORGET)),
    **_all(PLACED, E.STOPPED, S.ENDED, A.CANCEL, A.FORGET),
}


def step(stage: Stage, event: LifecycleEvent) -> LifecycleTransition:
    """What follows. Raises IllegalEvent where the table has no row."""
    transition = TABLE.get((stage, event))
    if transition is None:
        raise IllegalEvent(f"{event.value!r} while {stage.value}")
    return transition


def diagram() -> str:
    """The table as a Mermaid state diagram: every row that changes something."""
    ids = {stage: stage.value.replace(" ", "_") for stage in Stage}
    lines = ["stateDiagram-v2", f"    [*] --> {ids[Stage.ARRIVED]}"]
    for (stage, event), transition in TABLE.items():
        if transition.stage != stage or transition.actions:
            effects = f" / {', '.join(action.value for action in transition.actions)}" if transition.actions else ""
            lines.append(f"    {ids[stage]} --> {ids[transition.stage]}: {event.value}{effects}")
    return "\n".join([*lines, f"    {ids[Stage.ENDED]} --> [*]"])


def rewrite(page: str) -> str:
    """The page with its Mermaid block made from the table anew."""
    before, fence, block = page.partition("```mermaid\n")
    _, end, after = block.partition("\n```")
    return before + fence + diagram() + end + after


if __name__ == "__main__":
    import sys
    from pathlib import Path

    for name in sys.argv[1:]:
        Path(name).write_text(rewrite(Path(name).read_text()))
