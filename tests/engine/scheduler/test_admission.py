"""Who may start: slots, room for what runs to grow, and prefills that nobody has asked for yet."""

import pytest

from legato_engine.request import RequestState


def prompt(length, start=0):
    return tuple(range(start, start + length))


def started(worker, request):
    worker.step()
    return request.state is RequestState.RUNNING


@pytest.mark.parametrize(("growth", "starts"), [(0, True), (4, True), (5, False), (100, False)])
def test_a_newcomer_leaves_room_for_what_runs_to_grow(make_worker, make_client, growth, starts):
    """8 blocks: 3 are the running one's, 4 the newcomer's, so one is left for growth."""
    worker = make_worker(num_blocks=8, growth_tokens=growth)
    worker.add(make_client(prompt(10), max_tokens=20))
    worker.step()
    newcomer = worker.add(make_client(prompt(14, 100), max_tokens=2))
    assert started(worker, newcomer) is starts


@pytest.mark.parametrize(("left", "starts"), [(4, True), (5, False)])
def test_no_more_growth_is_expected_than_there_is_output_left(make_worker, make_client, left, starts):
    worker = make_worker(num_blocks=8, growth_tokens=100)
    worker.add(make_client(prompt(10), max_tokens=left + 1))
    worker.step()
    newcomer = worker.add(make_client(prompt(14, 100), max_tokens=2))
    assert started(worker, newcomer) is starts


@pytest.mark.parametrize(("choices", "starts"), [((0,), True), ((0, 1), False)])
def test_every_choice_of_a_prompt_is_expected_to_grow(make_worker, make_client, choices, starts):
    worker = make_worker(num_blocks=8, growth_tokens=4, chunk_tokens=8)
    worker.add(make_client(prompt(10), max_tokens=20, choices=choices))
    worker.begin()
    worker.end()
    newcomer = worker.add(make_client(prompt(14, 100), max_tokens=2))
    assert started(worker, newcomer) is starts


def test_a_paused_sequence_is_not_expected_to_grow(make_worker, make_client):
    worker = make_worker(num_blocks=8, growth_tokens=100)
    slow = make_client(prompt(10), max_tokens=20)
    worker.add(slow)
    worker.step()
    worker.scheduler.pause(slow.id, 1, True)
    newcomer = worker.add(make_client(prompt(14, 100), max_tokens=2))
    assert started(worker, newcomer)
    assert worker.scheduler.requests(slow.id)[0].state is RequestState.RUNNING  # and keeps its blocks


@pytest.mark.parametrize(("growth", "starts"), [(4, True), (5, False)])
def test_a_granted_transfer_is_expected_to_grow(make_worker, make_client, growth, starts):
    """8 blocks: 3 are granted, 4 the newcomer's."""
    worker = make_worker(num_blocks=8, growth_tokens=growth)
    worker.reserve(make_client(prompt(8)).request(room=1), 0.0)
    assert len(worker.scheduler.incoming.grants()) == 1
    newcomer = worker.add(make_client(prompt(14, 100), max_tokens=2))
    assert started(worker, newcomer) is starts


def test_alone_a_sequence_may_fill_the_worker(make_worker, make_client):
    worker = make_worker(num_blocks=4, growth_tokens=100)
    client = make_client(prompt(13), max_tokens=3)
    worker.add(client)
    worker.run()
    assert client.complete


@pytest.mark.parametrize("incoming", [False, True])
def test_slots_are_sequences_and_choices_count_apart(make_worker, make_client, incoming):
    """5 slots: 3 are taken, by sequences or by a grant, and 2 are left."""
    worker = make_worker(max_running=5)
    three = make_client(prompt(5), choices=(0, 1, 2), max_tokens=20)
    if incoming:
        worker.reserve(three.request(room=1), 0.0)
        assert len(worker.scheduler.incoming.grants()) == 1
    else:
        worker.add(three)
        worker.step()
    two = worker.add(make_client(prompt(5, 50), choices=(0, 1), max_tokens=20))
    assert started(worker, two)
    one = worker.add(make_client(prompt(5, 70), max_tokens=20))
    assert not started(worker, one)
    transfer = worker.reserve(make_client(prompt(3, 90)).request(room=2), worker.now)
    assert worker.scheduler.incoming.grants() == ()
    worker.scheduler.cancel(two.id, 9)
    assert worker.scheduler.incoming.grants() == ()  # who came before it goes first
    assert started(worker, one)
    assert worker.scheduler.incoming.grants() == (transfer,)


def test_an_adopted_or_abandoned_transfer_gives_its_slots_back(make_worker, make_client):
    worker = make_worker(max_running=1)
    client = make_client(prompt(3), max_tokens=1)
    worker.clients[client.id] = client
    for room, end in enumerate(("abandon", "adopt")):
        (transfer,) = [worker.reserve(client.request(room=room), 0.0)]
        assert worker.scheduler.incoming.grants() == (transfer,)
        if end == "abandon":
            worker.scheduler.incoming.abandon(transfer)
            worker.scheduler.incoming.released(transfer)
        else:
            worker.scheduler.incoming.adopt(transfer, 0, {})
            worker.run()
    assert client.complete
    assert worker.scheduler.idle
