"""Sequences with adapters on whole cores: each computes with its own, however many there are, wherever it goes."""

import msgspec
import pytest
from adapted_cores import Adapted, Loads

from legato_protocol.wire.stream import Cancel, Decode, Generate, Prefill


def test_a_running_sequence_migrates_with_its_adapter(adapted, world):
    old, new = adapted.worker("a"), adapted.worker("b")
    adapted.ask(old, "r", "c", max_tokens=30)
    adapted.until(lambda: len(old.tokens()) > 3)
    sent = old.tokens()
    known = adapted.sequence("c", [*world.prompt, *sent], max_tokens=30)
    world.migrate(old, new, msgspec.structs.replace(known, prompt_len=len(world.prompt)))
    adapted.until(lambda: new.finished(attempt=2))
    assert [*sent, *new.tokens(attempt=2)] == adapted.expected("c", count=30)


def test_preempted_sequences_are_computed_again_with_their_adapters(adapted):
    worker = adapted.worker(blocks=22, growth_tokens=0, max_running=4)
    for name in "abc":  # so that all begin together
        adapted.ask(worker, f"warm-{name}", name, [1, 2, 3], max_tokens=1)
        adapted.finish(worker, f"warm-{name}")
    worker.send(*[Generate(f"r{name}", 1, adapted.sequence(name, max_tokens=20)) for name in ("a", "b", "", "c")])
    adapted.finish(worker, "ra", "rb", "r", "rc")
    assert worker.status.totals.preemptions > 0
    for name in ("a", "b", "", "c"):
        assert worker.tokens(f"r{name}") == adapted.expected(name, count=20)


def test_steps_go_on_while_an_adapter_is_loaded(adapted):
    worker = adapted.worker()
    adapted.loads.gate.clear()
    worker.send(Generate("slow", 1, adapted.sequence("a")), Generate("r", 1, adapted.sequence()))
    adapted.until(worker.finished)
    assert worker.items("slow") == []
    assert (worker.status.load.waiting, worker.status.idle) == (1, False)
    adapted.loads.gate.set()
    adapted.finish(worker, "slow")
    assert worker.status.load.adapters == ("digest-a",)


def test_the_least_recently_used_is_pushed_out_and_loaded_again(adapted):
    worker = adapted.worker(adapters_in_memory=2)
    for number, name in enumerate("abacab"):
        adapted.serve(worker, f"r{number}", name)
    assert adapted.loads.counts == {"a": 1, "b": 2, "c": 1, "d": 0, "e": 0}


def test_a_stream_of_requests_for_one_does_not_keep_another_waiting(adapted):
    worker = adapted.worker(adapters_in_memory=1)
    adapted.ask(worker, "a0", "a", max_tokens=20)
    adapted.until(lambda: worker.tokens("a0"))
    adapted.ask(worker, "b", "b")
    number = 0
    while not worker.finished(id="b"):
        number += 1
        assert number < 300, "it starves"
        adapted.ask(worker, f"a{number}", "a", max_tokens=20)
        adapted.world.run(1)
        adapted.until(lambda: worker.status.load.waiting < 3)
    assert worker.tokens("b") == adapted.expected("b")


def test_a_load_that_fails_ends_those_who_wait_for_it_and_is_tried_again(adapted):
    worker = adapted.worker()
    adapted.loads.faults.add("a")
    adapted.loads.gate.clear()
    worker.send(*[Generate(id, 1, adapted.sequence(name)) for id, name in (("x", "a"), ("y", "a"), ("z", "b"))])
    adapted.world.run(1)
    adapted.loads.gate.set()
    adapted.finish(worker, "z")
    failures = [(each.id, each.code, each.retry, each.message) for each in worker.failures()]
    assert failures == [(id, "internal", True, "adapter a: /adapters/a: it is damaged") for id in "xy"]
    assert worker.status.load.adapters == ("digest-b",)
    adapted.loads.faults.clear()
    adapted.serve(worker, "again", "a")


def test_one_that_is_not_there_fails_only_that_request(adapted):
    worker = adapted.worker()
    adapted.ask(worker, "x", "nowhere")
    adapted.serve(worker, "r", "a")
    (failure,) = worker.failures()
    assert (failure.id, failure.message, failure.retry) == ("x", "this worker has no adapter 'digest-nowhere'", True)


