"""The relay in virtual time: whose reports count, what waits for how long, and which worker is blamed for a failure."""

from itertools import pairwise

import pytest
from relay_script import Scripted, count, error_of, started

from legato_gateway.admission.ticket import NO_WORKER
from legato_gateway.errors import NotComputable, Overloaded, SuspectedPoison, WorkerFailed
from legato_gateway.relay.lifecycle import Stage
from legato_gateway.routing.choose import Policy
from legato_gateway.testing.fake_engine import ScriptedRefusal
from legato_protocol.wire.stream import Cancel, Decode, Failed, Generate, Started


def test_tokens_of_a_worker_that_does_not_decode_it_are_dropped(lab):
    """Also under the current attempt: the prefill worker of a pair has no say in what the client reads."""
    run, generation, sub = started(lab, "p", "d")
    for worker, tokens in ((sub.place.prefill, 0), (sub.place.decode, 1)):
        run.token(sub, worker)
        assert generation.completion_tokens == tokens


def test_many_frames_are_one_pass(lab, monkeypatch):
    run, offered, passes = Scripted(lab, "u", "u", "u"), [], []
    monkeypatch.setattr(run.relay._driver, "offer_room", lambda: offered.append(run.time.now))
    for frames, seconds in ((0, 1.0), (50, 0.0), (1, 0.001), (0, 0.01)):
        for worker in [*run.workers.values()] * frames:
            run.relay.workers.received(worker.name, worker.load())
        run.time.advance(seconds)
        passes.append(len(offered))
    assert [after - before for before, after in pairwise(passes)] == [1, 0, 1], "the next one comes a little later"


def _tries(monkeypatch, run, name):
    """A list that grows with each call of this method of the dispatcher."""
    tried, method = [], getattr(run.relay._dispatcher, name)
    monkeypatch.setattr(run.relay._dispatcher, name, lambda sub: tried.append(sub) or method(sub))
    return tried


def test_a_drained_sequence_is_not_tried_again_before_room_opens(lab, monkeypatch):
    """In a full fleet it costs next to nothing, however often workers report their load."""
    run, generation, _ = started(lab, "u", "u")
    source = run.decoding(generation)
    (target,) = run.others(source)
    target.blocks = 0
    run.load(target)
    tried = _tries(monkeypatch, run, "may_migrate")
    run.drain(source)
    for _ in range(20):
        run.load(source)
        run.load(target)
    assert len(tried) == 1
    target.blocks = 1000
    run.load(target)
    assert run.frames(Decode)


@pytest.mark.parametrize("progress", [False, True])
def test_failures_in_a_row_end_a_request_and_a_token_between_them_forgives(lab, progress):
    before = count("redispatches_total", reason="internal")
    run, generation, sub = started(lab, "u", max_failures=2)
    for _ in range(3):
        run.time.advance(1.0)
        if progress:
            run.decoding(generation)
        run.fail(sub)
    assert generation.ended is not progress
    assert count("redispatches_total", reason="internal") == before + (3 if progress else 2)


def test_after_the_second_failure_in_a_row_there_is_a_pause(lab):
    run, _, sub = started(lab, "u", first_delay=0.5)
    other = run.start()
    for each in (sub, run.sub(other)):
        for stage in (Stage.QUEUED, Stage.BACKING_OFF):
            run.fail(each)
            assert each.stage is stage
    run.relay.leave(other)
    for seconds, stage in ((0.4, Stage.BACKING_OFF), (0.2, Stage.QUEUED)):
        run.time.advance(seconds)
        assert sub.stage is stage
    run.check()


def test_a_tenant_is_charged_for_output_with_each_load_and_at_the_end(lab):
    run, generation, _ = started(lab, "u", request={"tenant": "t", "max_tokens": 10})
    run.load(run.decoding(generation))
    assert run.admission._counters["t"] == 100 + 2 * generation.completion_tokens
    assert run.end(generation) is None
    assert run.admission._counters["t"] == 100 + 2 * 10


def test_reports_of_an_attempt_that_is_over_or_of_nobody_change_nothing(lab):
    run, generation, sub = started(lab, "u", "u")
    first = sub.place.decode
    run.fail(sub, "overloaded")
    del run.sent[:]
    late = count("late_items_total")
    run.relay.workers.received(first, Started(sub.id, 1))
    run.token(sub, first, attempt=1)
    run.relay.workers.received(first, Failed(sub.id, 1, "internal", "scripted", "prefill", True))
    run.relay.workers.received(first, Failed("nobody", 1, "internal", "?", "decode", True))
    assert (sub.stage, sub.attempt, sub.started_on, generation.completion_tokens) == (Stage.QUEUED, 2, set(), 0)
    assert run.sent == [(first, Cancel(sub.id, 2))], "it may not know"
    assert count("late_items_total") == late + 1


def test_a_part_that_nobody_will_take_ends_its_siblings_too(lab):
    """Choice 2 has output, 0 and 1 have none; with nobody to prefill, the first of these ends the request."""
    run = Scripted(lab, "p", "d", "d")
    run.relay._dispatcher._policy = Policy(0, "Fail")
    generation = run.start(choices=3)
    sub = run.sub(generation)
    decoder = run.workers[sub.place.decode]
    run.token(sub, choice=2)
    assert generation.completion_tokens == 1
    run.kill(run.workers["p0"])
    run.kill(decoder)
    assert isinstance(error_of(generation), Overloaded)
    assert run.relay.waiting == 0
    run.check()


