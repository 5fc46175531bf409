"""Counts of demand, and a gateway without any worker: it queues requests until admission lets them go to one."""

import pytest
from msgspec.structs import replace
from relay_script import Scripted, error_of, started

from legato_gateway.admission.demand import Demand, LengthCounter
from legato_gateway.admission.ticket import QUEUE_FULL
from legato_gateway.errors import BadRequest, Overloaded
from legato_gateway.relay.lifecycle import Stage
from legato_gateway.routing.choose import Policy
from legato_protocol.wire.demand import LengthBucket


def test_lengths_are_counted_in_powers_of_two():
    counter = LengthCounter()
    for tokens in (0, 1, 2, 3, 4, 5, 8, 9, 1000):
        counter.add(tokens)
    buckets = [(0, 1, 0), (1, 1, 1), (2, 2, 5), (4, 2, 9), (8, 2, 17), (512, 1, 1000)]
    assert counter.buckets() == tuple(LengthBucket(*bucket) for bucket in buckets)


def test_the_wait_of_the_first_request_is_counted_by_its_cause():
    demand = Demand()
    for cause, now in ((None, 1.0), ("prefill", 2.0), ("decode_room", 5.0)):
        demand.head(cause, now)
    assert demand.head_wait(9.0) == {"prefill": 3.0, "decode_room": 4.0, "credits": 0.0, "no_worker": 0.0}
    assert demand.head_wait(10.0)["decode_room"] == 5.0
    demand.head(None, 11.0)
    assert demand.head_wait(99.0)["decode_room"] == 6.0


def test_the_first_queued_request_is_announced_once():
    announced = []
    demand = Demand(lambda: announced.append(demand._cause))
    for cause in (None, "no_worker", "no_worker", "prefill", None, None, "credits"):
        demand.head(cause, 1.0)
    demand.head_wait(2.0)
    assert announced == ["no_worker", "credits"]


def test_a_request_is_counted_once_however_it_ends_and_what_is_cached_is_no_demand(lab):
    run, first, _ = started(lab, "u", request={"max_tokens": 3})
    assert run.end(first) is None
    again, left = run.start(max_tokens=4), run.start(prompt=tuple(range(100, 200)))
    assert run.demand().waiting == (LengthBucket(4, 1, 4), LengthBucket(64, 1, 100))
    run.relay.leave(left)
    assert run.end(again) is None
    report = run.demand()
    assert report.arrivals == (LengthBucket(4, 1, 4), LengthBucket(64, 2, 200))
    assert (report.outputs, report.output_squares) == ((LengthBucket(2, 1, 3), LengthBucket(4, 1, 4)), 25)
    assert (report.waiting, report.queued_requests) == ((), 0)


def test_refused_requests_are_no_arrivals(lab):
    run = Scripted(lab, "u")
    assert run.start(max_tokens=20_000).ended
    assert (run.demand().arrivals, run.demand().refused) == ((), {"too_large": 1})


def test_more_choices_than_any_worker_runs_concurrently_are_the_requests_own_fault(lab):
    run = Scripted(lab, "u", "d")
    run.relay._dispatcher._policy = Policy(0, "Local")
    for name, slots in (("u0", 4), ("d1", 6)):
        run.fleet.loaded(name, replace(run.workers[name].load(), slots=slots))
    with pytest.raises(BadRequest, match="7 choices of one prompt; at most 6 run concurrently") as refused:
        raise error_of(run.start(choices=7))
    assert refused.value.param == "n"
    assert not run.demand().refused
    assert run.start(choices=6).route.decode == "d1"


def test_each_worker_is_reported_with_the_age_of_its_load(lab):
    run = Scripted(lab, "p", "d")
    run.load(run.workers["d1"])
    run.time.advance(5.0)
    run.relay.workers.received("p0", run.workers["p0"].load())
    loads = [(each.worker, each.role, round(each.age, 6)) for each in run.demand().workers]
    assert loads == [("p0", "prefill", 0.0), ("d1", "decode", 5.01)]
    assert all(each.load == run.fleet.worker(each.worker).load for each in run.demand().workers)


def _without_workers(lab, *roles):
    """The former workers are gone; those of the script appear when `_appear` is called."""
    run = Scripted(lab, *roles)
    for worker in run.workers.values():
        worker.renew()
        run.cut(worker)
        run.relay.workers.removed(worker.name)
    assert not list(run.fleet)
    return run


def _appear(run, name):
    run.fleet.add(name, name)
    run._connect(run.workers[name])


def _ends(run, generations):
    run.until(lambda: all(each.ended for each in generations))
    return [error_of(each) for each in generations]


def test_requests_are_queued_reported_and_answered_by_the_first_worker_as_it_has_credits(lab):
    run = _without_workers(lab, "u")
    queued = [run.start(max_tokens=5) for _ in range(8)]
    run.run(100, seconds=1.0)
    report = run.demand()
    assert (report.queued_requests, report.queued_tokens, report.arrivals[0].requests) == (8, 800, 8)
    assert report.head_wait["no_worker"] == pytest.approx(100, rel=0.1)
    _appear(run, "u0")
    run.load(run.workers["u0"])
    assert [each for each in queued if run.sub(each).stage is Stage.PENDING] == queued[6:]
    assert _ends(run, queued) == [None] * 8
    assert run.demand().queued_requests == 0


def test_requests_beyond_the_buffer_are_refused_with_a_time_to_come_back(lab):
    """The scripted gateway queues eight; none of these is lost, and a client that leaves makes room."""
    run = _without_workers(lab, "u")
    requests = [run.start(max_tokens=5) for _ in range(12)]
    refused = [error_of(each) for each in requests[8:]]
    assert {(type(each), each.reason) for each in refused} == {(Overloaded, QUEUE_FULL)}
    assert all(int(each.headers["retry-after"]) >= 1 for each in refused)
    run.relay.leave(requests[0])
    assert (run.admission.queued, run.demand().queued_requests, run.demand().arrivals[0].requests) == (7, 7, 8)
    requests[8:] = [run.start(max_tokens=5)]
    assert not requests[8].ended
    _appear(run, "u0")
    assert _ends(run, requests[1:]) == [None] * 8


def test_decode_workers_prefill_until_a_prefill_worker_is_there_and_after_the_last_has_left(lab):
    run = _without_workers(lab, "p", "d")
    run.relay._dispatcher._policy = Policy(0, "Local")
    first = run.start(max_tokens=200)
    _appear(run, "d1")
    run.decoding(first)
    _appear(run, "p0")
    run.load(run.workers["p0"])
    second = run.start(max_tokens=200)
    run.decoding(second)
    run.cut(run.workers["p0"])
    run.relay.workers.removed("p0")
    third = run.start(max_tokens=5)
    assert _ends(run, [first, second, third]) == [None] * 3
    assert [(each.route.prefill, each.route.decode) for each in (first, second, third)] == [
        ("local", "d1"),
        ("p0", "d1"),
        ("local", "d1"),
    ]
