"""Drafts: found in the text, chosen where they pay, and planned only where they disturb nobody."""

import itertools
import operator
from random import Random

import pytest
from scheduled_worker import Worker, ask

from legato_engine.scheduler.planning.step_cost import StepCost
from legato_engine.scheduler.requests.request import Request
from legato_engine.scheduler.speculation.draft_cost import DraftCost
from legato_engine.scheduler.speculation.drafter import Draft
from legato_engine.scheduler.speculation.prompt_lookup import PromptLookup
from legato_engine.scheduler.speculation.repeated_text import MOST_READ
from legato_protocol.sampling.parameters import SamplingParams

PARAMS = SamplingParams(max_tokens=9, seed=1)


def growing(text, prompt_len):
    """A drafter, and a request whose output was read token by token."""
    drafter = PromptLookup()
    request = Request("r", 1, list(text[:prompt_len]), prompt_len, PARAMS, 1e9)
    for token in text[prompt_len:]:
        drafter.propose(request, 0)
        request.tokens.append(ord(token) if isinstance(token, str) else token)
    return drafter, request


@pytest.mark.parametrize(
    ("text", "most", "expected"),
    [
        ([1, 2, 3, 4, 5, 9, 1, 2], 3, [3, 4, 5]),
        ([1, 2, 3, 4, 5, 9, 8, 2], 3, []),  # a single token is no repetition
        ([1, 2, 3, 7, 1, 2, 4, 7, 1, 2], 1, [4]),  # of equally long ones, the latest
        ([5, 1, 2, 3, 7, 6, 1, 2, 4, 7, 5, 1, 2], 1, [3]),  # the longest
        ([9, 1, 2, 1, 2, 1, 2], 5, [1, 2, 1, 2, 1]),  # a loop goes on
        ([1, 1], 2, []),
        ([1, 1026, 3, 1, 2], 2, []),  # only the hash is the same
        ([1, 1, 1], 2, [1, 1]),
    ],
)
def test_what_followed_the_same_text_is_drafted(text, most, expected):
    drafter, request = growing(text, len(text) - 1)
    assert list(drafter.propose(request, most).tokens) == expected


def test_chances_are_learned_from_every_token_drafted_or_not():
    loop, noise = growing([1, 2, 3] * 40, 3), growing([Random(5).randrange(3) for _ in range(99)] + [1, 2, 0, 1, 2], 3)
    in_loop, in_noise = (drafter.propose(request, 4).chances for drafter, request in (loop, noise))
    assert in_loop[0] > 0.95
    assert in_loop[0] ** 4 == pytest.approx(in_loop[3])
    assert in_noise[0] < 0.6
    assert all(first >= second for first, second in itertools.pairwise(in_noise))


def test_the_longer_a_repetition_is_the_likelier_it_goes_on():
    """Three tokens were equal; the drafts are taken for equal, too."""
    drafter, request = growing([1, 2, 3, 4, 9, 1, 2, 3], 6)
    expected = itertools.accumulate((0.4, 0.6, 0.6, 0.6, 0.6, 0.8), operator.mul)
    assert drafter.propose(request, 6).chances == pytest.approx(list(expected))


def test_a_long_prompt_is_read_in_parts():
    text = [*range(MOST_READ), *range(MOST_READ), 0, 1]
    drafter, request = growing(text, len(text) - 1)
    reads = [len(drafter.propose(request, 2).tokens) for _ in range(3)]
    assert reads == [0, 2, 2]


def drafts(*chances):
    return [Draft([0] * len(each), each) for each in chances]


@pytest.mark.parametrize(
    ("times", "chances", "most", "expected", "drafting"),
    [
        ({}, [(0.9, 0.8)], 9, [2], 0.0),  # not tried yet
        ({1: 1.5, 2: 1.6}, [(0.9, 0.8)], 9, [2], 0.0),
        ({1: 1.5, 2: 3.0}, [(0.9, 0.8)], 9, [1], 0.0),
        ({1: 1.5, 2: 3.0}, [(0.4, 0.3)], 9, [0], 0.0),
        ({1: 9.0, 2: 1.1}, [(0.5, 0.4)], 9, [2], 0.0),  # fewer cannot take longer than more
        ({}, [(0.9, 0.8), (0.85, 0.1)], 3, [2, 1], 0.0),  # the likeliest first
        ({}, [(), (0.9,)], 0, [0, 0], 0.0),
        ({2: 1.9}, [(0.9,), (0.9,)], 9, [1, 0], 0.0),  # 1 was not tried
        ({}, [(0.9, 0.8), (0.85, 0.7)], 9, [1, 1], 0.7),  # a pass drafts a token of each
        ({}, [(0.9, 0.8)], 9, [0], 0.95),
        ({9: 1.2, 14: 40.0}, [(0.9,) * 14], 14, [13], 0.0),  # up to 13 are not measured as 14 are
    ],
)
def test_as_many_drafts_are_verified_as_pay(times, chances, most, expected, drafting):
    cost = DraftCost()
    for count, each in times.items():
        cost.measure(len(chances), count, each, len(chances))
    assert cost.choose(drafts(*chances), most, drafting) == expected