@pytest.mark.parametrize("has_output", [False, True])
def test_what_no_worker_can_ever_take_is_refused_unless_its_client_has_output(lab, has_output):
    """A larger worker may come, and a client that has read something waits for it."""
    run, generation, sub = started(lab, "u", request={"max_tokens": 50})
    if has_output:
        run.decoding(generation)
    run.workers["u0"].blocks = 2
    run.replace(run.workers["u0"])
    if has_output:
        assert sub.stage is Stage.WAITING
    else:
        error = error_of(generation)
        assert (type(error), error.reason) == (Overloaded, NO_WORKER)
    assert run.demand().refused == ({} if has_output else {NO_WORKER: 1})


@pytest.mark.parametrize(("code", "avoided"), [("peer_lost", "p"), ("transfer", "d"), ("overloaded", "d")])
def test_for_a_lost_peer_the_other_worker_is_avoided(lab, code, avoided):
    run, generation, sub = started(lab, "p", "p", "d", "d")
    place = sub.place
    run.fail(sub, code)
    assert (sub.attempt, sub.avoid) == (2, {place.prefill if avoided == "p" else place.decode})
    assert generation.suspected == set(), "it was only queued"
    assert sub.avoid.isdisjoint(sub.place.workers)


def _dies(run, prefill, noticed_by):
    """A prefill worker dies; the gateway notices it after the decode worker did."""
    if noticed_by == "gateway":
        run.kill(prefill)
    prefill.renew()
    run.run()
    run.cut(prefill)


HELD_AT = {"pending": "queued", "granted": "prefilling", "writing": "pushing", "adopted": "decoding"}


@pytest.mark.parametrize("noticed_by", ["gateway", "decode worker"])
@pytest.mark.parametrize("phase", HELD_AT)
@pytest.mark.parametrize(
    ("policy", "then"),
    [("Retry", (2, "separate", 1)), ("Recompute", (2, "recompute", 1)), ("Fail", ("transfer", WorkerFailed, 0))],
)
def test_a_dead_prefill_worker_is_a_failed_hand_off_whoever_notices_it(lab, noticed_by, phase, policy, then):
    """Until the decode worker has all KV, whose phases are those of an incoming transfer."""
    before = count("redispatches_total", reason="peer_lost")
    run, generation, sub = started(lab, "p", "p", "d", request={"max_tokens": 9}, on_transfer_failure=policy)
    for worker in run.workers.values():
        worker.engine.hold(HELD_AT[phase])
    prefill, decode = (run.workers[name] for name in (sub.place.prefill, sub.place.decode))
    run.until(lambda: prefill.engine.at(HELD_AT[phase]) or decode.engine.at(HELD_AT[phase]))
    _dies(run, prefill, noticed_by)
    outcome = (
        (sub.attempt, sub.place.prefill_at) if sub.place else (error_of(generation).part, type(error_of(generation)))
    )
    redispatches = count("redispatches_total", reason="peer_lost") - before
    assert (*outcome, redispatches) == ((1, "separate", 0) if phase == "adopted" else then)
    assert sub.place is None or prefill.name not in sub.place.workers or phase == "adopted"
    for worker in run.workers.values():
        worker.engine.release()
    assert run.end(generation) is None or policy == "Fail" != phase
    assert generation.ended


@pytest.mark.parametrize("noticed_by", ["gateway", "decode worker"])
def test_two_deaths_while_a_prompt_is_computed_are_counted_whoever_notices_them(lab, noticed_by):
    run, generation, sub = started(lab, "p", "p", "p", "d", poison_deaths=2)
    for _ in range(2):
        run.until(lambda: sub.stage is Stage.PREFILLING)
        _dies(run, run.workers[sub.place.prefill], noticed_by)
    error = error_of(generation)
    assert (type(error), error.part) == (SuspectedPoison, "prefill")


@pytest.mark.parametrize("stage", [Stage.QUEUED, Stage.DECODING])
@pytest.mark.parametrize("policy", ["Retry", "Fail"])
@pytest.mark.parametrize("lose", [Scripted.kill, Scripted.cut, Scripted.replace])
def test_what_becomes_of_the_requests_of_a_lost_worker_is_a_policy(lab, stage, policy, lose):
    run, generation, sub = started(lab, "u", "u", request={"max_tokens": 9}, on_worker_failure=policy)
    if stage is Stage.DECODING:
        run.decoding(generation)
    lose(run, run.workers[sub.place.decode])
    if policy == "Fail":
        error = error_of(generation)
        assert (type(error), error.part) == (WorkerFailed, "decode" if stage is Stage.DECODING else "prefill")
    else:
        assert run.end(generation) is None
    assert run.relay.demand.recent_retries(run.time.now) == (("worker_lost",) if policy == "Retry" else ())


