"""How requests end early or late, and what their clients are told, in virtual time."""

import asyncio

import pytest
from relay_script import Scripted, count, error_of

from legato_gateway.admission.ticket import Admit, Refuse
from legato_gateway.errors import (
    DeadlineExceeded,
    InternalFault,
    Overloaded,
    QuotaExceeded,
    SlowClient,
    WorkerFailed,
)
from legato_gateway.relay.lifecycle import Stage
from legato_gateway.relay.relay import LONG_PROMPT
from legato_gateway.routing.prefix_hashes import Hashing
from legato_gateway.testing.fake_engine import token_at
from legato_protocol import block_hash
from legato_protocol.kv_events import Stored
from legato_protocol.packed_tokens import pack_tokens
from legato_protocol.stream import Begun, Cancel, Failed, Generate, Pause, TokenItem, Tokens


def _nothing(run, generation):
    pass


def _lose_worker(run, generation):
    run.cut(run.workers["u0"])


def _fail_transfer(run, generation):
    sub = run.sub(generation)
    run.relay.workers.received(sub.place.decode, Failed(sub.id, sub.attempt, "transfer", "scripted", "transfer", True))


def _decode(run, generation):
    run.decoding(generation)


@pytest.mark.parametrize(
    ("roles", "happens", "part", "doing"),
    [
        ("p", _nothing, "gateway", "waiting in the gateway's queue"),
        ("u", _lose_worker, "gateway", "waiting for a worker that can take it after: the connection to u0 broke"),
        ("u", _nothing, "prefill", "waiting for its first token from u0"),
        ("pd", _nothing, "prefill", "waiting for its first token from p0"),
        ("pd", _fail_transfer, "transfer", "waiting for its first token from p0"),
        ("pd", _decode, "decode", "being decoded"),
        ("u", _decode, "decode", "being decoded"),
    ],
)
def test_a_missed_deadline_tells_which_part_had_the_request(lab, roles, happens, part, doing):
    run = Scripted(lab, *roles)
    generation = run.start(deadline=5.0)
    happens(run, generation)
    run.time.advance(5.0)
    error = error_of(generation)
    assert isinstance(error, DeadlineExceeded)
    assert error.part == part
    assert str(error).startswith(f"5 s were not enough: it was {doing}")
    run.run(2)
    assert not any(worker.engine.jobs for worker in run.workers.values())


def test_a_request_that_no_worker_took_yet_waits_for_one(lab):
    """Its worker is gone, and nobody has told this gateway."""
    run = Scripted(lab, "u")
    run.workers["u0"].connected = False
    generation = run.start(deadline=5.0)
    assert run.sub(generation).stage is Stage.WAITING
    run.time.advance(5.0)
    assert str(error_of(generation)).endswith("it was waiting for a worker that can take it")


def test_a_gateway_that_stops_ends_every_request_also_those_that_still_come(lab):
    run = Scripted(lab, "u")
    generations = [run.start(), run.start()]
    run.decoding(generations[0])
    error = Overloaded("stopping", reason="stopping")
    run.relay.end_all(error)
    generations.append(run.start())
    assert [error_of(generation) for generation in generations] == [error] * 3
    assert run.relay.active == 0
    run.run()
    assert not run.workers["u0"].engine.jobs
    assert len(run.told(Generate)) == 2


@pytest.mark.parametrize(("quota", "kind"), [(True, QuotaExceeded), (False, Overloaded)])
def test_a_refusal_of_admission_is_told_as_it_is(lab, monkeypatch, quota, kind):
    run = Scripted(lab, "u")
    monkeypatch.setattr(run.admission, "offer", lambda *_: Refuse("why", "in words", 7.0, quota))
    error = error_of(run.start())
    assert type(error) is kind
    assert (error.reason, error.message, error.retry_after) == ("why", "in words", 7.0)
    assert run.sent == []


