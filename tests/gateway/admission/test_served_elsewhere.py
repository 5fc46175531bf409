"""What tenants are served through other gateways counts here: shares and quotas are of the service."""

import pytest
from tests.support.admission import BUSY, FREE, held, room, ticket

from legato_gateway.admission.limits import AdmissionLimits, Quota
from legato_gateway.admission.queue import Admission
from legato_gateway.admission.tenant_counters import MAX_TENANTS
from legato_gateway.admission.ticket import Admit, Refuse
from legato_protocol.load import TenantService


def drained(queue: Admission, count: int) -> list[str]:
    """The first `count` held requests that start, with room for one at a time."""
    order = []
    for _ in range(count):
        (id,) = queue.next(room(11), 0)
        queue.finished(id, 0)
        order.append(id)
    return order


def test_a_tenant_waits_for_what_it_was_served_elsewhere():
    queue = held(*(ticket(f"{tenant}{i}", tenant) for i in range(4) for tenant in "ab"))
    queue.served_elsewhere({"a": TenantService(prompt=100, output=50)}, 0)
    assert drained(queue, 4) == ["b0", "b1", "a0", "b2"]
    queue.check_integrity()


def test_a_tenant_that_nobody_knew_here_gets_no_credit_for_the_time_before():
    queue = held(*(ticket(f"a{i}", "a") for i in range(30)))
    drained(queue, 10)
    queue.served_elsewhere({"b": TenantService(prompt=300)}, 0)
    for i in range(10):
        queue.offer(ticket(f"b{i}", "b"), BUSY, 0)
    assert [id[0] for id in drained(queue, 8)] == list("aaaababa")


def test_a_tenant_that_is_served_little_elsewhere_does_not_wait_for_it():
    queue = Admission()
    queue.served_elsewhere({"b": TenantService(prompt=1)}, 0)
    for i in range(20):
        queue.offer(ticket(f"f{i}", "flood"), BUSY, 0)
    drained(queue, 10)
    queue.served_elsewhere({"b": TenantService(prompt=50)}, 0)
    queue.offer(ticket("b0", "b"), BUSY, 0)
    assert drained(queue, 1) == ["b0"]


def test_a_tenant_that_was_idle_begins_where_those_served_elsewhere_are():
    """Or else they would wait until it had as much as they had in all the time before."""
    queue = Admission()
    queue.served_elsewhere({"b": TenantService(prompt=10_000)}, 0)
    for i in range(10):
        queue.offer(ticket(f"a{i}", "a"), BUSY, 0)
    for i in range(10):
        queue.offer(ticket(f"b{i}", "b"), BUSY, 0)
    assert sorted(id[0] for id in drained(queue, 4)) == list("aabb")


@pytest.mark.parametrize("known", [False, True])
def test_a_quota_is_used_up_elsewhere_too(known):
    queue = Admission(AdmissionLimits(quotas={"*": Quota(rate=1, burst=100)}, output_weight=2))
    if known:
        queue.offer(ticket("a", tokens=10), FREE, 0)
    queue.served_elsewhere({"t": TenantService(prompt=50, output=20)}, 0)
    assert isinstance(queue.offer(ticket("b", tokens=5), FREE, 0), Admit if not known else Refuse)
    queue.served_elsewhere({"t": TenantService(output=10)}, 0)
    decision = queue.offer(ticket("c", tokens=10), FREE, 0)
    assert isinstance(decision, Refuse)
    assert decision.quota
    assert isinstance(queue.offer(ticket("d", tokens=10), FREE, 60), Admit)


def test_tenants_that_others_serve_do_not_fill_the_memory():
    queue = Admission(AdmissionLimits(quotas={"*": Quota(rate=1, burst=100)}))
    for i in range(MAX_TENANTS + 100):
        queue.served_elsewhere({f"tenant {i}": TenantService(1)}, 0)
    assert max(len(queue._counters), len(queue._buckets)) <= MAX_TENANTS
