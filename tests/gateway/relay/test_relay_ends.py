"""Requests that end early or late, and the answers that their clients receive, in virtual time."""

import asyncio

import pytest
from relay_script import Scripted, count, error_of, started

from legato_gateway.admission.ticket import Admit, Refuse
from legato_gateway.errors import DeadlineExceeded, InternalFault, Overloaded, QuotaExceeded, SlowClient, WorkerFailed
from legato_gateway.relay.lifecycle import Stage
from legato_gateway.relay.relay import LONG_PROMPT
from legato_gateway.routing.prefix_hashes import Hashing
from legato_gateway.testing.fake_engine import token_at
from legato_protocol.wire.stream import Cancel, Generate, Pause, Started


def _nothing(run, generation):
    pass


def _lose_worker(run, generation):
    run.cut(run.workers["u0"])


def _fail_transfer(run, generation):
    run.fail(run.sub(generation), "transfer", part="transfer")


@pytest.mark.parametrize(
    ("roles", "happens", "part", "doing"),
    [
        ("p", _nothing, "gateway", "waiting in the gateway's queue"),
        ("u", _lose_worker, "gateway", "waiting for a worker that can take it after: the connection to u0 broke"),
        ("u", _nothing, "prefill", "waiting for its first token from u0"),
        ("pd", _nothing, "prefill", "waiting for its first token from p0"),
        ("pd", _fail_transfer, "transfer", "waiting for its first token from p0"),
    ],
)
def test_a_missed_deadline_names_the_part_that_had_the_request(lab, roles, happens, part, doing):
    run, generation, _ = started(lab, *roles, request={"deadline": 5.0})
    happens(run, generation)
    run.time.advance(5.0)
    error = error_of(generation)
    assert (type(error), error.part) == (DeadlineExceeded, part)
    assert str(error).startswith(f"5 s were not enough: it was {doing}")
    run.run(2)
    assert not any(worker.engine.jobs for worker in run.workers.values())


@pytest.mark.parametrize("roles", ["u", "pd"])
def test_a_missed_deadline_cuts_off_what_has_tokens(lab, roles):
    """Includes the text that was held back for a stop string."""
    run, generation, sub = started(lab, *roles, request={"deadline": 5.0, "choices": 2, "stop": ("acZ",)})
    run.decoding(generation)
    sub = run.relay.sub_requests(generation)[0]
    run.token(sub, index=len(generation.choices[0].tokens), attempt=sub.attempt, token_ids=(0, 2))
    run.time.advance(5.0)
    deltas = [delta for delta in generation.ready() if delta.choice == 0]
    assert "".join(delta.text for delta in deltas).endswith("aaac")
    assert [delta.late for delta in deltas] == [False] * (len(deltas) - 1) + [True]
    assert [id for delta in deltas for id in delta.token_ids][-2:] == [0, 2]
    assert (error_of(generation), generation.route.finish) == (None, "deadline_exceeded")
    run.run(2)
    assert not any(worker.engine.jobs for worker in run.workers.values())


def test_patience_counts_from_the_latest_token_and_the_deadline_from_the_arrival(lab):
    run, generation, sub = started(lab, "u", request={"patience": 5.0, "deadline": 11.0, "max_tokens": 100})
    for index, pause in enumerate((4.0, 4.0)):
        run.time.advance(pause)
        run.token(sub, index=index)
    stalled = run.start(patience=2.0, deadline=100.0)
    run.time.advance(2.0)
    assert str(error_of(stalled)).startswith("no token came for 2 s: it was waiting for its first token")
    run.time.advance(0.9)
    assert not generation.ended
    run.time.advance(0.2)
    assert (error_of(generation), generation.route.finish) == (None, "deadline_exceeded")


