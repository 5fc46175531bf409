"""What was sent to a worker is soon in its cache: until it says so, that is predicted."""

import dataclasses

import pytest
from msgspec.structs import replace
from relay_script import Scripted

from legato_gateway.routing.fleet_snapshot import FleetSnapshot
from legato_gateway.routing.predicted_prefixes import PREDICTED_SECONDS, SETTLING_SECONDS
from legato_gateway.routing.prefix_hashes import Hashing
from legato_protocol.stream import Failed, Prefill

SHARED = tuple(range(3200))


def _burst(run, count, prefix=SHARED):
    """Requests, and the workers of their prefills. The prefix is one that nobody holds; no worker says a word."""
    before = len(run.told(Prefill))
    generations = [run.start(prompt=prefix + (7,) * (20 + i)) for i in range(count)]
    return generations, [name for name, _ in run.told(Prefill)[before:]]


def test_a_burst_on_a_new_prefix_is_computed_where_its_first_request_is(lab):
    run = Scripted(lab, "p", "p", "p", "d", "d")
    _, workers = _burst(run, 6)
    assert len(workers) == 6
    assert len(set(workers)) == 1
    assert run.view(workers[0]).pending_tokens < 3200 + 6 * 60, "the shared prefix is computed once"
    _, others = _burst(run, 1, tuple(range(1, 3201)))
    assert others[0] not in workers


def test_a_long_queue_is_worth_computing_the_prefix_elsewhere(lab):
    run = Scripted(lab, "p", "p", "d", "d")
    _, (worker,) = _burst(run, 1)
    view = run.view(worker)
    busy = replace(run.workers[worker].load(), queue_tokens=view.backlog + 4000)
    run.relay.workers.received(worker, busy)
    run.relay.workers.received(worker, busy)
    _, (other,) = _burst(run, 1)
    assert other != worker


@pytest.mark.parametrize("end", ["failed", "left", "expired", "computed", "epoch"])
def test_a_prediction_ends_with_its_attempt(lab, end):
    run = Scripted(lab, "p", "d")
    predicted = run.relay._dispatcher._predicted
    (generation,), (worker,) = _burst(run, 1)
    sub = run.sub(generation)
    assert len(predicted) == 1
    if end == "failed":
        run.relay.workers.received(worker, Failed(sub.id, 1, "internal", "scripted", "prefill", False))
    elif end == "left":
        run.relay.leave(generation)
    elif end == "expired":
        run.time.advance(PREDICTED_SECONDS)
    elif end == "computed":
        run.decoding(generation)
        run.time.advance(SETTLING_SECONDS)
    elif end == "epoch":
        run.workers[worker].renew()
        run.greet(worker)
        assert run.sub(generation).place.epochs[worker] == run.workers[worker].engine.epoch
        found = predicted.match(sub.generation.hashes.of(sub.generation.prompt, Hashing("r", 16)), run.time.now)
        assert [epoch for _, epoch in found] == [run.workers[worker].engine.epoch]
        return
    assert run.relay._dispatcher._predictions(sub, run.fleet.snapshot()) == {}
    assert len(predicted) == 0


def test_a_prediction_of_another_epoch_is_worth_nothing(lab):
    run = Scripted(lab, "p", "d")
    (generation,), (worker,) = _burst(run, 1)
    dispatcher, sub = run.relay._dispatcher, run.sub(generation)
    assert dispatcher._predictions(sub, run.fleet.snapshot()) == {worker: 201}
    views = [dataclasses.replace(view, epoch="another") for view in run.fleet.snapshot().workers]
    assert dispatcher._predictions(sub, FleetSnapshot(tuple(views))) == {}
