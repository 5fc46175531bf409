"""Frames that workers are sent, and the records and predictions about them, in virtual time."""

import dataclasses

import pytest
from msgspec.structs import replace
from relay_script import PROMPT, Scripted, count, error_of, started

from legato_gateway.relay.lifecycle import Stage
from legato_gateway.routing.choose import Policy
from legato_gateway.routing.filters import Need
from legato_gateway.routing.fleet_snapshot import FleetSnapshot
from legato_gateway.routing.predicted_prefixes import PREDICTED_SECONDS, SETTLING_SECONDS
from legato_gateway.routing.prefix_hashes import Hashing
from legato_gateway.workers.served import ServedLength
from legato_protocol.wire.packed_tokens import pack_tokens
from legato_protocol.wire.stream import Cancel, Decode, Generate, Prefill


@pytest.mark.parametrize(("prefill_has", "decode_has"), [(True, False), (False, True), (True, True)])
def test_a_pair_is_sent_the_same_sequence_and_room_and_each_others_address(lab, prefill_has, decode_has):
    """And whether the other one has TLS for hand-offs."""
    run = Scripted(lab, "p", "d")
    run.greet("p0", handoff_tls=prefill_has)
    run.greet("d1", handoff_tls=decode_has)
    generation = run.start(tenant="t", priority=3, cache_salt="salt", choices=2, deadline=50.0)
    ((_, prefill),), ((_, decode),) = run.frames(Prefill), run.frames(Decode)
    sequence = prefill.sequence
    assert decode == Decode(prefill.id, 1, prefill.room, sequence, replace(run.peer("p0"), tls=prefill_has))
    assert prefill.to == replace(run.peer("d1"), tls=decode_has)
    assert (sequence.token_ids, sequence.prompt_len, sequence.choices) == (pack_tokens(PROMPT), 100, (0, 1))
    assert (sequence.tenant, sequence.priority, sequence.cache_salt) == ("t", 3, "salt")
    assert (sequence.params, sequence.deadline) == (generation.request.params, 50.0)
    route = generation.route
    assert (route.prefill, route.decode, route.transport, route.attempt) == ("p0", "d1", "memory", 1)


def test_a_worker_that_does_all_needs_no_transport(lab):
    route = Scripted(lab, "u").start().route
    assert (route.prefill, route.decode, route.transport) == ("local", "u0", "")


def test_a_prompt_that_would_wait_too_long_for_a_prefill_worker_is_computed_where_it_decodes(lab):
    """The objective is 0.1 s, and 50 tokens a second take two for the first prompt."""

    def placements():
        return [count("placements_total", prefill=where) for where in ("separate", "busy")]

    run = Scripted(lab, "p", "d", when_busy="Local")
    run.fleet.loaded("p0", replace(run.workers["p0"].load(), prefill_rate=50.0))
    before = placements()
    run.start()
    second = run.start()
    assert [frame.id for _, frame in run.frames(Generate)] == [run.sub(second).id]
    assert "on prefill workers" in second.route.why
    assert placements() == [number + 1 for number in before]


@pytest.mark.parametrize(("longest", "growth"), [(1000, 50), (120, 20), (100, 1)])
def test_a_request_of_before_any_worker_was_known_needs_no_more_than_workers_take(lab, longest, growth):
    """A request without `max_tokens` gets the length that the model declares. Workers with less end it earlier."""
    run, _, sub = started(lab, "u", request={"max_tokens": 50})
    run.relay._dispatcher._longest = lambda: longest
    assert run.relay._dispatcher.need(sub).growth == growth


@pytest.mark.parametrize(("longest", "refused"), [(200, None), (99, "too_large")])
def test_such_a_request_is_decided_once_a_worker_comes_that_takes_less_than_the_model_declares(lab, longest, refused):
    run = Scripted(lab, "u")
    run.relay._dispatcher._longest = ServedLength(run.fleet, None, 1 << 17).tokens
    run.cut(run.workers["u0"])
    run.fleet.remove("u0")
    generation = run.start(max_tokens=(1 << 17) - len(PROMPT))
    sub = run.sub(generation)
    assert sub.stage is Stage.PENDING
    run.fleet.add("u0", "u0")
    run.workers["u0"].connected = True
    run.greet("u0", max_length=longest)
    run.load(run.workers["u0"])
    if refused:
        assert error_of(generation).reason == refused
    else:
        assert sub.stage is Stage.QUEUED


