"""What becomes of what workers say, and of their silence, in virtual time."""

import pytest
from msgspec.structs import replace
from relay_script import Scripted, count

from legato_gateway.admission.limits import Quota
from legato_gateway.relay.lifecycle import Stage
from legato_protocol import block_hash, kv_events
from legato_protocol.load import TenantService
from legato_protocol.stream import HandoffReport, Lost


def _store(run, name, number):
    """The worker tells that its cache holds another block; returns whether events were lost."""
    hashes = block_hash.join([bytes([number]) * 16])
    return run.relay.workers.kv_event(name, kv_events.Stored(run.workers[name].engine.epoch, number, hashes))


def test_workers_that_are_not_known_change_nothing(lab):
    run = Scripted(lab, "u")
    workers = run.relay.workers
    for happens in (
        lambda: workers.greeted("u9", run.workers["u0"].hello()),
        lambda: workers.received("u9", run.workers["u0"].load()),
        lambda: workers.received("u9", Lost("", "scripted")),
        lambda: workers.silent("u9"),
        lambda: workers.hung("u9"),
        lambda: workers.disconnected("u9", "scripted"),
        lambda: workers.kv_lost("u9"),
        lambda: workers.removed("u9"),
    ):
        happens()
    assert [worker.name for worker in run.fleet] == ["u0"]
    run.check()


@pytest.mark.parametrize(
    ("happens", "connection", "problem", "message"),
    [
        (lambda run: run.hang(run.workers["u0"]), "hung", "it sends nothing", "u0 hangs"),
        (lambda run: run.cut(run.workers["u0"]), "connecting", "scripted", "the connection to u0 broke: scripted"),
        (
            lambda run: run.relay.workers.received("u0", Lost(run.workers["u0"].engine.epoch, "scripted")),
            "lost",
            "scripted",
            "the core of u0 died: scripted",
        ),
    ],
)
def test_what_ran_on_a_worker_that_is_gone_waits_and_the_reason_is_kept(lab, happens, connection, problem, message):
    run = Scripted(lab, "u")
    generation = run.start()
    run.decoding(generation)
    before = count("redispatches_total", reason="worker_lost")
    happens(run)
    known = run.fleet.worker("u0")
    assert (known.connection, known.problem, known.ready) == (connection, problem, False)
    sub = run.sub(generation)
    assert sub.stage is Stage.WAITING
    assert (sub.last_failure.code, sub.last_failure.message) == ("peer_lost", message)
    assert count("redispatches_total", reason="worker_lost") == before + 1


@pytest.mark.parametrize(
    ("happens", "deaths"),
    [
        (lambda run, worker: run.hang(worker), 0),
        (lambda run, worker: run.cut(worker), 1),
        (lambda run, worker: run.relay.workers.received(worker.name, Lost(worker.engine.epoch, "?")), 1),
        (lambda run, worker: run.relay.workers.received(worker.name, Lost("another epoch", "?")), 0),
        (lambda run, worker: (run.drain(worker), run.load(worker), run.cut(worker)), 0),  # it had been told to go
    ],
)
def test_which_ends_of_a_worker_may_be_its_requests_doing(lab, happens, deaths):
    run = Scripted(lab, "u", poison_deaths=5)
    generation = run.start()
    happens(run, run.decoding(generation))
    assert len(generation.deaths) == deaths


def test_only_a_sequence_that_was_computed_may_have_killed_its_worker(lab):
    run = Scripted(lab, "u", "u", poison_deaths=5)
    generation = run.start()
    run.cut(run.workers[run.sub(generation).place.decode])
    assert generation.deaths == set(), "it was only queued"
    run.connect()
    run.until(lambda: run.sub(generation).stage is Stage.PREFILLING)
    run.cut(run.workers[run.sub(generation).place.decode])
    assert len(generation.deaths) == 1


def test_a_worker_whose_core_is_gone_is_not_merely_silent(lab):
    run = Scripted(lab, "u")
    run.relay.workers.received("u0", Lost(run.workers["u0"].engine.epoch, "scripted"))
    run.relay.workers.silent("u0")
    run.relay.workers.hung("u0")
    assert run.fleet.worker("u0").connection == "lost"