def test_drafts_that_did_not_pay_are_tried_again_after_a_while():
    cost = DraftCost()
    cost.measure(1, 1, 2.0, 1)
    waited = next(n for n in range(1000) if cost.choose(drafts((0.5,)), 1) == [1])
    assert 100 < waited < 500


@pytest.mark.parametrize(("seconds", "most_steps"), [(0.002, 70), (0.1, 0)])
def test_a_draft_model_drafts_while_that_saves_time(seconds, most_steps):
    """Plain steps take a tenth of a second, and passes of the draft model `seconds`."""
    worker = Worker(drafts=3, max_length=200, num_blocks=128, draft_model=True)
    client = ask(6, max_tokens=150)
    worker.add(client)
    while (batch := worker.begin()) is not None:
        worker.now += sum(row.count for row in batch.drafting) * seconds or 0.1
        worker.end()
    assert client.complete
    plain = sum(not row.drafts for batch in worker.batches for row in batch.rows)
    drafting = [place for place, batch in enumerate(worker.batches) if batch.drafting]
    if most_steps:
        assert plain + len(drafting) < most_steps
        assert worker.load.decode_cost.per_step < 0.06  # of a token
    else:
        assert len(drafting) < 5
        assert drafting[-1] < 20


def test_a_draft_model_reads_a_sequence_in_parts_and_only_if_that_pays():
    worker = Worker(drafts=3, max_length=600, num_blocks=400, draft_model=True, chunk_tokens=64)
    short, long = ask(500, 100, max_tokens=8), ask(390, 600, max_tokens=150)
    for client in (ask(90, max_tokens=30), short, long):
        worker.add(client)
        while (batch := worker.begin()) is not None:
            worker.now += sum(len(row.tokens) for row in batch.drafting) * 0.005 or 0.1
            worker.end()
    read = [(row.draw.prompt_len, len(row.tokens)) for batch in worker.batches for row in batch.drafting]
    assert not any(length == 500 for length, _ in read)
    parts = [count for length, count in read if length == 390 and count > 4]
    assert (sum(parts) >= 390, max(parts) <= 64, len(parts) > 5) == (True, True, True)


def test_reported_costs_are_per_token():
    worker = Worker(drafts=3, max_length=200, num_blocks=64)
    worker.add(ask(6, max_tokens=150))
    costs = []
    while worker.begin() is not None:
        row = worker.flight.rows[0]
        worker.now += 0.15 if row.drafts else 0.1
        worker.end()
        costs.append(worker.load.decode_cost)
    assert any(row.drafts for batch in worker.batches for row in batch.rows)
    last = costs[-1]
    assert 0.02 < last.per_step + last.per_row < 0.09


def test_without_a_drafter_steps_do_not_wait_for_a_fit_of_their_cost(monkeypatch):
    monkeypatch.delattr(StepCost, "plain")
    worker, client = Worker(), ask(6, max_tokens=9)
    worker.add(client)
    worker.run(client)


def test_a_step_with_a_prompt_has_no_drafts_and_no_step_samples_more_than_its_memory_holds():
    worker = Worker(drafts=3, max_running=5, num_blocks=64, chunk_tokens=8)
    first, second = ask(6, max_tokens=30), ask(20, 100, max_tokens=30, seed=3)
    worker.add(first)
    worker.steps(2)
    worker.add(second)
    worker.run(first, second)
    for batch in worker.batches:
        assert all(row.decodes for row in batch.rows) or not any(row.drafts for row in batch.rows)
        assert sum(len(row.draws) for row in batch.rows) <= 5
    assert max(sum(row.drafts for row in batch.rows) for batch in worker.batches if len(batch.rows) == 2) == 3


def test_drafts_take_no_block_that_others_may_need():
    worker = Worker(num_blocks=6, drafts=7, max_running=4)
    client = ask(9, max_tokens=12)
    worker.add(client)
    worker.run(client)
    assert not any(row.start % 4 + len(row.tokens) > 4 for batch in worker.batches[1:] for row in batch.rows)


def test_tokens_after_a_stop_are_dropped_and_their_kv_is_not_kept():
    plain = ask(6, max_tokens=12)
    stop = plain.expected[0][2]
    worker, client = Worker(drafts=7), ask(6, max_tokens=12, stop=(stop,))
    worker.add(client)
    worker.run(client)
    assert client.got[0] == plain.expected[0][:3]
    assert (worker.counts.used, worker.idle) == (0, True)