async def test_a_client_that_reads_on_keeps_a_paused_request(lab):
    run, generation, sub = started(lab, "u", request={"patience": 5.0}, slow_client="Pause")
    for index in range(8):
        run.token(sub, index=index)
    for _ in range(3):
        run.time.advance(4.0)
        await anext(generation)
    run.time.advance(2.9)
    assert generation.paused
    assert not generation.ended
    run.time.advance(6.0)
    assert generation.ready()[-1].late


def test_a_request_that_no_worker_took_yet_waits_for_one(lab):
    """Its worker is gone, and this gateway does not know yet."""
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
    assert run.demand().refused == {"stopping": 3}
    assert run.relay.active == 0
    run.run()
    assert not run.workers["u0"].engine.jobs
    assert len(run.frames(Generate)) == 2


@pytest.mark.parametrize(("quota", "kind"), [(True, QuotaExceeded), (False, Overloaded)])
def test_a_refusal_of_admission_reaches_the_client_as_it_is(lab, monkeypatch, quota, kind):
    run = Scripted(lab, "u")
    monkeypatch.setattr(run.admission, "offer", lambda *_: Refuse("why", "in words", 7.0, quota))
    error = error_of(run.start())
    assert (type(error), error.reason, error.message, error.retry_after) == (kind, "why", "in words", 7.0)
    assert run.sent == []


async def test_a_client_learns_that_its_request_may_start_or_has_ended_without(lab):
    run = Scripted(lab, "u")
    assert await run.start(max_tokens=1).wait_admitted()
    run.cut(run.workers["u0"])
    queued = [run.start(deadline=deadline) for deadline in (5.0, 50.0)]
    outcomes = [asyncio.create_task(generation.wait_admitted()) for generation in queued]
    await asyncio.sleep(0)
    assert not any(outcome.done() for outcome in outcomes)
    run.time.advance(5.0)
    run.connect()
    run.load(run.workers["u0"])
    assert await asyncio.gather(*outcomes) == [False, True]


def test_admission_is_asked_with_what_no_worker_caches(lab, monkeypatch):
    run, tickets = Scripted(lab, "u", "u"), []
    monkeypatch.setattr(run.admission, "offer", lambda ticket, *_: tickets.append(ticket) or Admit())
    run.hold("u1")
    run.time.advance(3.0)
    for length in (100, 96):
        run.start(prompt=tuple(range(length)), tenant="t", priority=2, deadline=9.0, max_tokens=50)
    assert [(ticket.need.tokens, ticket.need.growth, ticket.uncached) for ticket in tickets] == [
        (100, 50, 4),
        (96, 50, 1),  # the last token is always computed
    ]
    for ticket in tickets:
        assert (ticket.tenant, ticket.priority, ticket.deadline, ticket.matches) == ("t", 2, 12.0, {"u1": 6})


def test_queued_requests_are_tried_by_the_clock_of_their_quotas(lab, monkeypatch):
    run, times = Scripted(lab, "p"), []
    monkeypatch.setattr(run.admission, "next", lambda _, now: times.append(now) or [])
    run.start()
    run.time.advance(5.0)
    run.load(run.workers["p0"])
    assert times == [0.0, 5.0]


def test_ends_and_tokens_are_counted_and_the_failures_of_workers(lab):
    def counts():
        finishes = [count("requests_total", finish=finish) for finish in ("length", "worker_failed")]
        finishes.append(count("output_limit_used_ratio_sum", finish="length"))
        return [*finishes, *map(count, ("worker_failures_total", "active_requests", "output_tokens_total"))]

    run, before = Scripted(lab, "u"), counts()
    short = [run.start(max_tokens=tokens) for tokens in (1, 9)]
    run.run(20)
    assert [generation.timer.call for generation in short] == [None, None]
    failing = run.start()
    run.fail(run.sub(failing), "invalid", retry=False)
    assert isinstance(error_of(failing), WorkerFailed)
    running = run.start()
    assert [after - was for after, was in zip(counts(), before, strict=True)] == [2, 1, 2, 1, 1, 10]
    run.relay.leave(running)


