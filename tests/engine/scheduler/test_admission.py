"""Admission of waiting requests: slots, room for running ones to grow, and prefills without a grant."""

import msgspec
import pytest
from scheduled_worker import Worker, ask

from legato_engine.scheduler.queueing.admission import AdmissionControl
from legato_engine.scheduler.queueing.output_lengths import LEAST_ANSWERS
from legato_engine.scheduler.requests.request import RequestState


def started(worker, client):
    return starts(worker, worker.add(client))


def starts(worker, request):
    worker.step()
    return request.state is RequestState.RUNNING


@pytest.mark.parametrize(
    ("blocks", "growth", "running", "newcomer", "expected"),
    [
        # 8 blocks: 3 are the running one's, 4 the newcomer's, so one is left for growth. After its first step the
        # running one has 11 tokens, and needs no room for the KV of its last one.
        (8, 0, ask(10, max_tokens=20), ask(14, 100, max_tokens=2), True),
        (8, 6, ask(10, max_tokens=20), ask(14, 100, max_tokens=2), True),
        (8, 7, ask(10, max_tokens=20), ask(14, 100, max_tokens=2), False),
        (8, 100, ask(10, max_tokens=20), ask(14, 100, max_tokens=2), False),
        # No more growth is expected than there is output left.
        (8, 100, ask(10, max_tokens=7), ask(14, 100, max_tokens=2), True),
        (8, 100, ask(10, max_tokens=8), ask(14, 100, max_tokens=2), False),
        # Every choice of a prompt is expected to grow.
        (8, 4, ask(10, max_tokens=20), ask(14, 100, max_tokens=2), True),
        (8, 4, ask(10, max_tokens=20, choices=(0, 1)), ask(14, 100, max_tokens=2), False),
        # 7 blocks: 3 are the running one's, which ends in them; 4 the newcomer's, for 14 tokens and 2 more with KV.
        (7, 100, ask(10, max_tokens=3), ask(14, 100, max_tokens=3), True),
        (7, 100, ask(10, max_tokens=3), ask(14, 100, max_tokens=4), False),
        # Choices share the full blocks of their prompt. The running one has 1 block and ends in it. The newcomer has
        # 9 tokens: 2 full blocks for both choices, and for each of them 6 more for the ninth and 23 of its own.
        (15, 100, ask(2, max_tokens=3), ask(9, 100, max_tokens=24, choices=(0, 1)), True),
        (14, 100, ask(2, max_tokens=3), ask(9, 100, max_tokens=24, choices=(0, 1)), False),
        # No sequence is expected to become longer than it may: 64 tokens, 16 blocks, whatever the client asks for.
        (17, 100, ask(2, max_tokens=3), ask(60, 100, max_tokens=100), True),
        (16, 100, ask(2, max_tokens=3), ask(60, 100, max_tokens=100), False),
    ],
)
def test_a_newcomer_leaves_room_for_what_runs_and_itself_to_grow(blocks, growth, running, newcomer, expected):
    worker = Worker(num_blocks=blocks, growth_tokens=growth)
    worker.add(running)
    worker.step()
    assert started(worker, newcomer) is expected


def test_a_paused_sequence_is_not_expected_to_grow():
    worker = Worker(num_blocks=8, growth_tokens=100)
    slow = worker.add(ask(10, max_tokens=20))
    worker.step()
    worker.pause(slow)
    assert started(worker, ask(14, 100, max_tokens=2))
    assert slow.state is RequestState.RUNNING  # and keeps its blocks


@pytest.mark.parametrize(("growth", "expected"), [(9, True), (10, False)])
def test_a_granted_transfer_is_expected_to_grow(growth, expected):
    """8 blocks: 3 are granted, 4 the newcomer's."""
    worker = Worker(num_blocks=8, growth_tokens=growth)
    worker.granted(ask(8, max_tokens=20))
    assert started(worker, ask(14, 100, max_tokens=2)) is expected


