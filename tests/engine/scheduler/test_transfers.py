"""The records of transfers: which moves are legal, and what each state means for blocks and slots."""

import pytest

from legato_engine.scheduler.transfers import INCOMING_MOVES, IllegalTransferMove, IncomingState, IncomingTransfer

I = IncomingState  # noqa: E741
INCOMING_ENDS = {I.ADOPTED, I.ABANDONED}


def prompt(length, start=0):
    return tuple(range(start, start + length))


def reachable(moves, start):
    seen, edge = {start}, [start]
    while edge:
        state = edge.pop()
        for after in {to for begin, to in moves if begin is state} - seen:
            seen.add(after)
            edge.append(after)
    return seen


def test_every_incoming_state_is_reached_and_every_one_can_end():
    assert reachable(INCOMING_MOVES, I.PENDING) == set(I)
    assert all(reachable(INCOMING_MOVES, state) & INCOMING_ENDS for state in I)
    assert not INCOMING_ENDS & {begin for begin, _ in INCOMING_MOVES}


@pytest.mark.parametrize("state", I)
def test_a_move_that_is_not_in_the_table_raises_and_changes_nothing(make_client, state):
    for to in I:
        transfer = IncomingTransfer(make_client(prompt(3)).request(), source=None, state=state)
        if (state, to) in INCOMING_MOVES:
            transfer.move(to)
            assert transfer.state is to
        else:
            with pytest.raises(IllegalTransferMove, match=f"cannot become {to.value}: it is {state.value}"):
                transfer.move(to)
            assert transfer.state is state


PATHS = {
    I.PENDING: (),
    I.ALLOCATED: ("allocate",),
    I.GRANTED: ("allocate", "grants"),
    I.REVOKING: ("allocate", "grants", "reclaim"),
    I.WRITING: ("allocate", "grants", "written"),
    I.ADOPTED: ("allocate", "grants", "written", "adopt"),
    I.QUARANTINED: ("allocate", "grants", "written", "abandon"),
    I.ABANDONED: ("abandon",),
}


@pytest.fixture
def in_state(make_worker, make_client):
    """A worker, and a transfer of two blocks that was brought to this state by what happens to it."""

    def make(state):
        worker = make_worker(num_blocks=12)
        client = make_client(prompt(3))
        worker.clients[client.id] = client
        transfer = worker.reserve(client.request(room=1), 0.0)
        for name in PATHS[state]:
            happen(worker, transfer, name)
        assert transfer.state is state
        return worker, transfer

    return make


def happen(worker, transfer, name):
    incoming = worker.scheduler.incoming
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
        (I.PENDING, 0, 0, 0),
        *((state, 2, 0, 1) for state in (I.ALLOCATED, I.GRANTED, I.REVOKING, I.WRITING)),
        (I.ADOPTED, 2, 0, 1),  # as a running sequence
        (I.QUARANTINED, 0, 2, 0),
        (I.ABANDONED, 0, 0, 0),
    ],
)
def test_the_state_says_whose_the_blocks_are_and_whether_it_takes_a_slot(in_state, state, used, quarantined, slots):
    worker, transfer = in_state(state)
    counts = worker.pool.counts()
    assert (counts.used, counts.quarantined) == (used, quarantined)
    assert len(transfer.blocks) == (0 if state is I.ADOPTED else used + quarantined)
    assert worker.scheduler._admission.slots() == worker.scheduler.limits.max_running - slots
    assert worker.scheduler.idle is (state is I.ABANDONED)


@pytest.mark.parametrize(
    ("name", "results"),
    [
        ("reclaim", {I.ALLOCATED: I.PENDING, I.GRANTED: I.REVOKING}),  # what is written to stays
        ("written", {I.GRANTED: I.WRITING, I.REVOKING: I.WRITING}),
        ("revoked", {I.REVOKING: I.PENDING}),
        ("released", {I.QUARANTINED: I.ABANDONED}),
        (
            "abandon",
            {
                **dict.fromkeys((I.PENDING, I.ALLOCATED), I.ABANDONED),
                **dict.fromkeys((I.GRANTED, I.REVOKING, I.WRITING), I.QUARANTINED),
            },
        ),
    ],
)
@pytest.mark.parametrize("state", I)
def test_what_happens_moves_the_states_that_it_is_about_and_comes_too_late_for_others(in_state, state, name, results):
    worker, transfer = in_state(state)
    if name == "written" and state in (I.PENDING, I.ALLOCATED):  # no source knows of these blocks
        with pytest.raises(IllegalTransferMove):
            happen(worker, transfer, name)
    else:
        happen(worker, transfer, name)
    assert transfer.state is results.get(state, state)
    worker.check()


@pytest.mark.parametrize("state", I)
def test_only_a_granted_transfer_is_adopted(in_state, state):
    worker, transfer = in_state(state)
    running = worker.scheduler.load().running
    if state in (I.GRANTED, I.REVOKING, I.WRITING):
        happen(worker, transfer, "adopt")
        assert (transfer.state, worker.scheduler.load().running) == (I.ADOPTED, running + 1)
    else:
        with pytest.raises(IllegalTransferMove):
            happen(worker, transfer, "adopt")
        assert (transfer.state, worker.scheduler.load().running) == (state, running)
    worker.check()


@pytest.mark.parametrize("state", [I.PENDING, I.ALLOCATED, I.GRANTED, I.REVOKING, I.WRITING])
@pytest.mark.parametrize("end", ["cancel", "expire"])
def test_a_transfer_that_is_not_over_ends_with_its_request(in_state, state, end):
    worker, transfer = in_state(state)
    scheduler = worker.scheduler
    ended = scheduler.cancel(transfer.request.id, 1) if end == "cancel" else scheduler.expire(1e9)
    assert ended.incoming == (transfer,)
    assert transfer.over


@pytest.mark.parametrize("name", ["written", "revoked", "abandon"])
def test_nobody_is_asked_for_blocks_that_it_would_not_give_back(in_state, name):
    """The revocation was not told yet."""
    worker, transfer = in_state(I.REVOKING)
    happen(worker, transfer, name)
    assert worker.scheduler.incoming.revocations() == ()
