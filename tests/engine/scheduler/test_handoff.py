"""Books of both sides of a prefill that is handed over: grants, parking, adoption."""

import pytest
from scheduled_worker import Client, Worker, ask, outgoing_of, prompt

from legato_engine.scheduler.planning.planner import MOST_EXAMINED
from legato_engine.scheduler.requests.request import RequestState

COMPUTED, ENDED, PARKED, RUNNING, WAITING = map(RequestState, ("computed", "ended", "parked", "running", "waiting"))


@pytest.fixture
def pair():
    return Worker(role="prefill", chunk_tokens=8), Worker(role="decode")


def dispatch(pair, client):
    sender, receiver = pair
    return sender.add(client, room=1), receiver.reserve(client)


def hand_over(pair, request, transfer, client):
    """Computes a granted prompt, hands it over and decodes it to the end."""
    sender, receiver = pair
    sender.grant(request)
    sender.run()
    receiver.incoming.grants()
    sender.hand_over(request, receiver, transfer)
    receiver.run(client)


def states(requests):
    return [request.state for request in requests]


@pytest.mark.parametrize(("length", "max_tokens"), [(14, 2), (13, 40), (12, 4), (15, 1)])
def test_an_arena_of_one_longest_sequence_takes_its_hand_off(length, max_tokens):
    """As `Generate` would be served here: nothing is reserved beyond its end."""
    pair = [Worker(role=role, num_blocks=4, max_length=16) for role in ("prefill", "decode")]
    client = ask(length, max_tokens=max_tokens)
    client.expected = {0: client.expected[0][: 16 - length]}
    hand_over(pair, *dispatch(pair, client), client)
    assert pair[1].idle


def test_each_chunk_announces_its_blocks(pair):
    sender, _ = pair
    request, _ = dispatch(pair, ask(21))
    ready = []
    while result := sender.step():
        ready += [r.full_blocks(4) for r in result.advanced]
    assert ready[:2] == [2, 4]
    assert request.state is PARKED


def test_without_a_grant_only_cached_blocks_are_left(pair):
    sender, _ = pair
    request, transfer = dispatch(pair, client := ask(18))
    sender.run()
    counts = sender.counts
    assert (request.state, request.blocks, counts.used, counts.cached) == (PARKED, [], 0, 4)
    first = dict(request.first)
    hand_over(pair, request, transfer, client)
    assert request.first == first
    (row,) = sender.batches[-1].rows
    assert (row.start, row.draws) == (16, ())


def test_a_prefill_is_ready_when_it_is_parked_and_once_more_when_it_was_granted(pair):
    sender, _ = pair
    request, _ = dispatch(pair, ask(5))
    assert (sender.step().prefilled, request.state) == ([request], PARKED)
    sender.grant(request)
    assert (sender.step().prefilled, request.state) == ([request], COMPUTED)


def test_parked_prefills_are_limited():
    worker = Worker(role="prefill", max_parked=2)
    requests = [worker.add(ask(5, 10 * i), room=i) for i in range(4)]
    worker.run()
    assert states(requests) == [PARKED, PARKED, WAITING, WAITING]
    for index in (3, 1):
        worker.grant(requests[index])
        worker.run()
    assert states(requests) == [PARKED, COMPUTED] * 2
    assert worker.scheduler._registry.ungranted() == 2


def test_prefills_that_may_not_be_parked_do_not_hold_others_up():
    """More of them than are tried in one step."""
    worker = Worker(role="prefill", max_parked=2, num_blocks=64)
    for i in range(MOST_EXAMINED + 2):
        worker.add(ask(5, 10 * i), room=i)
    worker.run()
    worker.add(client := ask(9, 900))
    worker.run(client)