@pytest.mark.parametrize(("most", "granted"), [(9, True), (10, False)])
def test_a_transfer_leaves_room_for_its_own_growth_too(most, granted):
    """8 blocks: 4 are the running one's; the transfer gets 3 for 8 tokens, and needs a fourth for 9 to 12 more."""
    worker = Worker(num_blocks=8, growth_tokens=100)
    worker.add(ask(13, max_tokens=3))
    worker.step()
    worker.reserve(ask(8, 100, max_tokens=most))
    assert len(worker.incoming.grants()) == granted


def test_a_single_sequence_may_fill_the_worker():
    worker = Worker(num_blocks=4, growth_tokens=100)
    worker.add(client := ask(13, max_tokens=3))
    worker.run(client)


def test_a_single_sequence_starts_although_its_growth_has_no_room_yet():
    """5 of 8 blocks may still be written by a peer that was granted them."""
    worker = Worker(num_blocks=8, growth_tokens=100)
    worker.incoming.abandon(worker.granted(ask(13)))
    assert started(worker, ask(10, 100, max_tokens=20))


@pytest.mark.parametrize("elsewhere", [False, True])
def test_those_that_run_are_counted_once_for_all_that_start(monkeypatch, elsewhere):
    """A count for each would take time by the square of their number. What starts needs 3 blocks of 16."""
    worker, counted, growth = Worker(num_blocks=208, max_running=100, chunk_tokens=100), [], AdmissionControl.growth
    worker.add_all(ask(4, 10 * n, max_tokens=20) for n in range(64))
    worker.steps(4)
    assert (worker.load.running, worker.load.growth_blocks, worker.counts.free) == (64, 64, 64 + 16)
    monkeypatch.setattr(AdmissionControl, "growth", lambda *given: counted.append(given) or growth(*given))
    clients = [ask(7, 5000 + 10 * n, max_tokens=20) for n in range(9)]
    if elsewhere:
        transfers = [worker.reserve(client, room=n) for n, client in enumerate(clients)]
        assert worker.incoming.grants() == tuple(transfers[:5])
    else:
        worker.add_all(clients)
        assert len(worker.begin().rows) == 64 + 5
        worker.end()
    assert len(counted) < 64 + 4 * 9


@pytest.mark.parametrize("incoming", [False, True])
def test_slots_are_sequences_and_choices_count_apart(incoming):
    """5 slots: 3 are taken, by sequences or by a grant, and 2 are left."""
    worker, three = Worker(max_running=5), ask(5, choices=(0, 1, 2), max_tokens=20)
    worker.granted(three) if incoming else started(worker, three)
    two = worker.add(ask(5, 50, choices=(0, 1), max_tokens=20))
    assert starts(worker, two)
    one = worker.add(ask(5, 70, max_tokens=20))
    assert not starts(worker, one)
    transfer = worker.reserve(ask(3, 90), room=2)
    assert worker.incoming.grants() == ()
    worker.scheduler.cancel(two.id, 9)
    assert worker.incoming.grants() == ()  # `one` came before it and goes first
    assert starts(worker, one)
    assert worker.incoming.grants() == (transfer,)


def answered(worker, tokens, **fields):
    """Serves enough answers of this length that it is the usual one."""
    for _ in range(LEAST_ANSWERS):
        worker.add(ask(3, max_tokens=tokens), **fields)
        worker.run()


@pytest.mark.parametrize(
    ("usual", "growth", "steps", "newcomer", "expected"),
    [
        # 14 blocks: 3 are the running one's, 10 the newcomer's. One block lets the running one make 7 tokens.
        (6, 0, 1, 39, True),
        (7, 0, 1, 39, True),
        (8, 0, 1, 39, False),
        (30, 0, 1, 39, False),
        # It became longer than usual, and is expected to go on like an unknown one.
        (2, 4, 3, 37, True),
        (2, 5, 3, 37, False),
    ],
)
def test_a_running_sequence_is_expected_to_become_as_long_as_usual(usual, growth, steps, newcomer, expected):
    worker = Worker(num_blocks=14, growth_tokens=growth, max_waiting=1000)
    answered(worker, usual)
    worker.add(ask(10, max_tokens=40))
    worker.steps(steps)
    assert started(worker, ask(newcomer, 100, max_tokens=1)) is expected