@pytest.mark.parametrize("how", ["cancelled", "expired", "gone"])
def test_one_that_ends_while_it_waits_for_room_makes_way(adapted, how):
    """Requests after it are not kept from the adapter that would have been pushed out for it."""
    worker = adapted.worker(adapters_in_memory=1)
    worker.send(joined=(8,))
    adapted.ask(worker, "a", "a", max_tokens=120)
    adapted.until(lambda: worker.tokens("a"))
    worker.send(Generate("b", 1, adapted.sequence("b", deadline=3.0 if how == "expired" else 1e6)), gateway=8)
    adapted.ask(worker, "a2", "a")
    adapted.world.run(2)
    assert worker.status.load.waiting == 2
    if how == "cancelled":
        worker.send(Cancel("b", 1), gateway=8)
    elif how == "gone":
        worker.send(left=(8,))
    adapted.finish(worker, "a2")
    assert not worker.finished(id="a"), "it came after that"
    assert worker.tokens("a2") == adapted.expected("a")
    assert adapted.loads.counts["b"] == 0
    reasons = [each.message for each in worker.others.get(8, ()) if hasattr(each, "code")]
    assert reasons == ["its deadline passed while it waited for its adapter"] * (how == "expired")


def test_those_that_wait_are_counted_and_no_more_than_allowed(adapted):
    worker = adapted.worker(max_waiting=3)
    adapted.loads.gate.clear()
    worker.send(*[Generate(f"r{i}", 1, adapted.sequence("a")) for i in range(5)])
    adapted.world.run(2)
    assert [(each.id, each.code) for each in worker.failures()] == [("r3", "overloaded"), ("r4", "overloaded")]
    assert (worker.status.load.waiting, worker.status.load.credits) == (3, 0)
    adapted.loads.gate.set()
    adapted.finish(worker, "r0", "r1", "r2")


def test_a_draining_worker_sends_those_that_wait_elsewhere(adapted):
    worker = adapted.worker()
    adapted.loads.gate.clear()
    adapted.ask(worker, "r", "a")
    adapted.world.run(1)
    worker.send(drain=True)
    adapted.until(worker.failures)
    assert (worker.failures()[0].code, worker.failures()[0].retry) == ("draining", True)
    adapted.loads.gate.set()


def test_two_workers_do_not_wait_for_each_others_room_for_ever(adapted, world):
    """Each has the one place taken by the half of a pair whose other half is queued at the other worker."""
    prefill, decode = (adapted.worker(name, adapters_in_memory=1, chunk=400) for name in "pd")
    x, y = adapted.sequence("a"), adapted.sequence("b")
    prefill.send(Prefill("x", 1, 1, x, decode.peer))
    decode.send(Decode("y", 1, 2, y, prefill.peer))
    adapted.until(lambda: prefill.scheduler.adapters() and decode.scheduler.adapters())
    prefill.send(Prefill("y", 1, 2, y, decode.peer))
    decode.send(Decode("x", 1, 1, x, prefill.peer))
    adapted.until(prefill.failures, seconds=10)
    (failure,) = prefill.failures()
    assert (failure.id, failure.code, failure.retry, failure.part) == ("y", "overloaded", True, "prefill")
    assert decode.failures() == []
    decode.send(Cancel("y", 1))  # as the gateway does
    adapted.finish(decode, "x")
    assert decode.tokens("x") == adapted.expected("a")
    world.hand_off(prefill, decode, y, room=3, attempt=2, id="y")
    adapted.until(lambda: decode.finished(id="y", attempt=2))
    assert decode.tokens("y", attempt=2) == adapted.expected("b")
    assert len(prefill.failures()) == 1
    assert prefill.used == decode.used == 0


def test_a_prefill_waits_for_room_where_others_are_computed_however_long_they_are(adapted, world):
    prefill, decode = (adapted.worker(name, adapters_in_memory=1, chunk=400) for name in "pd")
    adapted.ask(prefill, "long", "a", max_tokens=60)
    adapted.until(lambda: prefill.tokens("long"))
    world.hand_off(prefill, decode, adapted.sequence("b"), id="y")
    adapted.finish(decode, "y")
    assert prefill.finished(id="long")
    assert prefill.failures() == decode.failures() == []


@pytest.fixture
def leased(make_world, shifting_runner):
    """A prefill that waits for its adapter, and its receiver, which has granted it room, with leases of 8 s."""
    adapted, receiving = Adapted(make_world(lease=8.0), shifting_runner), Loads()
    prefill = adapted.worker("p")
    decode = adapted.world.worker("d", runner=shifting_runner(), adapters=receiving.offered)
    adapted.loads.gate.clear()
    adapted.world.hand_off(prefill, decode, adapted.sequence("b"))
    adapted.until(decode.scheduler.adapters)
    yield adapted, prefill, decode
    adapted.loads.gate.set()
    adapted.world.close()


def test_a_grant_outlasts_its_lease_while_the_prefill_waits_for_its_adapter(leased):
    adapted, prefill, decode = leased
    adapted.world.run(40)
    adapted.loads.gate.set()
    adapted.until(decode.finished)
    assert decode.tokens() == adapted.expected("b")
    assert prefill.failures() == decode.failures() == []
    assert prefill.agent.counts().fences == decode.agent.counts().fences == 0