def test_what_goes_on_needs_room_for_its_output_and_has_the_time_that_is_left(lab):
    run, generation, sub = started(lab, "u", request={"max_tokens": 50, "deadline": 50.0})
    need = run.relay._dispatcher.need
    assert need(sub) == Need(sub.id, 100, 50)
    run.time.advance(3.0)
    assert need(sub).waited == 3.0
    run.until(lambda: generation.completion_tokens == 7)
    assert need(sub) == Need(sub.id, 107, 43, 1, "r")
    run.time.advance(10.0 - run.time.now)
    run.fail(sub)
    assert need(sub) == Need(sub.id, 107, 43, 1, "r", frozenset({"u0"}))
    sequence = run.frames(Generate)[1][1].sequence
    assert (len(sequence.token_ids) // 4, sequence.prompt_len, sequence.deadline) == (107, 100, 40.0)


def test_parameters_that_only_newer_workers_obey_are_part_of_the_need(lab):
    run, _, sub = started(lab, "u", request={"allowed_token_ids": (3, 4), "deadline": 0.0})
    assert run.relay._dispatcher.need(sub).params == ("allowed_token_ids",)
    assert run.frames(Generate)[0][1].sequence.deadline > 0, "some is left on the wire until its timer goes off here"


@pytest.mark.parametrize(
    ("roles", "holder", "pending"),
    [
        ("pd", "p0", {"p0": (4, 7, 1), "d1": (0, 7, 1)}),  # tokens to compute, blocks, sequences
        ("pd", None, {"p0": (100, 7, 1), "d1": (0, 7, 1)}),
        ("u", "u0", {"u0": (4, 7, 1)}),
        ("u", None, {"u0": (100, 7, 1)}),
    ],
)
def test_what_was_sent_counts_at_its_workers_immediately_but_for_what_they_cache(lab, roles, holder, pending):
    run = Scripted(lab, *roles)
    if holder:
        run.hold(holder)
    generation = run.start()
    views = [run.view(name) for name in pending]
    assert {v.name: (v.pending_tokens, v.pending_blocks, v.pending_sequences) for v in views} == pending
    assert generation.route.cached_tokens.get(holder, 0) == (96 if holder else 0)


def test_the_worker_that_computes_a_prompt_learns_where_its_blocks_are_cached(lab):
    run = Scripted(lab, "p", "d")
    run.relay._dispatcher._policy = Policy(0, kv_sharing="Auto")
    run.hold("d1")
    generation = run.start()
    ((_, frame),) = run.frames(Prefill)
    assert (frame.fetch.peer, frame.fetch.blocks, frame.fetch.seconds) == (run.peer("d1"), 6, pytest.approx(0.048))
    assert frame.fetch.room != frame.room
    assert "0 tokens cached, 96 fetched from d1 in 0.01 s, 4 to compute" in generation.route.why


def test_a_worker_that_has_just_gone_takes_nothing_and_its_partner_is_notified(lab):
    run = Scripted(lab, "p", "d")
    run.workers["d1"].connected = False
    sub = run.sub(run.start())
    assert sub.stage is Stage.WAITING
    assert run.frames(Cancel) == [("p0", Cancel(sub.id, 1)), ("d1", Cancel(sub.id, 1))]
    run.workers["d1"].connected = True
    run.load(run.workers["p0"])
    assert (sub.stage, sub.attempt) == (Stage.QUEUED, 2)


@pytest.mark.parametrize("has_output", [False, True])
def test_only_what_has_output_is_bound_to_its_kv_revision(lab, has_output):
    run, generation, sub = started(lab, "u", "u")
    worker = run.decoding(generation) if has_output else run.workers[sub.place.decode]
    (other,) = run.others(worker)
    run.greet(other.name, kv_revision="other")
    run.cut(worker)
    assert sub.stage is (Stage.WAITING if has_output else Stage.QUEUED)
    run.connect()
    run.load(worker)
    assert sub.place.decode == (worker if has_output else other).name


def test_after_a_failed_hand_off_the_policy_may_have_the_decode_worker_prefill(lab):
    run, _, sub = started(lab, "p", "d", on_transfer_failure="Recompute")
    placements = [sub.place.prefill_at]
    for code in ("transfer", "internal"):
        run.fail(sub, code, part="transfer")
        run.time.advance(1.0)
        placements.append(sub.place.prefill_at)
    kinds = [type(frame) for _, frame in run.sent if not isinstance(frame, Cancel | Decode)]
    assert kinds == [Prefill, Generate, Prefill]
    assert placements == ["separate", "recompute", "separate"]


def test_a_worker_that_made_the_last_token_is_sent_no_cancel(lab):
    run, generation, _ = started(lab, "u", request={"max_tokens": 3})
    assert run.end(generation) is None
    assert not run.frames(Cancel)


@pytest.mark.parametrize("choices", [1, 2])
def test_a_choice_that_ends_by_a_stop_string_is_cancelled(lab, choices):
    def running():
        return [set(job.made) for job in run.workers["u0"].engine.jobs.values()]

    stop = lab.text_of(7, 20)[10:16]
    run, generation, sub = started(lab, "u", request={"stop": (stop,), "choices": choices})
    run.until(lambda: generation.choices[0].finish)
    ((_, cancel),) = run.frames(Cancel)
    assert (cancel.choices, running()) == (() if choices == 1 else (0,), [set(range(choices))])
    known = generation.completion_tokens
    run.token(sub, "u0", index=len(generation.choices[0].tokens))  # was on its way
    assert generation.completion_tokens == known
    run.run()
    assert running() == ([{1}] if choices > 1 else [])


@pytest.mark.parametrize("cached", [False, True])
def test_what_a_worker_caches_of_a_sequence_needs_no_room_there(lab, cached):
    run = Scripted(lab, "u")
    if cached:
        run.hold("u0")
    run.workers["u0"].connected = False
    sub = run.sub(run.start())
    run.workers["u0"].connected = True
    for _ in range(2):  # the second one surely counts what was sent
        run.relay.workers.received("u0", replace(run.workers["u0"].load(), free_blocks=3))
    assert sub.stage is Stage.WAITING
    assert run.relay._dispatcher.may_fit(sub) is cached
    run.time.advance(1.0)
    assert sub.stage is (Stage.QUEUED if cached else Stage.WAITING)


SHARED = tuple(range(3200))


def _burst(run, requests, prefix=SHARED):
    """The generations, and the workers of their prefills. No worker caches the prefix or reports anything."""
    before = len(run.frames(Prefill))
    generations = [run.start(prompt=prefix + (7,) * (20 + i)) for i in range(requests)]
    return generations, [name for name, _ in run.frames(Prefill)[before:]]


def test_a_burst_on_a_new_prefix_is_computed_where_its_first_request_is(lab):
    run = Scripted(lab, "p", "p", "p", "d", "d")
    _, workers = _burst(run, 6)
    assert workers == workers[:1] * 6
    assert run.view(workers[0]).pending_tokens < 3200 + 6 * 60, "the shared prefix is computed once"
    _, (other,) = _burst(run, 1, tuple(range(1, 3201)))
    assert other != workers[0]


def test_a_long_queue_is_worth_computing_the_prefix_elsewhere(lab):
    run = Scripted(lab, "p", "p", "d", "d")
    _, (worker,) = _burst(run, 1)
    busy = replace(run.workers[worker].load(), queue_tokens=run.view(worker).backlog + 4000)
    for _ in range(2):
        run.relay.workers.received(worker, busy)
    _, (other,) = _burst(run, 1)
    assert other != worker


@pytest.mark.parametrize("end", ["failed", "left", "expired", "computed"])
def test_a_prediction_ends_with_its_attempt(lab, end):
    run = Scripted(lab, "p", "d")
    (generation,), (worker,) = _burst(run, 1)
    sub, predicted = run.sub(generation), run.relay._dispatcher._predicted
    assert len(predicted) == 1
    if end == "failed":
        run.fail(sub, at=worker, retry=False)
    elif end == "left":
        run.relay.leave(generation)
    elif end == "expired":
        run.time.advance(PREDICTED_SECONDS)
    elif end == "computed":
        run.decoding(generation)
        run.time.advance(SETTLING_SECONDS)
    assert run.relay._dispatcher._predictions(sub, run.fleet.snapshot()) == {}
    assert len(predicted) == 0


def test_a_prediction_is_of_one_epoch(lab):
    run = Scripted(lab, "u")
    (generation,), _ = _burst(run, 1)
    dispatcher, sub, worker = run.relay._dispatcher, run.sub(generation), "u0"
    assert dispatcher._predictions(sub, run.fleet.snapshot()) == {worker: 201}
    views = [dataclasses.replace(view, epoch="another") for view in run.fleet.snapshot().workers]
    assert dispatcher._predictions(sub, FleetSnapshot(tuple(views))) == {}
    run.replace(run.workers[worker])
    epoch = run.workers[worker].engine.epoch
    assert sub.place.epochs[worker] == epoch
    match = dispatcher._predicted.match(generation.hashes.chain(generation.prompt, Hashing("r", 16)), run.time.now)
    assert [holder[1] for holder in match] == [epoch]


def _adapt(run, **digests):
    """Workers of these names have the adapter sql with this digest."""
    for name, digest in digests.items():
        run.greet(name, adapters={"sql": digest} if digest else {})


def _rename(run):
    """All workers have another adapter with this name, and the one before without."""
    for name in run.workers:
        run.greet(name, adapters={"sql": "new"}, former_adapters=("old",))


def _adapted(lab, **digests):
    """Workers of these names, and the sub-request of a generation with the adapter that has seven tokens."""
    run = Scripted(lab, *"u" * len(digests))
    _adapt(run, **digests)
    generation = run.start(adapter="sql")
    run.until(lambda: generation.completion_tokens == 7)
    return run, run.sub(generation)


def _fail(run, sub):
    run.fail(sub)
    run.until(lambda: len(run.frames(Generate)) > 1)


def test_a_request_for_an_adapter_is_sent_with_its_digest_and_hashed_separately(lab):
    run = Scripted(lab, "p", "d")
    _adapt(run, p0="one", d1="one")
    adapted = run.start(adapter="sql")
    base = run.start(model="the model itself")
    assert [frame.sequence.adapter for kind in (Prefill, Decode) for _, frame in run.frames(kind)] == ["one", ""] * 2
    run.relay._dispatcher.matches(run.sub(adapted), run.fleet.snapshot())
    prompt = adapted.prompt
    assert adapted.hashes.chain(prompt, Hashing("r", 16, "one")) != base.hashes.chain(prompt, Hashing("r", 16))


def test_the_kv_of_the_base_is_not_a_prefix_of_an_adapters(lab):
    run = Scripted(lab, "u")
    _adapt(run, u0="one")
    run.hold("u0")
    assert [run.start(adapter=name).route.cached_tokens for name in ("sql", "")] == [{"u0": 0}, {"u0": 96}]


def test_what_goes_on_keeps_its_adapter_however_its_name_is_taken_meanwhile(lab):
    run, sub = _adapted(lab, u0="old", u1="", u2="")
    assert run.relay._dispatcher.need(sub).digest == "old"
    _adapt(run, u1="new")
    _fail(run, sub)
    assert [name for name, _ in run.frames(Generate)] == ["u0", "u0"], (
        "better where it failed than with another adapter"
    )
    _adapt(run, u2="old")
    assert [frame.sequence.adapter for _, frame in run.frames(Generate)] == ["old", "old"]


def test_what_goes_on_may_go_where_its_adapter_lost_its_name(lab):
    """It was removed or replaced while requests ran: they end with it, and new ones begin with what has the name."""
    run, sub = _adapted(lab, u0="old", u1="old")
    _rename(run)
    _fail(run, sub)
    run.start(adapter="sql")
    assert [frame.sequence.adapter for _, frame in run.frames(Generate)[-2:]] == ["old", "new"]


def test_what_goes_on_is_matched_with_prefixes_of_its_own_adapter(lab):
    run, sub = _adapted(lab, u0="old", u1="old", u2="old")
    _rename(run)
    first, second = (worker.name for worker in run.others(run.workers[sub.place.decode]))
    run.hold(first, "old")
    run.hold(second, "new")
    matches = run.relay._dispatcher.matches(sub, run.fleet.snapshot())
    assert (matches.get(first), matches.get(second, 0)) == (6, 0)


def test_a_worker_with_other_adapters_is_the_same_worker_otherwise(lab):
    run, _ = _adapted(lab, u0="one")
    run.hold("u0")
    before, openings = run.fleet.worker("u0").load, run.fleet.openings
    assert before is not None
    _adapt(run, u0="two")
    assert run.fleet.worker("u0").load == before
    assert run.fleet.openings > openings, "who waits for the new one is tried"
    assert run.start().route.cached_tokens == {"u0": 96}, "its prefix cache is known still"
    assert len(run.frames(Generate)) == 2, "nothing is dispatched again"


def test_it_migrates_to_a_worker_with_the_same_adapter(lab):
    run, sub = _adapted(lab, u0="old", u1="", u2="")
    assert run.relay._dispatcher.migrate(sub) is None
    _adapt(run, u1="new")
    assert run.relay._dispatcher.migrate(sub) is None
    _adapt(run, u2="old")
    assert run.relay._dispatcher.migrate(sub).decode == "u2"
    assert [(name, frame.sequence.adapter) for name, frame in run.frames(Decode)] == [("u2", "old")]
