"""Demand beyond running sequences in a load: blocks asked for, expected growth, prompts that wait elsewhere."""

import pytest
from scheduled_worker import Client, Worker, ask, prompt

from legato_engine.scheduler.requests.request import RequestState


def prompts(worker):
    load = worker.load
    return load.prompts, load.prompt_tokens, load.queue_tokens


def test_granted_blocks_are_those_of_hand_offs_until_they_commit():
    worker = Worker(num_blocks=16, growth_tokens=0)
    transfer = worker.reserve(ask(9))
    assert (worker.load.granted_blocks, worker.load.pending_blocks, worker.load.granted) == (0, 4, 0)
    worker.incoming.grants()
    assert (worker.load.granted_blocks, worker.load.pending_blocks, worker.load.used_blocks) == (4, 0, 4)
    assert (worker.load.granted, worker.load.running) == (1, 0)
    worker.incoming.abandon(transfer)
    assert (worker.load.granted_blocks, worker.load.granted) == (0, 0)


def test_pending_blocks_are_those_that_waiting_prompts_ask_for():
    worker = Worker(num_blocks=8)
    worker.add(ask(20, max_tokens=2))
    worker.run()  # 5 blocks of it stay cached
    assert (worker.load.free_blocks, worker.load.cached_blocks) == (3, 5)
    worker.add(ask(9, 500))
    assert worker.load.pending_blocks == 3
    worker.add(Client((*prompt(16), 900), max_tokens=1))
    assert worker.load.pending_blocks == 3 + 1
    worker.begin()
    assert worker.load.pending_blocks == 0
    worker.end()


def test_prompts_are_sequences_whose_prompt_is_still_to_be_computed_here():
    """One that is begun, and two that wait; not one that decodes, nor one that comes from elsewhere."""
    worker = Worker(chunk_tokens=8)
    worker.add(ask(4, max_tokens=40))
    worker.step()
    worker.add_all(ask(12, start) for start in (100, 200, 300))
    worker.reserve(ask(9, 400))
    for _ in range(2):
        assert worker.load.prompts == 3
        worker.step()
    worker.run()
    assert worker.load.prompts == 0


def test_prompt_tokens_are_what_of_these_is_to_be_computed():
    """Two of 20 tokens, of which one finds 8 cached: a step computes 8 of the other."""
    worker = Worker(num_blocks=32, chunk_tokens=8)
    worker.add(ask(8, 200, max_tokens=1))
    worker.run()
    worker.add_all(ask(20, start, max_tokens=1) for start in (100, 200))
    assert worker.load.prompt_tokens == 20 + 12
    worker.step()
    assert worker.load.running == 1
    assert prompts(worker) == (2, 12 + 12, 12 + 12)
    worker.run()
    assert worker.load.prompt_tokens == 0


def test_the_last_token_of_a_prompt_counts_among_those_that_decode():
    """As one that decodes has, it has one left."""
    worker = Worker(chunk_tokens=8)
    worker.add(ask(9))
    worker.step()
    assert prompts(worker) == (0, 0, 0)
    assert worker.load.decoding == 1


def test_a_preempted_sequence_is_not_a_prompt_while_it_waits_or_is_computed_again():
    worker = Worker(num_blocks=6, growth_tokens=0, chunk_tokens=4)
    _, second = worker.add_all(ask(7, 100 * n, max_tokens=12) for n in range(2))
    while not second.preemptions:
        worker.step()
    assert (second.state, worker.load.preemptions) == (RequestState.WAITING, 1)
    assert prompts(worker) == (0, 0, second.uncached)
    worker.add(ask(9, 300, max_tokens=1))
    assert prompts(worker) == (1, 9, second.uncached + 9)
    while second.state is RequestState.WAITING:
        worker.step()
    assert second.remaining > 1
    assert prompts(worker) == (1, 9, second.remaining + 9)


def test_growth_is_what_all_sequences_that_decode_here_will_ask_for():
    """12 tokens more of each, beyond 2 blocks: of one that runs, one that is granted and one that waits."""
    worker = Worker(num_blocks=32, growth_tokens=12)
    assert worker.load.growth_blocks == 0
    worker.add(ask(4, max_tokens=40))
    worker.step()
    assert (worker.load.growth_blocks, worker.load.next_growth_blocks) == (2, 3)
    worker.reserve(ask(4, 100, max_tokens=40))
    assert worker.load.growth_blocks == 4
    worker.incoming.grants()
    assert worker.load.growth_blocks == 4
    worker.add(ask(4, 200, max_tokens=40))
    assert worker.load.growth_blocks == 6


@pytest.mark.parametrize(
    ("maximum", "readers", "expected"), [(False, 7, (4, 2)), (False, 8, (7, 6)), (True, 0, (7, 6))]
)
def test_sequences_that_end_first_lower_the_growth_unless_all_is_to_have_room(maximum, readers, expected):
    """2 blocks more in 7 steps, after which 4 are free, and 5 in 23 steps; of another one like them, 6 in 22 steps.

    All must have room if the maximum is reserved, or if a tenth of the sequences uses cached blocks again.
    """
    worker = Worker(num_blocks=32, growth_tokens=100, reserve_maximum=maximum)
    for _ in range(readers):
        worker.add(ask(15, 500, max_tokens=1))
        worker.run()
    worker.add(ask(4, max_tokens=20))
    worker.steps(12)
    worker.add(ask(4, 100, max_tokens=24))
    worker.step()
    assert (worker.load.growth_blocks, worker.load.next_growth_blocks) == expected


def test_prefills_for_others_do_not_grow_here():
    worker = Worker(role="prefill")
    worker.add(ask(12, max_tokens=40), room=1)
    for _ in range(2):
        assert worker.load.growth_blocks == 0
        worker.step()


def test_parked_prefills_and_the_prompts_behind_them_wait_for_a_receiver():
    worker = Worker(role="prefill", max_parked=2)
    requests = [worker.add(ask(8, 100 * n), room=n) for n in range(4)]
    assert (worker.load.parked, worker.load.parked_tokens) == (0, 0)
    worker.run()
    load = worker.load
    assert (load.parked, load.parked_tokens, load.queue_tokens) == (2, 16, 16)
    worker.grant(requests[0])
    assert (worker.load.parked, worker.load.parked_tokens) == (1, 0)


def test_decoding_sequences_and_their_context_are_counted_separately_from_prompts():
    worker = Worker(num_blocks=32, chunk_tokens=8)
    worker.add(ask(6, max_tokens=20))
    worker.step()
    worker.add(ask(20, 100, max_tokens=20))
    worker.step()
    assert (worker.load.running, worker.load.decoding, worker.load.context_tokens) == (2, 1, 7)
