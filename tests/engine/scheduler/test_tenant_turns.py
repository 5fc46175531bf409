"""Prompts of several tenants are computed in fair shares: who asks for less does not wait for who asks for more."""

from collections import Counter

import pytest
from scheduled_worker import Worker, ask

from legato_engine.scheduler.limits import SchedulerLimits
from legato_engine.scheduler.queue import Order, WaitingQueue
from legato_engine.scheduler.tenant_turns import MOST_TENANTS, TenantTurns

CHUNK = 8


@pytest.fixture
def worker():
    return Worker(num_blocks=400, chunk_tokens=CHUNK, max_length=400, max_running=16, aging=5.0)


@pytest.fixture
def send(worker):
    """Adds a prompt of so many tokens, which nobody shares; its answer is one token."""
    sent = []

    def send(tenant, tokens, **fields):
        sent.append(tokens)
        return worker.add(ask(tokens, 100 * len(sent), max_tokens=1), tenant=tenant, **fields)

    return send


def shares(worker, steps):
    """Tokens computed by tenant in so many steps."""
    before = Counter(worker.load.tokens_by_tenant)
    worker.steps(steps)
    return Counter(worker.load.tokens_by_tenant) - before


def test_a_short_prompt_goes_before_the_rest_of_a_long_one(worker, send):
    send("flood", 80)
    send("flood", 80)
    assert shares(worker, 2) == {"flood": 16}
    send("light", 12)
    assert shares(worker, 2) == {"light": 12, "flood": 4}
    assert shares(worker, 2) == {"flood": 16}


@pytest.mark.parametrize("third", [False, True])
def test_what_another_tenant_leaves_of_a_step_is_used_by_a_prompt_that_has_begun(worker, send, third):
    """Not by one whose turn is later and which would begin."""
    send("flood", 80)
    worker.step()
    send("light", 3)
    if third:
        send("third", 100)
    assert shares(worker, 1) == {"light": 3, "flood": 5}


def test_a_tenant_with_one_prompt_at_a_time_gets_no_more_than_its_share(worker, send):
    for _ in range(5):
        send("flood", 80)
    worker.step()
    shared = Counter()
    last = send("single", 16)
    for _ in range(40):
        if last.finish:
            last = send("single", 16)
        shared += shares(worker, 1)
    assert abs(shared["flood"] - shared["single"]) <= 80


def test_tenants_that_always_have_prompts_get_equal_shares(worker, send):
    for _ in range(10):
        send("large", 80)
    for _ in range(80):
        send("small", 10)
    computed = shares(worker, 60)
    assert sum(computed.values()) == 60 * CHUNK
    assert abs(computed["large"] - computed["small"]) <= 80


def test_a_tenant_that_was_away_has_no_credit(worker, send):
    for _ in range(10):
        send("first", 40)
    worker.step()
    send("second", 8)
    shares(worker, 20)
    for _ in range(10):
        send("second", 40)
    computed = shares(worker, 20)
    assert abs(computed["first"] - computed["second"]) <= 40


def test_of_one_tenant_the_older_prompt_is_computed_first(worker, send):
    send("flood", 80)
    worker.step()
    older = send("light", 20)
    worker.step()
    newer = send("light", 4, priority=1)
    worker.step()
    assert (older.computed, newer.computed) == (16, 0)


def test_priority_is_worth_as_much_waiting_as_within_a_tenant(worker, send):
    """At 1,000 tokens a second, 5 s are 5,000 tokens: nothing here comes near to that."""
    for _ in range(3):
        send("flood", 80, priority=1)
    worker.step()
    send("light", 8)
    assert shares(worker, 29)["light"] == 0
    assert shares(worker, 1) == {"light": 8}


def test_blocks_are_given_to_whoever_runs_though_it_is_not_its_turn():
    """Nobody waits for ever where a prompt that comes first does not fit beside one that has begun."""
    worker = Worker(num_blocks=12, chunk_tokens=CHUNK, max_length=400, max_running=16)
    long = worker.add(ask(40, max_tokens=1), tenant="flood")
    worker.step()
    worker.add(ask(30, 100, max_tokens=1), tenant="light")
    worker.run()
    assert long.finish


def test_a_prompt_that_begins_again_costs_its_tenant_nothing():
    queue = WaitingQueue(Order(SchedulerLimits("unified", block_size=4, max_length=64)))
    request = ask(6).request(tenant="a", uncached=6)
    for _ in range(2):
        queue.push(request)
        queue.begin(request)
    assert queue.turns["a"] == 6


def test_tenants_named_at_random_are_not_remembered():
    turns = TenantTurns()
    for number in range(3 * MOST_TENANTS):
        turns.come(f"tenant {number}", {"flood": 0.0})
    assert len(turns) <= MOST_TENANTS + 1


def test_nobody_is_remembered_when_nothing_is_here():
    turns = TenantTurns()
    turns.come("a", {})
    turns.come("b", {})
    assert len(turns) == 1
