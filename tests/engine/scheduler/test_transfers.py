"""The records of transfers: which moves are legal, and what each state means for blocks and slots."""

from contextlib import nullcontext

import pytest
from scheduled_worker import Worker, ask

from legato_engine.scheduler.handoff.transfers import (
    INCOMING_MOVES,
    OUTGOING_MOVES,
    IllegalTransferMove,
    IncomingState,
    IncomingTransfer,
    OutgoingState,
    OutgoingTransfer,
)
from legato_engine.scheduler.requests.request import RequestState

In = IncomingState
Out = OutgoingState
TABLES = [
    (INCOMING_MOVES, In.PENDING, {In.ADOPTED, In.ABANDONED}),
    (OUTGOING_MOVES, Out.PENDING, {Out.COMMITTED, Out.ABORTED}),
]


def reachable(moves, start):
    seen, after = set(), {start}
    while not after <= seen:
        seen |= after
        after = {to for begin, to in moves if begin in seen}
    return seen


@pytest.mark.parametrize(("moves", "first", "ends"), TABLES)
def test_every_state_is_reached_and_every_one_can_end(moves, first, ends):
    assert reachable(moves, first) == set(type(first))
    assert all(reachable(moves, state) & ends for state in type(first))
    assert not ends & {begin for begin, _ in moves}


@pytest.mark.parametrize("state", [*In, *Out])
def test_a_move_that_is_not_in_the_table_raises_and_changes_nothing(state):
    request = ask(3).request()
    for to in type(state):
        if isinstance(state, IncomingState):
            transfer, moves = IncomingTransfer(request, source=None, state=state), INCOMING_MOVES
        else:
            transfer, moves = OutgoingTransfer(request, room=1, attempt=1, state=state), OUTGOING_MOVES
        legal = (state, to) in moves
        message = f"cannot become {to.value}: it is {state.value}"
        with nullcontext() if legal else pytest.raises(IllegalTransferMove, match=message):
            transfer.move(to)
        assert transfer.state is (to if legal else state)


# Incoming transfers

PATHS = {
    In.PENDING: (),
    In.ALLOCATED: ("allocate",),
    In.GRANTED: ("allocate", "grants"),
    In.REVOKING: ("allocate", "grants", "reclaim"),
    In.WRITING: ("allocate", "grants", "on_written"),
    In.ADOPTED: ("allocate", "grants", "on_written", "adopt"),
    In.QUARANTINED: ("allocate", "grants", "on_written", "abandon"),
    In.ABANDONED: ("abandon",),
}


def in_state(state):
    """A worker, and a transfer of two blocks that was brought to this state by what happens to it."""
    worker = Worker(num_blocks=12)
    transfer = worker.reserve(ask(3))
    for name in PATHS[state]:
        happen(worker, transfer, name)
    assert transfer.state is state
    return worker, transfer


def happen(worker, transfer, name):
    incoming = worker.incoming
    match name:
        case "allocate":
            incoming.grant_before(None)
        case "grants":
            incoming.grants()
        case "reclaim":
            incoming.reclaim(1)
        case "adopt":
            incoming.adopt(transfer, 0, {})
        case _:
            getattr(incoming, name)(transfer)
    worker.check()


@pytest.mark.parametrize(
    ("state", "used", "quarantined", "slots"),
    [
        (In.PENDING, 0, 0, 0),
        *((state, 2, 0, 1) for state in (In.ALLOCATED, In.GRANTED, In.REVOKING, In.WRITING)),
        (In.ADOPTED, 2, 0, 1),  # as a running sequence
        (In.QUARANTINED, 0, 2, 0),
        (In.ABANDONED, 0, 0, 0),
    ],
)
def test_the_state_says_whose_the_blocks_are_and_whether_it_takes_a_slot(state, used, quarantined, slots):
    worker, transfer = in_state(state)
    counts = worker.counts
    assert (counts.used, counts.quarantined) == (used, quarantined)
    assert len(transfer.blocks) == (0 if state is In.ADOPTED else used + quarantined)
    assert worker.scheduler._admission.free_slots() == worker.scheduler.limits.max_running - slots
    assert worker.idle is (state is In.ABANDONED)


