"""Counts by tenant are bounded, and no token is lost from them."""

from scheduled_worker import Client, Worker

from legato_engine.scheduler.tenants import MOST_TENANTS, OTHERS, TenantTokens


def test_names_that_clients_make_up_do_not_pile_up():
    tokens = TenantTokens()
    for number in range(1000):
        tokens.add({"regular": 2, f"made up {number}": 3})
    counts = tokens.counts()
    assert len(counts) == MOST_TENANTS + 1
    assert counts["regular"] == 2000
    assert sum(counts.values()) == 5000
    assert counts[OTHERS] == 3 * (1000 - MOST_TENANTS + 1)


def test_a_step_with_more_tenants_than_are_named_counts_all():
    worker = Worker(num_blocks=200, chunk_tokens=400, max_running=100)
    for number in range(MOST_TENANTS + 8):
        worker.add(Client((number, number + 1, 5), max_tokens=1), tenant=f"t{number}")
    worker.run()
    counts = worker.load.tokens_by_tenant
    assert (len(counts), sum(counts.values())) == (MOST_TENANTS + 1, 3 * (MOST_TENANTS + 8))


def test_a_tenant_called_as_the_others_are_is_one_of_them():
    tokens = TenantTokens()
    tokens.add({OTHERS: 1})
    tokens.add({f"t{number}": 1 for number in range(MOST_TENANTS)})
    tokens.add({OTHERS: 1})
    assert tokens.counts()[OTHERS] == 3