def test_a_silent_worker_is_given_nothing_new_and_keeps_what_it_has(lab):
    run = Scripted(lab, "u", "u")
    generation = run.start(max_tokens=50)
    worker = run.decoding(generation)
    run.pause(worker)
    known = run.fleet.worker(worker.name)
    assert (known.connection, known.ready) == ("silent", False)
    assert (run.sub(generation).stage, run.sub(generation).attempt) == (Stage.DECODING, 1)
    second = run.start(id="second")
    assert run.sub(second).place.decode != worker.name
    run.wake(worker)
    run.until(lambda: generation.ended)
    assert run.fleet.worker(worker.name).ready
    assert generation.route.attempt == 1


def test_after_lost_events_a_worker_holds_nothing_until_its_snapshot(lab):
    run = Scripted(lab, "u")
    assert not _store(run, "u0", 1)
    assert run.index.held("u0") == 1
    run.relay.workers.kv_lost("u0")
    assert run.index.held("u0") == 0
    snapshot = kv_events.Snapshot(run.workers["u0"].engine.epoch, 2, 0, True, block_hash.join([b"x" * 16, b"y" * 16]))
    assert not run.relay.workers.kv_event("u0", snapshot)
    assert run.index.held("u0") == 2


@pytest.mark.parametrize("happens", ["removed", "lost"])
def test_a_worker_that_is_gone_holds_nothing(lab, happens):
    run = Scripted(lab, "u")
    _store(run, "u0", 1)
    if happens == "removed":
        run.cut(run.workers["u0"])
        run.relay.workers.removed("u0")
        assert run.fleet.worker("u0") is None
    else:
        run.relay.workers.received("u0", Lost(run.workers["u0"].engine.epoch, "scripted"))
    assert run.index.held("u0") == 0


def test_without_any_worker_requests_wait_for_one(lab):
    run = Scripted(lab, "u")
    run.cut(run.workers["u0"])
    run.relay.workers.removed("u0")
    assert run.sub(run.start()).stage is Stage.HELD


def test_bad_frames_and_foreign_workers_are_counted_by_worker(lab):
    run = Scripted(lab, "u")
    before = [count(name, worker="u0") for name in ("bad_frames_total", "foreign_workers_total")]
    run.relay.workers.bad_frame("u0", "scripted")
    for model in ("another", "fake"):
        run.relay.workers.greeted("u0", replace(run.workers["u0"].hello(), model=model))
    after = [count(name, worker="u0") for name in ("bad_frames_total", "foreign_workers_total")]
    assert [now - was for now, was in zip(after, before, strict=True)] == [1, 1]


def test_a_committed_hand_off_moves_its_sequence_and_is_noted(lab):
    run = Scripted(lab, "u", "u")
    generation = run.start()
    source = run.draining(generation)
    sub = run.sub(generation)
    target = sub.target.decode
    counts = lambda: (count("migrations_total", reason="draining"), count("handoff_seconds_count"))  # noqa: E731
    before = counts()
    for attempt, stage in ((1, Stage.MIGRATING), (2, Stage.DECODING)):
        report = HandoffReport(sub.id, attempt, 1, source.name, 7, 0, 7000, 0.2, 0.1, "memory")
        run.relay.workers.received(target, report)
        assert sub.stage is stage
    assert (sub.place.decode, sub.place.attempt) == (target, 2)
    assert (generation.route.decode, generation.route.attempt) == (target, 2)
    assert [handoff["target"] for handoff in generation.route.handoffs] == [target, target]
    assert counts() == (before[0] + 1, before[1] + 2)


def test_what_other_gateways_serve_a_tenant_counts_against_its_quota(lab):
    run = Scripted(lab, "u", quotas={"a": Quota(rate=1, burst=100)})
    served = {"a": TenantService(prompt=100)}
    run.relay.workers.received("u0", replace(run.workers["u0"].load(), served_elsewhere=served))
    generation = run.start(tenant="a")
    assert generation.route.finish == "rate_limit_exceeded"
