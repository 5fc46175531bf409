"""Logprobs of a prompt: each token's once, in order and before the answer, whatever is cached, cut or preempted."""

import pytest
from scheduled_worker import Client, Worker

from legato_engine.scheduler.planning.step_cost import StepCost

PROMPT = tuple(range(1, 24))  # five blocks of four, and three tokens


def asked(worker, prompt=PROMPT, **fields):
    worker.add(client := Client(prompt, scores=True, **fields))
    return client


def computed(worker, since=0):
    """Prompt tokens of all steps from that one on."""
    return sum(len(row.tokens) for batch in worker.batches[since:] for row in batch.rows if row.targets is not None)


@pytest.mark.parametrize("chunk", [1, 3, 4, 7, 16, 64])
@pytest.mark.parametrize("length", [1, 2, 4, 5, 23])
def test_they_are_whole_however_the_prompt_is_cut(chunk, length):
    worker = Worker(chunk_tokens=chunk)
    client = asked(worker, PROMPT[:length])
    worker.run(client)
    assert len(client.scored) == length - 1


def test_a_prompt_that_is_cached_is_computed_anew():
    """It stores the blocks that were there: the cache has each block once."""
    worker = Worker()
    worker.add(Client(PROMPT))
    worker.run()
    stored = set(worker.pool.cache)
    client = asked(worker)
    assert worker.load.queue_tokens == len(PROMPT), "no cache covers it"
    worker.run(client)
    assert set(worker.pool.cache) == stored
    worker.add(again := Client(PROMPT))
    steps = len(worker.batches)
    worker.run(again)
    assert len(worker.batches[steps].rows[0].tokens) == 3, "without logprobs the prefix comes from the cache"


def test_a_prompt_with_logprobs_does_not_wait_for_another_that_computes_the_same():
    worker = Worker(chunk_tokens=48)
    worker.add(plain := Client(PROMPT))
    client = asked(worker)
    worker.step()
    assert len(worker.batches[0].rows) == 2
    worker.run(plain, client)


@pytest.mark.parametrize(("choices", "steps"), [((0, 1), 1), ((0,), 2)])
def test_one_preempted_after_the_fork_or_while_it_decodes_computes_nothing_anew(choices, steps):
    worker = Worker(chunk_tokens=64)
    client = asked(worker, choices=choices, max_tokens=6)
    worker.steps(steps)
    for request in worker.scheduler.requests(client.id):
        worker.scheduler._registry.preempt(request)
    worker.run(client)
    assert computed(worker, 1) == 0


def test_a_preempted_prompt_goes_on_where_it_was():
    """No logprob is reported again, and its blocks may come from the cache."""
    worker = Worker(chunk_tokens=10)
    client = asked(worker)
    (request,) = worker.scheduler.requests(client.id)
    worker.step()
    assert (len(client.scored), request.scored) == (10, 11)
    worker.scheduler._registry.preempt(request)
    worker.run(client)
    assert worker.batches[1].rows[0].start == 8, "two blocks are cached, and what follows from them is known"


@pytest.mark.parametrize("granted", [True, False])
def test_the_prefill_of_a_pair_reports_them(granted):
    """Also where it is parked and computed again, because its receiver had no room."""
    worker = Worker(role="prefill")
    request = worker.add(client := Client(PROMPT, scores=True), room=5)
    if granted:
        worker.grant(request)
    worker.run()
    assert client.scored == client.expected_scores()
    steps = len(worker.batches)
    if not granted:
        worker.grant(request)
        worker.run()
        assert computed(worker, steps) == 0
    assert request.first
    assert worker.finish(request) is not None
    worker.outgoing.commit(request.outgoing)


def test_the_receiver_of_a_pair_reports_none():
    sender, receiver = Worker(role="prefill"), Worker(role="decode")
    request = sender.add(client := Client(PROMPT, scores=True), room=5)
    sender.grant(request)
    sender.run()
    sender.hand_over(request, receiver, receiver.granted(client, room=5))
    (adopted,) = receiver.scheduler.requests(client.id)
    receiver.scheduler._registry.preempt(adopted)
    receiver.run(client)
    assert computed(receiver) == 0


def test_a_row_whose_logits_are_not_finite_ends_only_its_request():
    worker = Worker(chunk_tokens=64)
    client = asked(worker)
    worker.begin()
    (scored,) = worker.output
    worker.output = (type(scored)(scored.logprobs, scored.sampled, 0.0, "not finite"),)
    result = worker.end()
    assert [fault for _, fault in result.faulted] == ["not finite"]
    assert (result.scored, result.emissions, client.scored) == ([], [], [])
    assert not set(worker.pool.cache), "its blocks may be the reason"


def test_their_time_is_not_taken_for_that_of_prompts():
    cost = StepCost()
    for tokens in (64, 128, 256, 512) * 20:
        cost.measure(0, 0, tokens, tokens * tokens / 2, tokens * 1e-3)
        cost.measure_scores(tokens, tokens * 5e-4)
    plain, scoring = cost.expected(0, 0, 256, 256 * 128), cost.expected(0, 0, 256, 256 * 128, 256)
    assert plain == pytest.approx(0.256, rel=0.05)
    assert scoring == pytest.approx(0.256 + 0.128, rel=0.05)
    budget = cost.budget(512, 1, 0, 0.15)
    assert budget.count(0, 512, scoring=True) < budget.count(0, 512) <= 150
    assert budget.count(0, 512, scoring=True) == pytest.approx(100, abs=16)
    budget.spend(96, 0, 96)
    assert budget.count(96, 512) <= 16
