"""Who may start: slots, room for what runs to grow, and prefills that nobody has asked for yet."""

import pytest

from legato_engine.scheduler.output_lengths import LEAST_ANSWERS
from legato_engine.scheduler.request import RequestState


def prompt(length, start=0):
    return tuple(range(start, start + length))


def started(worker, request):
    worker.step()
    return request.state is RequestState.RUNNING


@pytest.mark.parametrize(("growth", "starts"), [(0, True), (6, True), (7, False), (100, False)])
def test_a_newcomer_leaves_room_for_what_runs_to_grow(make_worker, make_client, growth, starts):
    """8 blocks of 4: 3 are the running one's, 4 the newcomer's, so one is left for growth. After its first step the
    running one has 11 tokens, and needs no room for the KV of its last one."""
    worker = make_worker(num_blocks=8, growth_tokens=growth)
    worker.add(make_client(prompt(10), max_tokens=20))
    worker.step()
    newcomer = worker.add(make_client(prompt(14, 100), max_tokens=2))
    assert started(worker, newcomer) is starts


@pytest.mark.parametrize(("left", "starts"), [(6, True), (7, False)])
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


@pytest.mark.parametrize(("most", "starts"), [(3, True), (4, False)])
def test_a_newcomer_leaves_room_for_its_own_growth_too(make_worker, make_client, most, starts):
    """7 blocks: 3 are the running one's, which ends in them; 4 the newcomer's, for 14 tokens and 2 more with KV."""
    worker = make_worker(num_blocks=7, growth_tokens=100)
    worker.add(make_client(prompt(10), max_tokens=3))
    worker.step()
    newcomer = worker.add(make_client(prompt(14, 100), max_tokens=most))
    assert started(worker, newcomer) is starts


@pytest.mark.parametrize(("growth", "starts"), [(9, True), (10, False)])
def test_a_granted_transfer_is_expected_to_grow(make_worker, make_client, growth, starts):
    """8 blocks: 3 are granted, 4 the newcomer's."""
    worker = make_worker(num_blocks=8, growth_tokens=growth)
    worker.reserve(make_client(prompt(8), max_tokens=20).request(room=1), 0.0)
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


def answered(worker, make_client, tokens, **fields):
    """So many answers of this length that it is the usual one."""
    for _ in range(LEAST_ANSWERS):
        worker.add(make_client(prompt(3), max_tokens=tokens), **fields)
        worker.run()


@pytest.mark.parametrize(("tokens", "starts"), [(6, True), (7, True), (8, False), (30, False)])
def test_what_runs_is_expected_to_become_as_long_as_answers_usually_do(make_worker, make_client, tokens, starts):
    """14 blocks: 3 are the running one's, 10 the newcomer's. One block lets the running one make 7 tokens."""
    worker = make_worker(num_blocks=14, growth_tokens=0, max_waiting=1000)
    answered(worker, make_client, tokens)
    worker.add(make_client(prompt(10), max_tokens=40))
    worker.step()
    newcomer = worker.add(make_client(prompt(39, 100), max_tokens=1))
    assert started(worker, newcomer) is starts


@pytest.mark.parametrize(("growth", "starts"), [(4, True), (5, False)])
def test_what_became_longer_than_usual_is_expected_to_go_on_like_an_unknown_one(
    make_worker, make_client, growth, starts
):
    worker = make_worker(num_blocks=14, growth_tokens=growth)
    answered(worker, make_client, 2)
    worker.add(make_client(prompt(10), max_tokens=40))
    for _ in range(3):
        worker.step()
    newcomer = worker.add(make_client(prompt(37, 100), max_tokens=1))
    assert started(worker, newcomer) is starts


def test_an_answer_that_its_client_cut_short_is_as_long_as_it_became(make_worker, make_client):
    """Stop strings end at the gateway, which cancels."""
    worker = make_worker(num_blocks=14, growth_tokens=100)
    for _ in range(LEAST_ANSWERS):
        client = make_client(prompt(3), max_tokens=40)
        worker.add(client)
        for _ in range(3):
            worker.step()
        worker.cancel(client)
    worker.add(make_client(prompt(10), max_tokens=40))
    worker.step()
    assert started(worker, worker.add(make_client(prompt(37, 100), max_tokens=1)))


@pytest.mark.parametrize("by_deadline", [True, False])
def test_an_answer_that_was_cut_off_says_nothing_about_others(make_worker, make_client, by_deadline):
    worker = make_worker(num_blocks=14, growth_tokens=100)
    for number in range(1, LEAST_ANSWERS + 1):
        client = make_client(prompt(3), max_tokens=40)
        worker.add(client, deadline=float(number))
        for _ in range(3):
            worker.step()
        client.over = True
        scheduler = worker.scheduler
        ended = scheduler.expire(number) if by_deadline else scheduler.cancel(client.id, 99, cut_off=True)
        assert len(ended.requests) == 1
    worker.add(make_client(prompt(10), max_tokens=40))
    worker.step()
    assert not started(worker, worker.add(make_client(prompt(37, 100), max_tokens=1)))


def test_a_sequence_that_was_handed_off_is_expected_to_be_like_those_before_it(make_worker, make_client):
    worker = make_worker(num_blocks=14, growth_tokens=100)
    for room in range(LEAST_ANSWERS):
        client = make_client(prompt(3), max_tokens=3)
        worker.clients[client.id] = client
        transfer = worker.reserve(client.request(room=room), 0.0)
        worker.scheduler.incoming.grants()
        worker.scheduler.incoming.adopt(transfer, 0, {})
        worker.run()
    worker.reserve(make_client(prompt(10), max_tokens=40).request(room=99), 0.0)
    assert len(worker.scheduler.incoming.grants()) == 1
    assert started(worker, worker.add(make_client(prompt(37, 100), max_tokens=1)))


