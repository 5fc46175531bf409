"""What is counted of demand, and how long the first held request waited for what."""

import pytest

from legato_gateway.errors import BadRequest
from legato_gateway.relay.demand import Demand, LengthCounter
from legato_protocol.demand import LengthBucket


def test_lengths_are_counted_in_powers_of_two():
    counter = LengthCounter()
    for tokens in (0, 1, 2, 3, 4, 5, 8, 9, 1000):
        counter.add(tokens)
    assert counter.buckets() == (
        LengthBucket(0, 1, 0),
        LengthBucket(1, 1, 1),
        LengthBucket(2, 2, 5),
        LengthBucket(4, 2, 9),
        LengthBucket(8, 2, 17),
        LengthBucket(512, 1, 1000),
    )


def test_the_wait_of_the_head_is_counted_by_what_it_waited_for():
    demand = Demand()
    demand.head(None, 1.0)
    demand.head("prefill", 2.0)
    demand.head("decode_room", 5.0)
    assert demand.head_wait(9.0) == {"prefill": 3.0, "decode_room": 4.0, "credits": 0.0, "no_worker": 0.0}
    assert demand.head_wait(10.0)["decode_room"] == 5.0
    demand.head(None, 11.0)
    assert demand.head_wait(99.0)["decode_room"] == 6.0


def test_the_first_of_the_held_requests_is_told_of_once():
    told = []
    demand = Demand(lambda: told.append(demand._cause))
    for cause in (None, "no_worker", "no_worker", "prefill", None, None, "credits"):
        demand.head(cause, 1.0)
    demand.head_wait(2.0)
    assert told == ["no_worker", "credits"]


def test_squares_give_the_deviation_of_lengths():
    demand = Demand()
    for tokens in (3, 4):
        demand.finished(tokens)
    assert (demand.outputs.buckets(), demand.output_squares) == ((LengthBucket(2, 1, 3), LengthBucket(4, 1, 4)), 25)


async def test_a_request_is_counted_once_however_it_ends(lab):
    async with lab.running(lab.pools(1, 1)) as gateway:
        await gateway.submit(max_tokens=20).read()
        reader = gateway.submit(max_tokens=20, id="left", prompt=tuple(range(100, 200)))
        assert [bucket.requests for bucket in gateway.demand.report().waiting] == [1]
        await reader.generation.cancel()
        report = gateway.demand.report()
        assert report.arrivals == (LengthBucket(64, 2, 200),)
        assert report.outputs == (LengthBucket(16, 1, 20),)
        assert (report.waiting, report.held_requests) == ((), 0)


async def test_what_is_cached_is_no_demand(lab):
    async with lab.running(lab.unified(1)) as gateway:
        await gateway.submit().read()
        known = gateway.index.blocks
        await gateway.until(lambda: gateway.index.blocks > 0 or known > 0)
        await gateway.submit(id="again").read()
        first, second = sorted(bucket.tokens for bucket in gateway.demand.report().arrivals)
        assert first < second == 100


async def test_refused_requests_are_no_arrivals(lab):
    async with lab.running(lab.unified(1, num_blocks=5)) as gateway:
        reader = gateway.submit()
        with pytest.raises(Exception, match="no worker can hold"):
            await reader.read()
        report = gateway.demand.report()
        assert (report.arrivals, report.refused) == ((), {"too_large": 1})


async def test_more_choices_than_any_worker_runs_at_once_are_the_requests_own_fault(lab):
    async with lab.running([*lab.unified(1, slots=4), *lab.pools(0, 1, slots=6)]) as gateway:
        await gateway.until(lambda: all(worker.slots for worker in gateway.fleet.snapshot().workers))
        with pytest.raises(BadRequest, match="7 choices of one prompt; at most 6 run at once") as refused:
            await gateway.submit(choices=7).read()
        assert refused.value.param == "n"
        assert not gateway.demand.report().refused
        await gateway.submit(choices=6).read()  # not by the one that could not


async def test_each_worker_is_told_of_with_the_age_of_its_load(lab):
    async with lab.running(lab.pools(1, 1)) as gateway:
        loads = gateway.demand.report().workers
        assert [(told.worker, told.role) for told in loads] == [("p0", "prefill"), ("d0", "decode")]
        assert all(told.age < 5 and told.load == gateway.fleet.worker(told.worker).load for told in loads)