def test_admission_is_asked_with_what_no_worker_holds(lab, monkeypatch):
    run, tickets = Scripted(lab, "u", "u"), []
    monkeypatch.setattr(run.admission, "offer", lambda ticket, *_: tickets.append(ticket) or Admit())
    prompt = tuple(range(100))
    hashes = block_hash.chain(pack_tokens(prompt), 16, block_hash.root("r"))
    run.relay.workers.kv_event("u1", Stored(run.workers["u1"].engine.epoch, 1, block_hash.join(hashes)))
    run.time.advance(3.0)
    for length in (100, 96):
        run.start(prompt=prompt[:length], tenant="t", priority=2, deadline=9.0, max_tokens=50)
    assert [(ticket.need.tokens, ticket.need.growth, ticket.uncached) for ticket in tickets] == [
        (100, 50, 4),
        (96, 50, 1),  # the last token is always computed
    ]
    for ticket in tickets:
        assert (ticket.tenant, ticket.priority, ticket.deadline, ticket.matches) == ("t", 2, 12.0, {"u1": 6})


def test_held_requests_are_looked_at_by_the_clock_of_their_quotas(lab, monkeypatch):
    run, times = Scripted(lab, "p"), []
    monkeypatch.setattr(run.admission, "next", lambda _, now: times.append(now) or [])
    run.start()
    run.time.advance(5.0)
    run.load(run.workers["p0"])
    assert times == [0.0, 5.0]


def test_what_ended_has_no_timer_left_and_its_tokens_are_counted(lab):
    run, before = Scripted(lab, "u"), count("output_tokens_total")
    generation = run.start(max_tokens=10)
    run.until(lambda: generation.ended)
    assert generation.timer.call is None
    assert count("output_tokens_total") == before + 10


def test_ends_are_counted_and_those_that_a_worker_failed(lab):
    run = Scripted(lab, "u")
    names = ("requests_total", "requests_total", "worker_failures_total", "active_requests")
    labels = ({"finish": "length"}, {"finish": "worker_failed"}, {}, {})

    def counts():
        return [count(name, **label) for name, label in zip(names, labels, strict=True)]

    before = counts()
    run.start(max_tokens=1)
    run.start(max_tokens=1)
    run.run(5)
    failing = run.start()
    run.relay.workers.received("u0", Failed(run.sub(failing).id, 1, "invalid", "scripted", "prefill", False))
    assert isinstance(error_of(failing), WorkerFailed)
    running = run.start()
    assert [after - was for after, was in zip(counts(), before, strict=True)] == [2, 1, 1, 1]
    run.relay.leave(running)


def test_a_requests_stage_is_that_of_its_part_furthest_behind(lab):
    run = Scripted(lab, "u", "u")
    generation = run.start(choices=2)
    run.cut(run.decoding(generation))
    first, second = run.relay.sub_requests(generation)
    assert [frame.sequence.choices for _, frame in run.told(Generate)] == [(0, 1), (0,), (1,)], "each goes on alone"
    assert run.relay.progress() == {generation.route: (Stage.QUEUED, 2)}
    for sub in (first, second):
        run.relay.workers.received(sub.place.decode, Begun(sub.id, sub.attempt))
    item = TokenItem(second.id, second.attempt, 1, 1, (5,))
    run.relay.workers.received(second.place.decode, Tokens((item,)))
    assert run.relay.progress() == {generation.route: (Stage.PREFILLING, 3)}


# ── slow clients ────────────────────────────────────────────────────────────────────────────────────────────────────


def _flood(run, generation):
    """Its client reads nothing of eight tokens."""
    sub, known = run.sub(generation), generation.completion_tokens
    tokens = tuple(token_at(7, 0, index) for index in range(known, known + 8))
    item = TokenItem(sub.id, sub.place.attempt, 0, known, tokens)
    run.relay.workers.received(sub.place.decode, Tokens((item,)))