@pytest.mark.parametrize(
    ("code", "seconds", "recent"), [("internal", 59, True), ("internal", 60, False), ("stale", 0, False)]
)
def test_retries_after_failures_are_reported_for_a_minute(lab, code, seconds, recent):
    run, _, sub = started(lab, "u", "u")
    run.fail(sub, code)
    run.time.advance(seconds)
    assert run.relay.demand.recent_retries(run.time.now) == (("internal",) if recent else ())


@pytest.mark.parametrize("dies", [Scripted.replace, Scripted.kill])
def test_two_deaths_of_different_processes_are_not_forgiven(lab, dies):
    run, generation, _ = started(lab, "u", "u", poison_deaths=2)
    for _ in range(2):
        dies(run, run.decoding(generation))
    assert isinstance(error_of(generation), SuspectedPoison)
    assert len(run.frames(Generate)) == 2


def test_a_death_and_cores_that_were_killed_for_their_silence_are_not_two_deaths(lab):
    run, generation, _ = started(lab, "u", "u", request={"max_tokens": 30}, poison_deaths=2)
    run.kill(run.decoding(generation))
    for _ in range(2):
        run.connect()
        run.lose_core(run.decoding(generation), silent=True)
    assert run.end(generation) is None


def test_reconnecting_forgives_what_looked_like_a_death(lab):
    run, generation, _ = started(lab, "u", "u", request={"max_tokens": 30}, poison_deaths=2)
    left = []
    for _ in range(4):
        worker = run.decoding(generation)
        left.append(worker.name)
        run.cut(worker)
        run.connect()
    assert left[0] != left[1], "it would be one process that went away, however often"
    assert {name for name, _ in generation.deaths} == set(left)
    assert run.end(generation) is None
    assert run.texts[generation, 0] == lab.text_of(7, 30)


def _faulty(run, *names, times=1):
    for name in names:
        run.workers[name].engine.refusals.extend([ScriptedRefusal("faulted", retry=True)] * times)


def _broken(run):
    return [worker.name for worker in run.fleet.snapshot().workers if worker.broken]


def test_a_request_whose_logits_are_not_finite_twice_is_refused_and_no_worker_is_blamed(lab):
    run = Scripted(lab, "u", "u", "u")
    for _ in range(5):
        _faulty(run, *run.workers)
        generation = run.start()
        error = run.end(generation)
        assert (type(error), error.permanent, generation.route.attempt) == (NotComputable, True, 2)
        for worker in run.workers.values():
            worker.engine.refusals.clear()
    assert _broken(run) == []


def test_faults_are_counted_when_the_decode_worker_is_first_to_report_the_end(lab):
    """A prefill that faults aborts its hand-off: the decode worker's report of that may overtake the cause."""
    run, generation, sub = started(lab, "p", "d")
    for attempt in (1, 2, 3):
        run.until(lambda attempt=attempt: sub.attempt == attempt)
        prefill = sub.place.prefill
        run.fail(sub, "transfer", part="transfer")
        if attempt < 3:
            run.relay.workers.received(prefill, Failed(sub.id, attempt, "faulted", "not finite", "prefill", True))
    assert isinstance(error_of(generation), NotComputable)


@pytest.mark.parametrize(("roles", "faults", "broken"), [("uu", 3, ["u0"]), ("u", 1, [])])
def test_a_fault_is_its_workers_own_where_another_one_does_not_have_it(lab, roles, faults, broken):
    """And nobody's where it does not come again at the same worker."""
    run = Scripted(lab, *roles)
    for number in range(30):
        if number < 3 // faults:
            _faulty(run, "u0", times=faults)
        generation = run.start(max_tokens=1, prompt=(1, 2, 3))
        assert run.end(generation) is None
        assert len(roles) > 1 or generation.route.attempt == (2 if number < 3 else 1)
    assert _broken(run) == broken


@pytest.mark.parametrize(
    ("code", "requests", "broken"),
    [("internal", 3, ["u0"]), ("transfer", 3, ["u0"]), ("internal", 1, []), ("overloaded", 3, [])],
)
def test_a_worker_at_which_several_requests_failed_is_avoided(lab, code, requests, broken):
    """One request that fails three times counts once, and a full worker not at all."""
    run = Scripted(lab, "u")
    subs = [run.sub(run.start()) for _ in range(requests)]
    for sub in subs * (3 // requests):
        run.fail(sub, code)
        run.time.advance(1.0)
        assert sub.stage is Stage.QUEUED, "there is no other worker"
    assert _broken(run) == broken


@pytest.mark.parametrize(
    ("choice", "index", "message"), [(1, 0, "sent tokens of choice 1"), (0, 7, "left out tokens 0 to 6")]
)
def test_tokens_that_cannot_be_right_end_the_attempt(lab, choice, index, message):
    run, generation, sub = started(lab, "u", "u")
    worker = sub.place.decode
    run.token(sub, choice=choice, index=index)
    assert sub.last_failure == Failed(sub.id, 1, "internal", f"{worker} {message}", "decode", True)
    assert (sub.attempt, sub.avoid, generation.completion_tokens) == (2, {worker}, 0)
    assert (worker, Cancel(sub.id, 1)) in run.sent