@pytest.mark.parametrize(
    ("blocks", "earlier", "prompts", "limits", "expected"),
    [
        (8, 0, 1, {}, True),
        (7, 0, 1, {}, False),
        # Where the maximum is reserved, it must not matter which one is faster.
        (10, 0, 1, {"reserve_maximum": True}, True),
        (9, 0, 1, {"reserve_maximum": True}, False),
        # Cached blocks are evicted for it, unless a tenth of the sequences use some again, or would if there were more.
        (8, 7, 1, {}, True),
        (9, 8, 1, {}, False),
        (10, 8, 1, {}, True),
        (9, 15, 15, {}, True),
        (9, 15, 4, {}, False),
        (9, 15, 4, {"host_slots": 40}, False),
    ],
)
def test_a_sequence_that_ends_makes_room_for_the_growth_of_others(blocks, earlier, prompts, limits, expected):
    """The running one has 5 blocks and 2 steps left, the newcomer starts with 2, needs one more soon and 3 in all."""
    worker = Worker(num_blocks=blocks, growth_tokens=100, **limits)
    for number in range(earlier):
        worker.add(ask(15, 500 + 20 * (number % prompts), max_tokens=1))
        worker.run()
    clients = ask(3, max_tokens=17), ask(4, 100, max_tokens=16)
    worker.add(clients[0])
    worker.steps(15)
    assert started(worker, clients[1]) is expected
    worker.run()
    assert all(client.complete for client in clients)
    assert not worker.load.preemptions


def test_a_sequence_starts_that_another_was_preempted_for_although_it_uses_cached_blocks(monkeypatch):
    """As above, but the 3 blocks for the newcomer are of a paused sequence; then the sum becomes the rule."""
    worker = Worker(num_blocks=8, growth_tokens=100)
    slow = worker.add(ask(10, 300, max_tokens=20))
    worker.step()
    worker.pause(slow)
    worker.add(ask(3, max_tokens=17))
    worker.steps(15)
    monkeypatch.setattr(AdmissionControl, "_count_reuse", lambda self, *_: setattr(self, "_reuse", 1.0))
    assert started(worker, ask(4, 100, max_tokens=16))
    assert slow.state is RequestState.WAITING


def test_a_sequence_is_not_expected_to_end_before_it_may():
    """14 blocks: 4 are the running one's, 9 the newcomer's, and the former needs 2 more for 15 tokens."""
    for least, expected in ((7, True), (12, False)):
        worker = Worker(num_blocks=14, growth_tokens=0, max_waiting=1000)
        answered(worker, 3)
        worker.add(client := ask(10, max_tokens=40), params=msgspec.structs.replace(client.params, min_tokens=least))
        worker.step()
        assert started(worker, ask(36, 100, max_tokens=1)) is expected


@pytest.mark.parametrize(
    ("end", "counts"),
    [
        (lambda scheduler, id, now: scheduler.cancel(id, 99), True),
        (lambda scheduler, id, now: scheduler.cancel(id, 99, cut_off=True), False),
        (lambda scheduler, id, now: scheduler.expire(now), False),
    ],
    ids=["ended by its client", "cut off", "by its deadline"],
)
def test_an_answer_is_as_long_as_its_client_let_it_become_and_one_that_was_cut_off_says_nothing(end, counts):
    worker = Worker(num_blocks=14, growth_tokens=100)
    for number in range(1, LEAST_ANSWERS + 1):
        worker.add(client := ask(3, max_tokens=40), deadline=float(number))
        worker.steps(3)
        client.over = True
        assert len(end(worker.scheduler, client.id, number).requests) == 1
    worker.add(ask(10, max_tokens=40))
    worker.step()
    assert started(worker, ask(37, 100, max_tokens=1)) is counts