def test_a_client_that_reads_slowly_pauses_its_worker(lab):
    run = Scripted(lab, "u", slow_client="Pause")
    generation = run.start()
    worker, sub = run.decoding(generation), run.sub(generation)
    _flood(run, generation)
    assert run.told(Pause) == [(worker.name, Pause(sub.id, 1, True))]
    generation.ready()
    assert run.told(Pause)[1:] == [(worker.name, Pause(sub.id, 1, False))]


def test_a_paused_sequence_is_paused_wherever_it_goes(lab):
    run = Scripted(lab, "u", "u", "u", slow_client="Pause")
    generation = run.start()
    worker = run.decoding(generation)
    _flood(run, generation)
    run.drain(worker)
    run.load(worker)
    sub = run.sub(generation)
    target = run.workers[sub.target.decode]
    assert run.told(Pause)[1:] == [(target.name, Pause(sub.id, 2, True))]
    run.kill(target)
    assert run.told(Pause)[2:] == [(sub.place.decode, Pause(sub.id, 3, True))]
    del run.sent[:]
    generation.ready()
    assert run.told(Pause) == [(sub.place.decode, Pause(sub.id, 3, False))]


def test_source_and_target_of_a_migration_are_paused(lab):
    run = Scripted(lab, "u", "u", slow_client="Pause")
    generation = run.start()
    worker = run.decoding(generation)
    run.drain(worker)
    run.load(worker)
    _flood(run, generation)
    sub = run.sub(generation)
    assert run.told(Pause) == [(worker.name, Pause(sub.id, 1, True)), (sub.target.decode, Pause(sub.id, 2, True))]


def test_a_client_that_reads_slowly_is_left_where_the_policy_says_so(lab):
    run = Scripted(lab, "u", slow_client="Disconnect")
    generation = run.start()
    worker = run.decoding(generation)
    _flood(run, generation)
    assert not run.told(Pause)
    assert [name for name, _ in run.told(Cancel)] == [worker.name]
    error = error_of(generation)
    assert isinstance(error, SlowClient)
    assert "8 tokens unread" in str(error)


# ── long prompts ────────────────────────────────────────────────────────────────────────────────────────────────────

LONG = tuple(range(LONG_PROMPT + 1))


async def _hashed(run):
    while run.relay._hashing:  # noqa: ASYNC110 – nothing announces it
        await asyncio.sleep(0)


async def test_a_long_prompt_is_hashed_before_it_is_offered(lab):
    run = Scripted(lab, "u")
    short, generation = run.start(prompt=LONG[:-1]), run.start(prompt=LONG)
    assert [run.sub(one).stage for one in (short, generation)] == [Stage.QUEUED, Stage.ARRIVED]
    pieces = generation.hashes.pieces(Hashing("r", 16))
    await _hashed(run)
    assert run.sub(generation).stage is not Stage.ARRIVED
    assert list(pieces) == [], "all of it is hashed"


async def test_a_long_prompt_whose_client_leaves_is_offered_to_nobody(lab):
    run = Scripted(lab, "u")
    generation = run.start(prompt=LONG)
    await asyncio.sleep(0)
    run.relay.leave(generation)
    await _hashed(run)
    assert run.sent == []
    assert error_of(generation) is None


async def test_a_fault_while_a_long_prompt_is_hashed_ends_its_request(lab):
    async def _fault(_):
        raise KeyError("a fault")

    run = Scripted(lab, "u")
    run.relay._dispatcher.hash_prompt = _fault
    generation = run.start(prompt=LONG)
    await _hashed(run)
    assert isinstance(error_of(generation), InternalFault)
    run.check()


async def test_a_gateway_that_is_closed_while_it_hashes_stops_hashing(lab):
    """A cancelled task is no fault."""
    run = Scripted(lab, "u")
    generation = run.start(prompt=LONG)
    (hashing,) = run.relay._hashing
    hashing.cancel()
    await asyncio.gather(hashing, return_exceptions=True)
    await _hashed(run)
    assert not generation.ended