def test_kv_blocks_are_those_of_all_choices(lab):
    """Counts blocks at its current worker, and the peak of each choice."""
    run, generation, sub = started(lab, "u", request={"choices": 2})
    run.decoding(generation)
    for choice, reserved, peak in ((0, 6, 3), (1, 0, 1), (0, 6, 4), (0, 5, 2)):
        index = len(generation.choices[choice].tokens)
        run.token(sub, choice=choice, index=index, reserved_blocks=reserved, peak_blocks=peak)
    assert (generation.route.kv_blocks_reserved, generation.route.kv_blocks_peak) == (5, 5)


def test_a_requests_stage_is_that_of_its_slowest_part(lab):
    run, generation, _ = started(lab, "u", "u", request={"choices": 2})
    run.cut(run.decoding(generation))
    first, second = run.relay.sub_requests(generation)
    assert [frame.sequence.choices for _, frame in run.frames(Generate)] == [(0, 1), (0,), (1,)], "each separately"
    assert run.relay.progress() == {generation.route: (Stage.QUEUED, 2)}
    for sub in (first, second):
        run.relay.workers.received(sub.place.decode, Started(sub.id, sub.attempt))
    run.token(second, choice=1, index=1)
    assert run.relay.progress() == {generation.route: (Stage.PREFILLING, 3)}


def _unread(lab, *roles, drains=False, slow_client="Pause"):
    """A request whose client reads none of the eight tokens that came last, perhaps during a migration."""
    run, generation, sub = started(lab, *roles, slow_client=slow_client)
    worker, known = run.decoding(generation), generation.completion_tokens
    if drains:
        run.drain(worker)
    tokens = tuple(token_at(7, 0, index) for index in range(known, known + 8))
    run.token(sub, index=known, attempt=sub.place.attempt, token_ids=tokens)
    return run, generation, sub, worker


def test_a_client_that_reads_slowly_pauses_its_worker(lab):
    run, generation, sub, worker = _unread(lab, "u")
    generation.ready()
    assert run.frames(Pause) == [(worker.name, Pause(sub.id, 1, on)) for on in (True, False)]


def test_a_paused_sequence_is_paused_wherever_it_goes(lab):
    run, generation, sub, worker = _unread(lab, "u", "u", "u")
    run.drain(worker)
    target = run.workers[sub.target.decode]
    run.kill(target)
    generation.ready()
    places = [(worker.name, 1, True), (target.name, 2, True), (sub.place.decode, 3, True), (sub.place.decode, 3, False)]
    assert run.frames(Pause) == [(name, Pause(sub.id, attempt, on)) for name, attempt, on in places]


def test_source_and_target_of_a_migration_are_paused(lab):
    run, _, sub, worker = _unread(lab, "u", "u", drains=True)
    assert run.frames(Pause) == [(worker.name, Pause(sub.id, 1, True)), (sub.target.decode, Pause(sub.id, 2, True))]


def test_a_client_that_reads_slowly_is_disconnected_where_the_policy_says_so(lab):
    run, generation, _, worker = _unread(lab, "u", slow_client="Disconnect")
    assert not run.frames(Pause)
    assert [name for name, _ in run.frames(Cancel)] == [worker.name]
    error = error_of(generation)
    assert isinstance(error, SlowClient)
    assert "8 tokens unread" in str(error)
    assert generation.route.seconds["stream"] == 0, "it was not waited for"


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
    run, generation, _ = started(lab, "u", request={"prompt": LONG})
    await asyncio.sleep(0)
    run.relay.leave(generation)
    await _hashed(run)
    assert (run.sent, error_of(generation)) == ([], None)


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
    run, generation, _ = started(lab, "u", request={"prompt": LONG})
    (hashing,) = run.relay._hashing
    hashing.cancel()
    await asyncio.gather(hashing, return_exceptions=True)
    await _hashed(run)
    assert not generation.ended
