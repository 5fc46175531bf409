"""Which frames workers are sent, and what is noted of it, in virtual time."""

import dataclasses

import pytest
from msgspec.structs import replace
from relay_script import Scripted

from legato_gateway.relay.lifecycle import Stage
from legato_gateway.routing.filters import Need
from legato_gateway.routing.fleet_snapshot import FleetSnapshot
from legato_gateway.routing.predicted_prefixes import PREDICTED_SECONDS, SETTLING_SECONDS
from legato_gateway.routing.prefix_hashes import Hashing
from legato_gateway.testing.fake_engine import token_at
from legato_protocol import block_hash, kv_events
from legato_protocol.packed_tokens import pack_tokens
from legato_protocol.stream import Cancel, Decode, Failed, Generate, Handoff, Peer, Prefill, Split, TokenItem, Tokens

PROMPT = tuple(range(100))


def _hold(run, name, adapter=""):
    """The cache of that worker holds the prompt, computed with the adapter of this digest: six full blocks."""
    worker = run.workers[name]
    worker._events += 1
    hashes = block_hash.chain(pack_tokens(PROMPT), 16, block_hash.root("r", adapter))
    event = kv_events.Stored(worker.engine.epoch, worker._events, block_hash.join(hashes))
    assert not run.relay.workers.kv_event(name, event)


def _greet(run, name, **changes):
    run.relay.workers.greeted(name, replace(run.workers[name].hello(), **changes))


def _peer(run, name):
    return Peer(name, run.workers[name].engine.epoch, name.encode())


def _view(run, name):
    (view,) = [view for view in run.fleet.snapshot().workers if view.name == name]
    return view


def test_a_pair_is_told_the_same_sequence_and_room_and_each_others_address(lab):
    run = Scripted(lab, "p", "d")
    generation = run.start(tenant="t", priority=3, cache_salt="salt", choices=2, deadline=50.0)
    ((_, prefill),), ((_, decode),) = run.told(Prefill), run.told(Decode)
    sequence = prefill.sequence
    assert decode == Decode(prefill.id, 1, prefill.room, sequence, _peer(run, "p0"))
    assert prefill.to == _peer(run, "d1")
    assert (sequence.token_ids, sequence.prompt_len, sequence.choices) == (pack_tokens(PROMPT), 100, (0, 1))
    assert (sequence.tenant, sequence.priority, sequence.cache_salt) == ("t", 3, "salt")
    assert (sequence.params, sequence.deadline) == (generation.request.params, 50.0)
    route = generation.route
    assert (route.prefill, route.decode, route.transport, route.attempt) == ("p0", "d1", "memory", 1)


@pytest.mark.parametrize(("prefill_has", "decode_has"), [(True, False), (False, True), (True, True)])
def test_each_of_a_pair_is_told_whether_the_other_has_tls_for_hand_offs(lab, prefill_has, decode_has):
    run = Scripted(lab, "p", "d")
    _greet(run, "p0", handoff_tls=prefill_has)
    _greet(run, "d1", handoff_tls=decode_has)
    run.start()
    ((_, prefill),), ((_, decode),) = run.told(Prefill), run.told(Decode)
    assert (decode.source.tls, prefill.to.tls) == (prefill_has, decode_has)


def test_a_worker_that_does_all_needs_no_transport(lab):
    run = Scripted(lab, "u")
    route = run.start().route
    assert (route.prefill, route.decode, route.transport) == ("local", "u0", "")