def test_a_sequence_that_was_handed_off_is_expected_to_be_like_those_before_it():
    worker = Worker(num_blocks=14, growth_tokens=100)
    for room in range(LEAST_ANSWERS):
        worker.adopt(worker.granted(ask(3, max_tokens=3), room=room))
        worker.run()
    worker.granted(ask(10, max_tokens=40), room=99)
    assert started(worker, ask(37, 100, max_tokens=1))


@pytest.mark.parametrize(
    ("blocks", "reserve_maximum", "preempted"),
    [*((blocks, True, False) for blocks in range(18, 31, 3)), (18, False, True)],
)
def test_only_where_the_maximum_is_not_reserved_something_is_preempted(blocks, reserve_maximum, preempted):
    """Sequences of all kinds on too few blocks: some that ran have to wait again."""
    worker = Worker(num_blocks=blocks, reserve_maximum=reserve_maximum, growth_tokens=0)
    clients = [ask(5 + n, 100 * n, max_tokens=6 + n, choices=(0, 1, 2) if n % 4 == 3 else (0,)) for n in range(12)]
    requests, ran, waited = worker.add_all(clients), set(), False
    while not worker.idle:
        worker.step()
        ran |= {request for request in requests if request.state is RequestState.RUNNING}
        waited |= any(request.state is RequestState.WAITING for request in ran)
    assert all(client.complete for client in clients)
    assert waited is preempted
    assert not worker.scheduler._admission._reuse  # all prompts differ, and those that ran have their own blocks


@pytest.mark.parametrize(("maximum", "expected"), [(False, True), (True, False)])
def test_the_maximum_of_a_paused_sequence_is_reserved_too(maximum, expected):
    worker = Worker(num_blocks=9, growth_tokens=0, reserve_maximum=maximum)
    slow, _ = worker.add_all((ask(10, max_tokens=20), ask(2, 50, max_tokens=2)))
    worker.begin()
    worker.pause(slow)
    newcomer = worker.add(ask(10, 100, max_tokens=2))
    worker.end()
    assert starts(worker, newcomer) is expected


@pytest.mark.parametrize("prefill_first", [True, False])
def test_a_prefill_for_a_hand_off_is_not_expected_to_grow(prefill_first):
    """8 blocks: 3 of a prompt whose output another worker makes, and 4 of a short answer."""
    worker = Worker(num_blocks=8, growth_tokens=100, chunk_tokens=32)
    both = [(ask(12, max_tokens=20), 1), (ask(13, 100, max_tokens=3), None)]
    requests = [worker.add(client, room=room) for client, room in (both if prefill_first else both[::-1])]
    worker.begin()
    assert [request.state for request in requests] == [RequestState.RUNNING] * 2


@pytest.mark.parametrize(("choices", "blocks"), [((0,), 4), ((0, 1), 6)])
def test_blocks_that_a_request_is_given_room_for_and_has(choices, blocks):
    """A prompt of 10 tokens, with two full blocks that choices share, and 6 output tokens with KV for each choice."""
    worker, ended = Worker(growth_tokens=100), {}
    worker.add(ask(10, max_tokens=7, choices=choices))
    while result := worker.step():
        ended |= {emission.choice: emission.request for emission in result.emissions}
    assert sum(request.reserved_blocks for request in ended.values()) == blocks
    assert sum(request.peak_blocks for request in ended.values()) == blocks


def test_prompt_tokens_are_shared_with_sequences_that_are_here():
    worker = Worker()
    for _ in range(2):
        worker.add(ask(12))
        worker.step()
    worker.run()
    worker.add(ask(12))
    worker.run()
    assert worker.load.shared_prompt_tokens == 8, "the last one had nobody to share with"
