"""Which frames workers are sent, and what is noted of it, in virtual time."""

import pytest
from msgspec.structs import replace
from relay_script import PROMPT, Scripted, count

from legato_gateway.relay.lifecycle import Stage
from legato_gateway.routing.filters import Need
from legato_protocol.packed_tokens import pack_tokens
from legato_protocol.stream import Cancel, Decode, Failed, Generate, Prefill


def test_a_pair_is_told_the_same_sequence_and_room_and_each_others_address(lab):
    run = Scripted(lab, "p", "d")
    generation = run.start(tenant="t", priority=3, cache_salt="salt", choices=2, deadline=50.0)
    ((_, prefill),), ((_, decode),) = run.told(Prefill), run.told(Decode)
    sequence = prefill.sequence
    assert decode == Decode(prefill.id, 1, prefill.room, sequence, run.peer("p0"))
    assert prefill.to == run.peer("d1")
    assert (sequence.token_ids, sequence.prompt_len, sequence.choices) == (pack_tokens(PROMPT), 100, (0, 1))
    assert (sequence.tenant, sequence.priority, sequence.cache_salt) == ("t", 3, "salt")
    assert (sequence.params, sequence.deadline) == (generation.request.params, 50.0)
    route = generation.route
    assert (route.prefill, route.decode, route.transport, route.attempt) == ("p0", "d1", "memory", 1)


@pytest.mark.parametrize(("prefill_has", "decode_has"), [(True, False), (False, True), (True, True)])
def test_each_of_a_pair_is_told_whether_the_other_has_tls_for_hand_offs(lab, prefill_has, decode_has):
    run = Scripted(lab, "p", "d")
    run.greet("p0", handoff_tls=prefill_has)
    run.greet("d1", handoff_tls=decode_has)
    run.start()
    ((_, prefill),), ((_, decode),) = run.told(Prefill), run.told(Decode)
    assert (decode.source.tls, prefill.to.tls) == (prefill_has, decode_has)


def test_a_worker_that_does_all_needs_no_transport(lab):
    run = Scripted(lab, "u")
    route = run.start().route
    assert (route.prefill, route.decode, route.transport) == ("local", "u0", "")


def test_a_prompt_that_would_wait_too_long_for_a_prefill_worker_is_computed_where_it_decodes(lab):
    """The objective is 0.1 s, and 50 tokens a second take two for the first prompt."""
    run = Scripted(lab, "p", "d", when_busy="Local")
    run.fleet.loaded("p0", replace(run.workers["p0"].load(), prefill_rate=50.0))
    before = [count("placements_total", prefill=where) for where in ("separate", "busy")]
    run.start()
    second = run.start()
    assert [frame.id for _, frame in run.told(Generate)] == [run.sub(second).id]
    assert "on prefill workers" in second.route.why
    assert [count("placements_total", prefill=where) for where in ("separate", "busy")] == [n + 1 for n in before]


def test_how_long_it_has_waited_is_told_until_it_has_a_token(lab):
    run = Scripted(lab, "u")
    generation = run.start()
    need = run.relay._dispatcher.need
    run.time.advance(3.0)
    assert need(run.sub(generation)).waited == 3.0
    run.until(lambda: generation.completion_tokens == 1)
    assert need(run.sub(generation)).waited == 0.0


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
        run.hold(holder)
    generation = run.start()
    views = [run.view(name) for name in pending]
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
    run.greet(other.name, kv_revision="other")
    run.cut(worker)
    assert run.sub(generation).stage is (Stage.WAITING if has_output else Stage.QUEUED)
    run.connect()
    run.load(worker)
    assert run.sub(generation).place.decode == (worker if has_output else other).name


def test_after_a_failed_hand_off_the_policy_may_have_the_decode_worker_prefill(lab):
    run = Scripted(lab, "p", "d", on_transfer_failure="Recompute")
    generation = run.start()
    sub = run.sub(generation)
    placements = [sub.place.prefill_at]
    for code in ("transfer", "internal"):
        run.relay.workers.received(sub.place.decode, Failed(sub.id, sub.attempt, code, "scripted", "transfer", True))
        run.time.advance(1.0)
        placements.append(sub.place.prefill_at)
    assert [type(frame) for _, frame in run.sent if not isinstance(frame, Cancel | Decode)] == [
        Prefill,
        Generate,
        Prefill,
    ]
    assert placements == ["separate", "recompute", "separate"]


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


@pytest.mark.parametrize("holds", [False, True])
def test_what_a_worker_holds_of_a_sequence_needs_no_room_there(lab, holds):
    run = Scripted(lab, "u")
    if holds:
        run.hold("u0")
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