def test_what_goes_on_needs_room_for_its_output_and_has_the_time_that_is_left(lab):
    run = Scripted(lab, "u")
    generation = run.start(max_tokens=50, deadline=50.0)
    sub, need = run.sub(generation), run.relay._dispatcher.need
    assert need(sub) == Need(sub.id, 100, 50)
    run.until(lambda: generation.completion_tokens == 7)
    assert need(sub) == Need(sub.id, 107, 43, 1, "r")
    run.time.advance(10.0 - run.time.now)
    run.relay.workers.received("u0", Failed(sub.id, 1, "internal", "scripted", "decode", True))
    assert need(sub) == Need(sub.id, 107, 43, 1, "r", frozenset({"u0"}))
    sequence = run.told(Generate)[1][1].sequence
    assert (len(sequence.token_ids) // 4, sequence.prompt_len, sequence.deadline) == (107, 100, 40.0)


def test_what_only_newer_workers_obey_is_part_of_the_need(lab):
    run = Scripted(lab, "u")
    generation = run.start(allowed_token_ids=(3, 4))
    assert run.relay._dispatcher.need(run.sub(generation)).params == ("allowed_token_ids",)


def test_an_expired_sequence_is_not_sent_without_a_deadline(lab):
    """It has some time left on the wire until its timer goes off here."""
    run = Scripted(lab, "u")
    run.start(deadline=0.0)
    assert run.told(Generate)[0][1].sequence.deadline > 0


@pytest.mark.parametrize(
    ("roles", "holder", "pending"),
    [
        ("pd", "p0", {"p0": (4, 7, 1), "d1": (0, 7, 1)}),  # tokens to compute, blocks, sequences
        ("pd", None, {"p0": (100, 7, 1), "d1": (0, 7, 1)}),
        ("u", "u0", {"u0": (4, 7, 1)}),
        ("u", None, {"u0": (100, 7, 1)}),
    ],
)
def test_what_was_sent_counts_at_its_workers_at_once_but_for_what_they_hold(lab, roles, holder, pending):
    run = Scripted(lab, *roles)
    if holder:
        _hold(run, holder)
    generation = run.start()
    views = [_view(run, name) for name in pending]
    assert {v.name: (v.pending_tokens, v.pending_blocks, v.pending_sequences) for v in views} == pending
    assert generation.route.cached_tokens.get(holder, 0) == (96 if holder else 0)


def test_a_worker_that_has_just_gone_takes_nothing_and_its_partner_is_told(lab):
    run = Scripted(lab, "p", "d")
    run.workers["d1"].connected = False
    generation = run.start()
    sub = run.sub(generation)
    assert sub.stage is Stage.WAITING
    assert run.told(Cancel) == [("p0", Cancel(sub.id, 1)), ("d1", Cancel(sub.id, 1))]
    run.workers["d1"].connected = True
    run.load(run.workers["p0"])
    assert (sub.stage, sub.attempt) == (Stage.QUEUED, 2)


@pytest.mark.parametrize("has_output", [False, True])
def test_only_what_has_output_is_bound_to_its_kv_revision(lab, has_output):
    run = Scripted(lab, "u", "u")
    generation = run.start()
    worker = run.decoding(generation) if has_output else run.workers[run.sub(generation).place.decode]
    (other,) = run.others(worker)
    _greet(run, other.name, kv_revision="other")
    run.cut(worker)
    assert run.sub(generation).stage is (Stage.WAITING if has_output else Stage.QUEUED)
    run.connect()
    run.load(worker)
    assert run.sub(generation).place.decode == (worker if has_output else other).name


def test_after_a_failed_hand_off_the_policy_may_have_the_decode_worker_prefill(lab):
    run = Scripted(lab, "p", "d", on_transfer_failure="Recompute")
    generation = run.start()
    sub = run.sub(generation)
    for code in ("transfer", "internal"):
        run.relay.workers.received(sub.place.decode, Failed(sub.id, sub.attempt, code, "scripted", "transfer", True))
        run.time.advance(1.0)
    assert [type(frame) for _, frame in run.sent if not isinstance(frame, Cancel | Decode)] == [
        Prefill,
        Generate,
        Prefill,
    ]


@pytest.mark.parametrize("unlinked", ["source", "target", None])
def test_sequences_migrate_between_workers_with_a_link_alone(lab, unlinked):
    run = Scripted(lab, "u", "u")
    generation = run.start()
    source = run.decoding(generation)
    (target,) = run.others(source)
    if unlinked:
        _greet(run, (source if unlinked == "source" else target).name, address=b"")
    run.drain(source)
    run.load(source)
    if unlinked:
        assert not run.told(Handoff)
        return
    ((_, handoff),), ((_, decode),) = run.told(Handoff), run.told(Decode)
    assert handoff == Handoff(decode.id, 2, decode.room, _peer(run, target.name))
    assert decode.source == _peer(run, source.name)
    view = _view(run, target.name)
    assert (view.pending_tokens, view.pending_blocks) == (0, 7), "it computes nothing of it"


def test_sequences_migrate_to_workers_of_their_kv_revision_alone(lab):
    """Also a choice that has no output yet, though another worker is idle."""
    run = Scripted(lab, "u", "u", "u")
    generation = run.start(choices=2)
    sub = run.sub(generation)
    source = run.workers[sub.place.decode]
    idle, busy = run.others(source)
    _greet(run, idle.name, kv_revision="other")
    run.relay.workers.received(busy.name, replace(busy.load(), running=50))
    run.relay.workers.received(source.name, Tokens((TokenItem(sub.id, 1, 0, 0, (token_at(7, 0, 0),)),)))
    run.drain(source)
    run.load(source)
    assert [name for name, _ in run.told(Decode)] == [busy.name, busy.name]


def test_choices_get_names_of_their_own_before_they_migrate(lab):
    run = Scripted(lab, "u", "u")
    generation = run.start(choices=2)
    source = run.decoding(generation)
    assert run.sub(generation).choices == (0, 1), "while their worker stays they stay together"
    id = run.sub(generation).id
    run.drain(source)
    run.load(source)
    names = {0: f"{id}/0", 1: f"{id}/1"}
    assert run.told(Split) == [(source.name, Split(id, 1, names))]
    assert {frame.id for _, frame in run.told(Handoff)} == set(names.values())
    run.until(lambda: len(run.reports()) == 2)
    assert [set(handoff) > {"source", "target"} for handoff in generation.route.handoffs] == [True, True]


@pytest.mark.parametrize(
    ("sender", "attempt", "heard", "commits"),
    [("source", 1, True, False), ("source", 2, False, False), ("target", 1, False, False), ("target", 2, True, True)],
)
def test_while_a_sequence_migrates_both_workers_are_heard_under_their_own_attempts(
    lab, sender, attempt, heard, commits
):
    run = Scripted(lab, "u", "u")
    generation = run.start()
    source = run.decoding(generation)
    run.drain(source)
    run.load(source)
    sub, known = run.sub(generation), generation.completion_tokens
    target = sub.target.decode
    item = TokenItem(sub.id, attempt, 0, known, (token_at(7, 0, known),))
    run.relay.workers.received(source.name if sender == "source" else target, Tokens((item,)))
    assert generation.completion_tokens == known + heard
    assert (sub.stage is Stage.DECODING) is commits
    assert sub.place.decode == (target if commits else source.name)


def test_a_worker_that_made_the_last_token_need_not_be_told(lab):
    run = Scripted(lab, "u")
    generation = run.start(max_tokens=3)
    run.until(lambda: generation.ended)
    assert not run.told(Cancel)


@pytest.mark.parametrize("choices", [1, 2])
def test_a_choice_that_ends_by_a_stop_string_is_cancelled(lab, choices):
    run = Scripted(lab, "u")
    text = lab.text_of(7, 20)
    generation = run.start(stop=(text[10:16],), choices=choices)
    run.until(lambda: generation.choices[0].finish)
    ((_, cancel),) = run.told(Cancel)
    assert cancel.choices == (() if choices == 1 else (0,))
    assert [set(job.made) for job in run.workers["u0"].engine.jobs.values()] == [set(range(choices))]
    run.run()
    assert [set(job.made) for job in run.workers["u0"].engine.jobs.values()] == ([{1}] if choices > 1 else [])


def test_the_target_of_a_failed_migration_is_cancelled_and_no_other(lab):
    run = Scripted(lab, "u", "u", first_migration_delay=5.0)
    generation = run.start()
    source = run.decoding(generation)
    run.drain(source)
    run.load(source)
    sub = run.sub(generation)
    target = sub.target.decode
    run.relay.workers.received(target, Failed(sub.id, 2, "transfer", "scripted", "transfer", True))
    assert run.told(Cancel) == [(target, Cancel(sub.id, 2))]


@pytest.mark.parametrize("holds", [False, True])
def test_what_a_worker_holds_of_a_sequence_needs_no_room_there(lab, holds):
    run = Scripted(lab, "u")
    if holds:
        _hold(run, "u0")
    run.workers["u0"].connected = False
    generation = run.start()
    run.workers["u0"].connected = True
    for _ in range(2):  # the second one surely counts what was sent
        run.relay.workers.received("u0", replace(run.workers["u0"].load(), free_blocks=3))
    sub = run.sub(generation)
    assert sub.stage is Stage.WAITING
    assert run.relay._dispatcher.may_fit(sub) is holds
    run.time.advance(1.0)
    assert sub.stage is (Stage.QUEUED if holds else Stage.WAITING)


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
    assert _view(run, workers[0]).pending_tokens < 3200 + 6 * 60, "the shared prefix is computed once"
    _, others = _burst(run, 1, tuple(range(1, 3201)))
    assert others[0] not in workers


def test_a_long_queue_is_worth_computing_the_prefix_elsewhere(lab):
    run = Scripted(lab, "p", "p", "d", "d")
    _, (worker,) = _burst(run, 1)
    view = _view(run, worker)
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
        _greet(run, worker)
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


def _adapt(run, **digests):
    """Workers of these names have the adapter sql with this digest."""
    for name, digest in digests.items():
        _greet(run, name, adapters={"sql": digest} if digest else {})


def test_a_request_for_an_adapter_is_sent_with_its_digest_and_hashed_apart(lab):
    run = Scripted(lab, "p", "d")
    _adapt(run, p0="one", d1="one")
    adapted = run.start(adapter="sql")
    ((_, prefill),), ((_, decode),) = run.told(Prefill), run.told(Decode)
    assert prefill.sequence.adapter == decode.sequence.adapter == "one"
    base = run.start(model="the model itself")
    assert [frame.sequence.adapter for _, frame in run.told(Prefill)] == ["one", ""]
    snapshot = run.fleet.snapshot()
    run.relay._dispatcher.matches(run.sub(adapted), snapshot)
    prompt = adapted.prompt
    assert adapted.hashes.of(prompt, Hashing("r", 16, "one")) != base.hashes.of(prompt, Hashing("r", 16))


def test_the_kv_of_the_base_is_no_prefix_of_an_adapters(lab):
    run = Scripted(lab, "u")
    _adapt(run, u0="one")
    _hold(run, "u0")
    assert run.start(adapter="sql").route.cached_tokens == {"u0": 0}
    assert run.start().route.cached_tokens == {"u0": 96}


def test_what_goes_on_keeps_its_adapter_however_its_name_is_taken_meanwhile(lab):
    run = Scripted(lab, "u", "u", "u")
    _adapt(run, u0="old", u1="", u2="")
    generation = run.start(adapter="sql")
    run.until(lambda: generation.completion_tokens == 7)
    sub = run.sub(generation)
    assert run.relay._dispatcher.need(sub).digest == "old"
    _adapt(run, u1="new")
    run.relay.workers.received("u0", Failed(sub.id, 1, "internal", "scripted", "decode", True))
    run.until(lambda: len(run.told(Generate)) > 1)
    assert [name for name, _ in run.told(Generate)] == ["u0", "u0"], "better where it failed than with another adapter"
    _adapt(run, u2="old")
    assert [frame.sequence.adapter for _, frame in run.told(Generate)] == ["old", "old"]


def test_what_goes_on_may_go_where_its_adapter_lost_its_name(lab):
    """It was removed or replaced while requests ran: they end with it, and new ones begin with what has the name."""
    run = Scripted(lab, "u", "u")
    _adapt(run, u0="old", u1="old")
    generation = run.start(adapter="sql")
    run.until(lambda: generation.completion_tokens == 7)
    sub = run.sub(generation)
    ((first, _),) = run.told(Generate)
    for name in ("u0", "u1"):
        _greet(run, name, adapters={"sql": "new"}, former_adapters=("old",))
    run.relay.workers.received(first, Failed(sub.id, 1, "internal", "scripted", "decode", True))
    run.until(lambda: len(run.told(Generate)) > 1)
    (_, frame) = run.told(Generate)[-1]
    assert frame.sequence.adapter == "old"
    run.start(adapter="sql")
    assert run.told(Generate)[-1][1].sequence.adapter == "new"


def test_what_goes_on_is_matched_with_prefixes_of_its_own_adapter(lab):
    """Whichever has its name by now."""
    run = Scripted(lab, "u", "u", "u")
    _adapt(run, u0="old", u1="old", u2="old")
    generation = run.start(adapter="sql")
    run.until(lambda: generation.completion_tokens == 7)
    sub = run.sub(generation)
    for name in run.workers:
        _greet(run, name, adapters={"sql": "new"}, former_adapters=("old",))
    first, second = (worker.name for worker in run.others(run.workers[sub.place.decode]))
    _hold(run, first, "old")
    _hold(run, second, "new")
    assert run.relay._dispatcher.matches(sub, run.fleet.snapshot()).get(first) == 6
    assert not run.relay._dispatcher.matches(sub, run.fleet.snapshot()).get(second)


def test_a_worker_with_other_adapters_is_the_same_worker_otherwise(lab):
    run = Scripted(lab, "u")
    _adapt(run, u0="one")
    _hold(run, "u0")
    generation = run.start(adapter="sql")
    run.until(lambda: generation.completion_tokens == 7)
    before, openings = run.fleet.worker("u0").load, run.fleet.openings
    assert before is not None
    _adapt(run, u0="two")
    assert run.fleet.worker("u0").load == before
    assert run.fleet.openings > openings, "who waits for the new one is tried"
    assert run.start().route.cached_tokens == {"u0": 96}, "its prefix cache is known still"
    assert len(run.told(Generate)) == 2, "nothing is dispatched again"


def test_it_migrates_to_a_worker_with_the_same_adapter(lab):
    run = Scripted(lab, "u", "u", "u")
    _adapt(run, u0="old", u1="", u2="")
    generation = run.start(adapter="sql")
    run.until(lambda: generation.completion_tokens == 7)
    sub = run.sub(generation)
    assert run.relay._dispatcher.migrate(sub) is None
    _adapt(run, u1="new")
    assert run.relay._dispatcher.migrate(sub) is None
    _adapt(run, u2="old")
    assert run.relay._dispatcher.migrate(sub).decode == "u2"
    ((name, frame),) = run.told(Decode)
    assert (name, frame.sequence.adapter) == ("u2", "old")
