"""The lifecycle of a sub-request as one table: stages × events → next stage and actions. No workers, clock or I/O.

`driver` performs the returned actions in order. A pair that is not in the table is illegal and raises. Events of
earlier attempts never get here: the receiver of a frame compares its attempt first. `diagram` prints the table for
the folder's README.md.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class IllegalEvent(Exception):
    """The table has no row for this event at this stage."""


class Stage(Enum):
    """Stages in the order of a life without faults: of two, the earlier one is less advanced."""

    ARRIVED = "arrived"  # its prompt is being hashed
    PENDING = "pending"  # in admission's queue
    WAITING = "waiting"  # admitted; no worker can take it now
    BACKING_OFF = "backing off"  # pauses after failures in a row
    QUEUED = "queued"  # sent to workers, which have not started it
    PREFILLING = "prefilling"
    DECODING = "decoding"  # a token of this attempt came
    MIGRATING = "migrating"  # it decodes on while it is handed to another worker
    ENDED = "ended"


class LifecycleEvent(Enum):
    ENQUEUED = "enqueued"
    ADMITTED = "admitted"
    PLACED = "placed"
    STARTED = "started"  # it is in a step of its worker
    FIRST_TOKEN = "first token"  # of the attempt
    FAILED = "failed"  # and may be retried immediately
    FAILED_OFTEN = "failed again"  # and is retried after a pause
    WORKER_LOST = "worker lost"  # one that the attempt needs, or the target of its migration
    RETRY_DUE = "retry due"
    DRAIN = "worker drains"
    MIGRATION_STARTED = "migration started"
    COMMITTED = "migration committed"
    MIGRATION_FAILED = "migration failed"
    SPLIT = "split"  # each of its choices continues as a sub-request of its own, from the same stage
    FINISHED = "finished"  # the worker sent its last token and freed it
    STOPPED = "stopped"  # by the gateway: a stop string, a deadline, an error, or a client that disconnected


class LifecycleAction(Enum):
    DISPATCH = "dispatch"  # to workers that can take it; otherwise it waits
    CANCEL = "cancel"  # all work for it, on every worker that has part of it
    START_TIMER = "start timer"
    STOP_TIMER = "stop timer"
    SEEK_TARGET = "seek target"  # a worker to which it may migrate
    ADOPT_TARGET = "adopt target"  # the migration's target becomes its worker
    CANCEL_TARGET = "cancel target"
    DELAY_MIGRATION = "delay migration"
    FORGET = "forget"


@dataclass(frozen=True, slots=True)
class LifecycleTransition:
    stage: Stage
    actions: tuple[LifecycleAction, ...] = ()


Table = dict[tuple[Stage, LifecycleEvent], LifecycleTransition]

S, E, A = Stage, LifecycleEvent, LifecycleAction

PLACED = (S.QUEUED, S.PREFILLING, S.DECODING, S.MIGRATING)  # on workers
RUNNING = (S.DECODING, S.MIGRATING)


def _stay(stages: Iterable[Stage], *events: LifecycleEvent) -> Table:
    return {(stage, event): LifecycleTransition(stage) for stage in stages for event in events}


def _all(stages: Iterable[Stage], event: LifecycleEvent, to: Stage, *actions: LifecycleAction) -> Table:
    return {(stage, event): LifecycleTransition(to, actions) for stage in stages}


TABLE: Table = {
    # admission
    (S.ARRIVED, E.ENQUEUED): LifecycleTransition(S.PENDING),
    **_all((S.ARRIVED, S.PENDING), E.ADMITTED, S.WAITING, A.DISPATCH),
    # an attempt
    (S.WAITING, E.PLACED): LifecycleTransition(S.QUEUED),
    (S.QUEUED, E.STARTED): LifecycleTransition(S.PREFILLING),
    **_stay((S.PREFILLING, *RUNNING), E.STARTED),
    **_all((S.QUEUED, S.PREFILLING), E.FIRST_TOKEN, S.DECODING),
    # it is retried with the tokens that the client has
    **_all(PLACED, E.FAILED, S.WAITING, A.CANCEL, A.DISPATCH),
    **_all(PLACED, E.WORKER_LOST, S.WAITING, A.CANCEL, A.DISPATCH),
    **_all(PLACED, E.FAILED_OFTEN, S.BACKING_OFF, A.CANCEL, A.START_TIMER),
    (S.BACKING_OFF, E.RETRY_DUE): LifecycleTransition(S.WAITING, (A.DISPATCH,)),
    # it leaves a worker that drains, once it decodes there
    **_stay((S.QUEUED, S.PREFILLING, S.MIGRATING), E.DRAIN),
    (S.DECODING, E.DRAIN): LifecycleTransition(S.DECODING, (A.SEEK_TARGET,)),
    (S.DECODING, E.MIGRATION_STARTED): LifecycleTransition(S.MIGRATING),
    (S.MIGRATING, E.COMMITTED): LifecycleTransition(S.DECODING, (A.ADOPT_TARGET,)),
    (S.MIGRATING, E.MIGRATION_FAILED): LifecycleTransition(S.DECODING, (A.CANCEL_TARGET, A.DELAY_MIGRATION)),
    # its choices are split: after a failure each is retried, and on a worker that drains each migrates
    **_all((S.WAITING, S.DECODING), E.SPLIT, S.ENDED, A.FORGET),
    # the end; the target of a migration has not seen the last token
    (S.DECODING, E.FINISHED): LifecycleTransition(S.ENDED, (A.FORGET,)),
    (S.MIGRATING, E.FINISHED): LifecycleTransition(S.ENDED, (A.CANCEL, A.FORGET)),
    **_all((S.ARRIVED, S.PENDING, S.WAITING), E.STOPPED, S.ENDED, A.FORGET),
    (S.BACKING_OFF, E.STOPPED): LifecycleTransition(S.ENDED, (A.STOP_TIMER, A.FORGET)),
    **_all(PLACED, E.STOPPED, S.ENDED, A.CANCEL, A.FORGET),
}


def step(stage: Stage, event: LifecycleEvent) -> LifecycleTransition:
    """Returns the transition. Raises IllegalEvent if the table has no row for it."""
    transition = TABLE.get((stage, event))
    if transition is None:
        raise IllegalEvent(f"{event.value!r} while {stage.value}")
    return transition


def diagram() -> str:
    """Returns the table as a Mermaid state diagram, without rows that change nothing."""
    ids = {stage: stage.value.replace(" ", "_") for stage in Stage}
    lines = ["stateDiagram-v2", f"    [*] --> {ids[Stage.ARRIVED]}"]
    for (stage, event), transition in TABLE.items():
        if transition.stage != stage or transition.actions:
            effects = f" / {', '.join(action.value for action in transition.actions)}" if transition.actions else ""
            lines.append(f"    {ids[stage]} --> {ids[transition.stage]}: {event.value}{effects}")
    return "\n".join([*lines, f"    {ids[Stage.ENDED]} --> [*]"])


def rewrite(page: str) -> str:
    """Returns the page with its Mermaid block generated again."""
    before, fence, block = page.partition("```mermaid\n")
    _, end, after = block.partition("\n```")
    return before + fence + diagram() + end + after


if __name__ == "__main__":
    import sys
    from pathlib import Path

    for name in sys.argv[1:]:
        Path(name).write_text(rewrite(Path(name).read_text()))
