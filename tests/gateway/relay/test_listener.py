"""Reports of workers, and their silence, in virtual time."""

import pytest
from msgspec.structs import replace
from relay_script import Scripted, count, started

from legato_gateway.admission.limits import Quota
from legato_gateway.relay.lifecycle import Stage
from legato_gateway.routing.tiers import holder
from legato_protocol.wire import block_hash, kv_events
from legato_protocol.wire.load import TenantService
from legato_protocol.wire.stream import Lost


def _store(run):
    """Reports that the cache of u0 has another block; returns whether events were lost."""
    event = kv_events.Stored(run.workers["u0"].engine.epoch, 1, block_hash.join([b"1" * 16]))
    return run.relay.workers.kv_event("u0", event)


def _lose_core(run, worker, epoch=None, silent=False):
    run.relay.workers.received(worker.name, Lost(epoch or worker.engine.epoch, "scripted", silent))


def test_workers_that_are_not_known_change_nothing(lab):
    run = Scripted(lab, "u")
    workers, known = run.relay.workers, run.workers["u0"]
    workers.greeted("u9", known.hello())
    workers.received("u9", known.load())
    workers.received("u9", Lost("", "scripted"))
    workers.disconnected("u9", "scripted")
    for happens in (workers.silent, workers.hung, workers.kv_lost, workers.removed):
        happens("u9")
    assert [worker.name for worker in run.fleet] == ["u0"]
    run.check()


@pytest.mark.parametrize(
    ("happens", "connection", "problem", "message"),
    [
        (Scripted.hang, "hung", "it sends nothing", "u0 hangs"),
        (Scripted.cut, "connecting", "scripted", "the connection to u0 broke: scripted"),
        (_lose_core, "lost", "scripted", "the core of u0 died: scripted"),
    ],
)
def test_what_ran_on_a_worker_that_is_gone_waits_and_the_reason_is_kept(lab, happens, connection, problem, message):
    run, generation, sub = started(lab, "u")
    worker, before = run.decoding(generation), count("redispatches_total", reason="worker_lost")
    happens(run, worker)
    known = run.fleet.worker("u0")
    assert (known.connection, known.problem, known.ready) == (connection, problem, False)
    failure = sub.last_failure
    assert (sub.stage, failure.code, failure.message) == (Stage.WAITING, "peer_lost", message)
    assert count("redispatches_total", reason="worker_lost") == before + 1


@pytest.mark.parametrize(
    ("happens", "deaths"),
    [
        (Scripted.hang, 0),
        (Scripted.cut, 1),
        (_lose_core, 1),
        (lambda run, worker: _lose_core(run, worker, "another epoch"), 0),
        (lambda run, worker: _lose_core(run, worker, silent=True), 0),  # starved by other processes, perhaps
        (lambda run, worker: (run.drain(worker), run.cut(worker)), 0),  # it was to leave
    ],
)
def test_which_ends_of_a_worker_may_be_its_requests_doing(lab, happens, deaths):
    run, generation, _ = started(lab, "u", poison_deaths=5)
    happens(run, run.decoding(generation))
    assert len(generation.deaths) == deaths


def test_only_a_sequence_that_was_computed_may_have_killed_its_worker(lab):
    run, generation, sub = started(lab, "u", "u", poison_deaths=5)
    run.cut(run.workers[sub.place.decode])
    assert generation.deaths == set(), "it was only queued"
    run.connect()
    run.until(lambda: sub.stage is Stage.PREFILLING)
    run.cut(run.workers[sub.place.decode])
    assert len(generation.deaths) == 1


def test_a_worker_whose_core_is_gone_is_not_merely_silent(lab):
    run = Scripted(lab, "u")
    _lose_core(run, run.workers["u0"])
    run.relay.workers.silent("u0")
    run.relay.workers.hung("u0")
    assert run.fleet.worker("u0").connection == "lost"


def test_a_silent_worker_is_given_nothing_new_and_keeps_what_it_has(lab):
    run, generation, sub = started(lab, "u", "u", request={"max_tokens": 50})
    worker = run.decoding(generation)
    run.pause(worker)
    known = run.fleet.worker(worker.name)
    assert (known.connection, known.ready) == ("silent", False)
    assert (sub.stage, sub.attempt) == (Stage.DECODING, 1)
    assert run.sub(run.start(id="second")).place.decode != worker.name
    run.wake(worker)
    assert run.end(generation) is None
    assert run.fleet.worker(worker.name).ready
    assert generation.route.attempt == 1


def test_after_lost_events_a_worker_holds_nothing_until_its_snapshot(lab):
    run = Scripted(lab, "u")
    assert not _store(run)
    assert run.index.blocks_at("u0") == 1
    run.relay.workers.kv_lost("u0")
    assert run.index.blocks_at("u0") == 0
    snapshot = kv_events.Snapshot(run.workers["u0"].engine.epoch, 2, 0, True, block_hash.join([b"x" * 16, b"y" * 16]))
    assert not run.relay.workers.kv_event("u0", snapshot)
    assert run.index.blocks_at("u0") == 2


def test_a_slower_tier_is_indexed_apart_from_the_arena_and_lost_with_the_worker(lab):
    """It is expected from a worker that says so, with the numbers of its own events."""
    run = Scripted(lab, "u")
    worker, hashes = run.workers["u0"], [b"1" * 16, b"2" * 16]
    hello = replace(worker.hello(), epoch="another", tiers=(kv_events.HOST,))
    run.relay.workers.greeted("u0", hello)
    for tier, known in ((kv_events.ARENA, hashes[:1]), (kv_events.HOST, hashes)):
        page = kv_events.Snapshot("another", 0, 0, True, block_hash.join(known), tier)
        assert not run.relay.workers.kv_event("u0", page)
    assert run.index.match(hashes) == {"u0": 1, holder("u0", kv_events.HOST): 2}
    run.relay.workers.kv_event("u0", kv_events.Removed("another", 1, hashes[1], kv_events.HOST))
    assert run.index.match(hashes) == {"u0": 1, holder("u0", kv_events.HOST): 1}
    run.relay.workers.removed("u0")
    assert run.index.match(hashes) == {}


@pytest.mark.parametrize("removed", [True, False])
def test_a_worker_that_is_gone_holds_nothing(lab, removed):
    run = Scripted(lab, "u")
    _store(run)
    if removed:
        run.cut(run.workers["u0"])
        run.relay.workers.removed("u0")
        assert run.sub(run.start()).stage is Stage.PENDING, "without any worker requests wait for one"
    else:
        _lose_core(run, run.workers["u0"])
    assert (run.fleet.worker("u0") is None) is removed
    assert run.index.blocks_at("u0") == 0


def test_bad_frames_and_foreign_workers_are_counted_by_worker(lab):
    def counts():
        return [count(name, worker="u0") for name in ("bad_frames_total", "foreign_workers_total")]

    run, before = Scripted(lab, "u"), counts()
    run.relay.workers.bad_frame("u0", "scripted")
    for model in ("another", "fake"):
        run.greet("u0", model=model)
    assert counts() == [number + 1 for number in before]


def test_the_service_of_a_tenant_by_other_gateways_counts_against_its_quota(lab):
    run = Scripted(lab, "u", quotas={"a": Quota(rate=1, burst=100)})
    served = {"a": TenantService(prompt=100)}
    run.relay.workers.received("u0", replace(run.workers["u0"].load(), served_elsewhere=served))
    assert run.start(tenant="a").route.finish == "rate_limit_exceeded"