@pytest.mark.parametrize(("skipped", "starts"), [(MOST_EXAMINED - 2, True), (MOST_EXAMINED - 1, False)])
def test_a_step_tries_a_part_of_a_long_queue(skipped, starts):
    """One that starts, those that wait for the prefix that it computes, and then the last one."""
    worker = Worker()
    worker.add_all(Client((*prompt(8), 100 + i)) for i in range(1 + skipped))
    last = worker.add(ask(3, 300))
    worker.begin()
    assert (last.state is RUNNING) is starts


def test_granted_sequences_go_first_and_keep_their_blocks():
    worker = Worker(num_blocks=8, chunk_tokens=4, max_running=2)
    worker.add(growing := ask(7, 100, max_tokens=17))
    worker.step()
    request = worker.add(ask(15, 200), room=1)
    worker.add(ask(3, 300))
    worker.grant(request)
    worker.steps(2)
    blocks = list(request.blocks)
    worker.run()
    assert (request.state, request.blocks) == (COMPUTED, blocks)
    worker.finish(request)
    worker.outgoing.commit(outgoing_of(request))
    worker.run(growing)


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_running_prefill_goes_on_when_its_grant_is_withdrawn_and_one_that_has_ended_frees_its_blocks(pair, cancelled):
    sender, _ = pair
    request, _ = dispatch(pair, client := ask(18))
    sender.grant(request)
    sender.step()
    if cancelled:
        sender.cancel(client)
        assert sender.counts.used > 0
    sender.outgoing.withdraw(outgoing_of(request))
    if cancelled:
        assert (request.state, sender.counts.used, sender.idle) == (ENDED, 0, True)
    else:
        assert (request.state, request.computed, request.sending) == (RUNNING, 8, False)


def test_a_parked_prefill_whose_grant_is_withdrawn_before_it_runs_is_parked_again(pair):
    sender, _ = pair
    request, _ = dispatch(pair, ask(18))
    sender.run()
    sender.grant(request)
    granted = sender.add(ask(5, 100), room=2)
    sender.grant(granted)
    sender.outgoing.withdraw(outgoing_of(request))
    assert (request.state, request.sending) == (WAITING, False)
    assert sender.step().prefilled == [granted, request]
    assert states((granted, request)) == [COMPUTED, PARKED]


def test_a_grant_for_one_that_has_ended_changes_nothing(pair):
    sender, _ = pair
    request, _ = dispatch(pair, client := ask(18))
    sender.cancel(client)
    with pytest.raises(ValueError, match="has ended"):
        sender.grant(request)
    assert (request.state, request.sending, sender.idle) == (ENDED, False, True)


def test_prefills_that_are_being_computed_count_among_those_that_will_be_parked():
    worker = Worker(role="prefill", max_parked=1, chunk_tokens=4)
    requests = [worker.add(ask(6, 50 * i), room=i) for i in range(2)]
    worker.step()
    worker.begin()
    assert states(requests) == [RUNNING, WAITING]
    worker.end()
    worker.run()
    assert states(requests) == [PARKED, WAITING]


@pytest.mark.parametrize(("blocks", "shared"), [(31, 0), (35, 0), (43, 20), (47, 36)])
def test_granted_prefills_of_several_tenants_do_not_wait_for_each_others_windows(blocks, shared):
    """Each is interrupted by the next one's; their prefix may be cached."""
    worker = Worker(num_blocks=blocks, max_length=100, windows=(20,), chunk_tokens=8)
    if shared:
        worker.add(Client(prompt(shared), windows=(20,)))
        worker.run()
    left = []
    for tenant, length in enumerate((60, 40, 24), 1):
        client = Client((*prompt(shared), *prompt(length, 100 * tenant)), windows=(20,))
        left.append(worker.add(client, room=tenant, tenant=f"{tenant}"))
        worker.outgoing.grant(outgoing_of(left[-1]), 40, (0,))
        worker.steps(2)
    while left:
        worker.run()
        computed = [request for request in left if request.state is COMPUTED]
        assert computed, "all wait for blocks"
        for request in computed:
            worker.finish(request)
            worker.outgoing.commit(outgoing_of(request))
            left.remove(request)