def lives(worker, make_client):
    """Sequences of all kinds on too few blocks: whether one that ran had to wait again."""
    requests = []
    for number in range(12):
        choices = (0, 1, 2) if number % 4 == 3 else (0,)
        client = make_client(prompt(5 + number, 100 * number), max_tokens=6 + number, choices=choices)
        requests.append(worker.add(client))
    ran, preempted = set(), False
    while not worker.scheduler.idle:
        worker.step()
        ran |= {request for request in requests if request.state is RequestState.RUNNING}
        preempted |= any(request.state is RequestState.WAITING for request in ran)
    assert all(client.complete for client in worker.clients.values())
    return preempted


@pytest.mark.parametrize("blocks", range(18, 31, 3))
def test_where_the_maximum_is_reserved_nothing_is_preempted(make_worker, make_client, blocks):
    assert not lives(make_worker(num_blocks=blocks, reserve_maximum=True, growth_tokens=0), make_client)


def test_where_the_maximum_is_not_reserved_something_may_be_preempted(make_worker, make_client):
    assert lives(make_worker(num_blocks=18, growth_tokens=0), make_client)


@pytest.mark.parametrize(("maximum", "starts"), [(False, True), (True, False)])
def test_the_maximum_of_a_paused_sequence_is_reserved_too(make_worker, make_client, maximum, starts):
    worker = make_worker(num_blocks=9, growth_tokens=0, reserve_maximum=maximum)
    slow = make_client(prompt(10), max_tokens=20)
    worker.add(slow)
    worker.add(make_client(prompt(2, 50), max_tokens=2))
    worker.begin()
    worker.scheduler.pause(slow.id, 1, True)
    newcomer = worker.add(make_client(prompt(10, 100), max_tokens=2))
    worker.end()
    worker.begin()
    assert (newcomer.state is RequestState.RUNNING) is starts


def test_alone_a_sequence_starts_although_its_growth_has_no_room_yet(make_worker, make_client):
    """5 of 8 blocks may still be written by a peer that was granted them."""
    worker = make_worker(num_blocks=8, growth_tokens=100)
    late = worker.reserve(make_client(prompt(13)).request(room=1), 0.0)
    assert worker.scheduler.incoming.grants() == (late,)
    worker.scheduler.incoming.abandon(late)
    assert started(worker, worker.add(make_client(prompt(10, 100), max_tokens=20)))


@pytest.mark.parametrize(("blocks", "starts"), [(15, True), (14, False)])
def test_choices_share_the_full_blocks_of_their_prompt(make_worker, make_client, blocks, starts):
    """The running one has 1 block and ends in it. The newcomer has 9 tokens: 2 full blocks for both choices, and for
    each of them 6 more for the ninth and 23 of its own."""
    worker = make_worker(num_blocks=blocks, growth_tokens=100)
    worker.add(make_client(prompt(2), max_tokens=3))
    worker.step()
    newcomer = worker.add(make_client(prompt(9, 100), max_tokens=24, choices=(0, 1)))
    assert started(worker, newcomer) is starts


@pytest.mark.parametrize(("blocks", "starts"), [(17, True), (16, False)])
def test_no_sequence_is_expected_to_become_longer_than_it_may(make_worker, make_client, blocks, starts):
    """64 tokens are the limit, so 16 blocks whatever the client asks for."""
    worker = make_worker(num_blocks=blocks, growth_tokens=100)
    worker.add(make_client(prompt(2), max_tokens=3))
    worker.step()
    newcomer = worker.add(make_client(prompt(60, 100), max_tokens=100))
    assert started(worker, newcomer) is starts


@pytest.mark.parametrize("first", ["prefill", "decode"])
def test_a_prefill_for_a_hand_off_is_not_expected_to_grow(make_worker, make_client, first):
    """8 blocks: 3 of a prompt whose output another worker makes, and 4 of a short answer."""
    worker = make_worker(num_blocks=8, growth_tokens=100, chunk_tokens=32)
    prefill = make_client(prompt(12), max_tokens=20), {"room": 1}
    decode = make_client(prompt(13, 100), max_tokens=3), {}
    both = (prefill, decode) if first == "prefill" else (decode, prefill)
    requests = [worker.add(client, **fields) for client, fields in both]
    worker.begin()
    assert [request.state for request in requests] == [RequestState.RUNNING] * 2


@pytest.mark.parametrize(("most", "granted"), [(9, True), (10, False)])
def test_a_transfer_leaves_room_for_its_own_growth_too(make_worker, make_client, most, granted):
    """8 blocks: 4 are the running one's; the transfer gets 3 for 8 tokens, and needs a fourth for 9 to 12 more."""
    worker = make_worker(num_blocks=8, growth_tokens=100)
    worker.add(make_client(prompt(13), max_tokens=3))
    worker.step()
    worker.reserve(make_client(prompt(8, 100), max_tokens=most).request(room=1), 0.0)
    assert len(worker.scheduler.incoming.grants()) == granted


def test_choices_of_a_handed_off_prompt_are_handed_off(make_client):
    request = make_client(prompt(3), choices=(0, 1)).request(handed_off=True)
    assert request.fork(1, ()).handed_off