@pytest.mark.parametrize(
    ("name", "results"),
    [
        ("reclaim", {In.ALLOCATED: In.PENDING, In.GRANTED: In.REVOKING}),  # what is written to stays
        ("on_written", {In.GRANTED: In.WRITING, In.REVOKING: In.WRITING}),
        ("on_revoked", {In.REVOKING: In.PENDING}),
        ("on_released", {In.QUARANTINED: In.ABANDONED}),
        (
            "abandon",
            {
                **dict.fromkeys((In.PENDING, In.ALLOCATED), In.ABANDONED),
                **dict.fromkeys((In.GRANTED, In.REVOKING, In.WRITING), In.QUARANTINED),
            },
        ),
    ],
)
@pytest.mark.parametrize("state", In)
def test_what_happens_moves_the_states_that_it_is_about_and_comes_too_late_for_others(state, name, results):
    worker, transfer = in_state(state)
    illegal = name == "on_written" and state in (In.PENDING, In.ALLOCATED)  # no source knows of these blocks
    with pytest.raises(IllegalTransferMove) if illegal else nullcontext():
        happen(worker, transfer, name)
    assert transfer.state is results.get(state, state)
    worker.check()


@pytest.mark.parametrize("state", In)
def test_only_a_granted_transfer_is_adopted(state):
    worker, transfer = in_state(state)
    running, legal = worker.load.running, state in (In.GRANTED, In.REVOKING, In.WRITING)
    with nullcontext() if legal else pytest.raises(IllegalTransferMove):
        happen(worker, transfer, "adopt")
    assert (transfer.state, worker.load.running) == (In.ADOPTED if legal else state, running + legal)
    worker.check()


@pytest.mark.parametrize("state", [In.PENDING, In.ALLOCATED, In.GRANTED, In.REVOKING, In.WRITING])
@pytest.mark.parametrize("end", ["cancel", "expire"])
def test_a_transfer_that_is_not_over_ends_with_its_request(state, end):
    worker, transfer = in_state(state)
    scheduler = worker.scheduler
    ended = scheduler.cancel(transfer.request.id, 1) if end == "cancel" else scheduler.expire(1e9)
    assert ended.incoming == (transfer,)
    assert transfer.over


@pytest.mark.parametrize("name", ["on_written", "on_revoked", "abandon"])
def test_nobody_is_asked_for_blocks_that_it_would_not_give_back(name):
    worker, transfer = in_state(In.REVOKING)
    happen(worker, transfer, name)
    assert worker.incoming.revocations() == ()


# Outgoing transfers: a running sequence that migrates, beside one that runs on

MIGRATION = {
    Out.PENDING: (),
    Out.GRANTED: ("grant",),
    Out.STOPPING: ("grant", "begin", "finish", "end"),
    Out.FINISHED: ("grant", "finish"),
    Out.CANCELLED: ("grant", "cancel"),
    Out.COMMITTED: ("grant", "finish", "commit"),
    Out.ABORTED: ("abort",),
}
KEPT = (Out.GRANTED, Out.STOPPING, Out.FINISHED)


def migrating(state):
    """A worker of few blocks, its older sequence, and the newer one's transfer, brought to this state."""
    worker = Worker(num_blocks=8, growth_tokens=0)
    worker.older, worker.newer = ask(6, max_tokens=20), ask(7, 50, max_tokens=20)
    _, request = worker.add_all((worker.older, worker.newer))
    worker.step()
    transfer = worker.outgoing.migrate(request, room=5, attempt=2)
    for name in MIGRATION[state]:
        befall(worker, transfer, name)
    assert transfer.state is state
    return worker, transfer


def befall(worker, transfer, name):
    outgoing = worker.outgoing
    match name:
        case "grant":
            outgoing.grant(transfer, 8)
        case "begin" | "end":
            getattr(worker, name)()
        case _:
            getattr(outgoing, name)(transfer)
    worker.scheduler.check_integrity()


