"""Prompts of several tenants are computed in fair shares: small demand does not wait for large demand. Counts by tenant
are bounded, and no token is lost from them."""

from collections import Counter

import pytest
from scheduled_worker import Worker, ask

from legato_engine.scheduler.queueing.fair_queueing import MOST_TENANTS, FairQueueing
from legato_engine.scheduler.queueing.queue import Order, WaitingQueue
from legato_engine.scheduler.queueing.tenants import ADDRESSES, OTHERS, TenantTokens
from legato_engine.scheduler.queueing.tenants import MOST_TENANTS as MOST_COUNTED
from legato_engine.scheduler.requests.limits import SchedulerLimits

CHUNK = 8


@pytest.fixture
def worker():
    return Worker(num_blocks=400, chunk_tokens=CHUNK, max_length=400, max_running=16, aging=5.0)


@pytest.fixture
def send(worker):
    """Adds prompts of this many tokens, which nobody shares; their answers are one token."""
    sent = []

    def send(tenant, tokens, count=1, **fields):
        for _ in range(count):
            sent.append(tokens)
            request = worker.add(ask(tokens, 100 * len(sent), max_tokens=1), tenant=tenant, **fields)
        return request

    return send


def shares(worker, steps):
    before = Counter(worker.load.tokens_by_tenant)
    worker.steps(steps)
    return Counter(worker.load.tokens_by_tenant) - before


def test_a_short_prompt_goes_before_the_rest_of_a_long_one(worker, send):
    send("flood", 80, count=2)
    assert shares(worker, 2) == {"flood": 16}
    send("light", 12)
    assert [shares(worker, 2), shares(worker, 2)] == [{"light": 12, "flood": 4}, {"flood": 16}]


@pytest.mark.parametrize("third", [False, True])
def test_what_another_tenant_leaves_of_a_step_is_used_by_a_prompt_that_has_begun(worker, send, third):
    """Not by one of a later tenant that would begin."""
    send("flood", 80)
    worker.step()
    send("light", 3)
    if third:
        send("third", 100)
    assert shares(worker, 1) == {"light": 3, "flood": 5}


def test_a_tenant_with_one_prompt_at_a_time_gets_no_more_than_its_share(worker, send):
    send("flood", 80, count=5)
    worker.step()
    shared = Counter()
    last = send("single", 16)
    for _ in range(40):
        if last.finish:
            last = send("single", 16)
        shared += shares(worker, 1)
    assert abs(shared["flood"] - shared["single"]) <= 80


def test_tenants_that_always_have_prompts_get_equal_shares(worker, send):
    send("large", 80, count=10)
    send("small", 10, count=80)
    computed = shares(worker, 60)
    assert sum(computed.values()) == 60 * CHUNK
    assert abs(computed["large"] - computed["small"]) <= 80


def test_a_tenant_that_was_away_has_no_credit(worker, send):
    send("first", 40, count=10)
    worker.step()
    send("second", 8)
    shares(worker, 20)
    send("second", 40, count=10)
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
    send("flood", 80, count=3, priority=1)
    worker.step()
    send("light", 8)
    assert shares(worker, 29)["light"] == 0
    assert shares(worker, 1) == {"light": 8}


def test_blocks_are_given_to_a_running_prompt_also_before_its_tenant_is_next():
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
    assert queue.fair["a"] == 6


def test_tenants_named_at_random_are_not_remembered():
    fair = FairQueueing()
    for number in range(3 * MOST_TENANTS):
        fair.arrive(f"tenant {number}", {"flood": 0.0})
    assert len(fair) <= MOST_TENANTS + 1


def test_names_that_clients_make_up_do_not_pile_up_in_counts():
    tokens = TenantTokens()
    for number in range(1000):
        tokens.add({"regular": 2, f"made up {number}": 3, f"address 10.0.0.{number}": 1})
    counts = tokens.counts()
    assert (len(counts), counts["regular"], sum(counts.values())) == (MOST_COUNTED + 1, 2000, 6000)
    assert (counts[ADDRESSES], counts[OTHERS]) == (1000, 3 * (1000 - MOST_COUNTED + 2))


def test_a_step_with_more_tenants_than_are_named_counts_all():
    worker, tenants = Worker(num_blocks=200, chunk_tokens=400, max_running=100), range(MOST_COUNTED + 8)
    for number in tenants:
        worker.add(ask(3, number, max_tokens=1), tenant=f"t{number}")
    worker.run()
    counts = worker.load.tokens_by_tenant
    assert (len(counts), sum(counts.values())) == (MOST_COUNTED + 1, 3 * len(tenants))


def test_a_tenant_with_the_name_of_the_others_is_one_of_them():
    tokens = TenantTokens()
    for counted in ({OTHERS: 1}, {f"t{number}": 1 for number in range(MOST_COUNTED)}, {OTHERS: 1}):
        tokens.add(counted)
    assert tokens.counts()[OTHERS] == 3