@pytest.mark.parametrize(
    ("name", "results"),
    [
        ("grant", {Out.PENDING: Out.GRANTED}),
        ("withdraw", {Out.GRANTED: Out.PENDING, Out.STOPPING: Out.PENDING}),
        ("finish", {Out.GRANTED: Out.FINISHED, Out.STOPPING: Out.FINISHED}),
        ("commit", {Out.FINISHED: Out.COMMITTED, Out.CANCELLED: Out.COMMITTED}),
        ("cancel", {Out.PENDING: Out.ABORTED, **dict.fromkeys(KEPT, Out.CANCELLED)}),
        ("abort", dict.fromkeys((Out.PENDING, *KEPT, Out.CANCELLED), Out.ABORTED)),
    ],
)
@pytest.mark.parametrize("state", Out)
def test_what_happens_to_an_outgoing_transfer_moves_it_or_raises(state, name, results):
    worker, transfer = migrating(state)
    again = (name == "cancel" and transfer.over) or (name == "abort" and state is Out.ABORTED)
    ended = name == "finish" and transfer.request.state is RequestState.ENDED
    legal = state in results or again or ended
    with nullcontext() if legal else pytest.raises((IllegalTransferMove, ValueError)):
        befall(worker, transfer, name)
    assert transfer.state is results.get(state, state)
    worker.scheduler.check_integrity()


@pytest.mark.parametrize("state", [Out.PENDING, *KEPT, Out.CANCELLED, Out.ABORTED])
def test_a_sequence_is_preempted_only_while_none_of_its_blocks_are_read(state):
    worker, transfer = migrating(state)
    while not worker.older.complete and worker.step():
        pass
    assert bool(transfer.request.preemptions) is (state in (Out.PENDING, Out.ABORTED))


@pytest.mark.parametrize("state", [Out.PENDING, *KEPT, Out.CANCELLED, Out.ABORTED])
def test_the_blocks_of_a_sequence_that_ends_stay_while_they_are_read(state):
    worker, transfer = migrating(state)
    worker.cancel(worker.older)
    blocks = list(transfer.request.blocks)
    worker.cancel(worker.newer)
    assert transfer.request.blocks == (blocks if state in (*KEPT, Out.CANCELLED) else [])
    assert worker.counts.used == len(transfer.request.blocks)
    befall(worker, transfer, "cancel")
    assert worker.counts.used == len(transfer.request.blocks)
    befall(worker, transfer, "abort")
    assert worker.idle


@pytest.mark.parametrize("state", [Out.PENDING, *KEPT, Out.ABORTED])
def test_a_sequence_that_is_stopping_or_finished_makes_no_tokens(state):
    worker, transfer = migrating(state)
    known = len(transfer.request.tokens)
    worker.step()
    stopped = state in (Out.STOPPING, Out.FINISHED)
    assert (len(transfer.request.tokens) == known) is stopped
    assert transfer.request.schedulable is not stopped


@pytest.mark.parametrize("state", [Out.PENDING, *KEPT, Out.ABORTED])
def test_a_sequence_leaves_for_one_receiver_at_a_time(state):
    worker, transfer = migrating(state)
    if state is Out.ABORTED:
        assert worker.outgoing.migrate(transfer.request, 6, 3).state is Out.PENDING
    else:
        with pytest.raises(ValueError, match="migrated already"):
            worker.outgoing.migrate(transfer.request, 6, 3)
        assert transfer.request.outgoing is transfer


@pytest.mark.parametrize("state", [Out.PENDING, *KEPT])
def test_a_sequence_goes_on_here_when_its_migration_has_failed(state):
    worker, transfer = migrating(state)
    befall(worker, transfer, "abort")
    worker.run(worker.newer)
    assert worker.idle


def test_a_sequence_that_was_preempted_before_its_grant_is_not_migrated():
    worker, transfer = migrating(Out.PENDING)
    while not transfer.request.preemptions:
        worker.step()
    assert transfer.request.state is RequestState.WAITING
    with pytest.raises(ValueError, match="is not running"):
        befall(worker, transfer, "grant")
    assert transfer.state is Out.PENDING
    worker.run(worker.newer)


def test_a_prefill_whose_transfer_failed_is_over():
    worker = Worker()
    request = worker.add(ask(6), room=1)
    worker.outgoing.abort(request.outgoing)
    assert (request.state, worker.idle) == (RequestState.ENDED, True)


def test_a_grant_that_is_too_small_for_a_prefill_changes_nothing():
    worker = Worker()
    request = worker.add(ask(9), room=1)
    with pytest.raises(ValueError, match="too small"):
        worker.grant(request, 2)
    assert request.outgoing.state is Out.PENDING
    worker.grant(request, 3)
    assert request.outgoing.state is Out.GRANTED


def test_a_withdrawn_grant_leaves_nothing_of_it():
    worker, transfer = migrating(Out.GRANTED)
    transfer.sent = 1
    befall(worker, transfer, "withdraw")
    assert (transfer.capacity, transfer.sent) == (0, 0)
