"""The autoscaler at work: what it writes, what it tells, and when it keeps its hands off."""

import asyncio
import dataclasses

import pytest
from known_signals import NO_TRAFFIC, arriving, decoder, prefiller
from planned import observed, pod, pools, report

from legato_operator.api import conditions
from legato_operator.autoscaler import idle, record
from legato_operator.autoscaler.decide import DECIDE_EVERY
from legato_operator.autoscaler.signals import Signals
from legato_operator.autoscaling import SCALED_UP, Autoscaler, with_new_sizes, with_scaling
from legato_operator.clock import SystemClock
from legato_operator.cluster import Ref
from legato_operator.errors import Forbidden
from legato_operator.manifests import common
from legato_operator.metrics.service_metrics import ServiceMetrics
from legato_operator.planning.plan import Plan
from legato_operator.reconcile import NOTICED_WITHIN, is_unwatched

BUSY = Signals((prefiller(), decoder()), arriving(600, 2000))
BEHIND = Signals((prefiller(queue_tokens=160_000), decoder()), arriving(420, 2000))
CONFIRMING = Signals((prefiller(), decoder()), arriving(900, 2000))
IDLE = Signals((prefiller(), decoder()), NO_TRAFFIC)
LOADING = decoder(ready=False, sample_age=None, prefill_cost=None)
BLIND = Signals((prefiller(sample_age=None), decoder()), None)
UNTIL = "1970-01-01T00:30:00Z"  # 1,800 s


class _Source:
    """Tells what it is given."""

    def __init__(self, known=BUSY):
        self.known = known
        self.forgotten = []

    async def signals(self, observed):
        self.unchanged_for = observed.now - observed.unchanged_until
        return self.known

    def forget(self, uid):
        self.forgotten.append(uid)


def _observed(build, now=1000.0, prefill=1, decode=1, status=None, mode="Managed", spec=None, **changes):
    """A service with this spec over the usual one, and pools of these sizes."""
    spec = spec or {}
    scaling = {"mode": mode, "prefill": {"max": 10}, **spec.get("scaling", {})}
    at = f"1970-01-01T00:{int(now // 60):02}:{now % 60:09.6f}+00:00"
    known = {"now": now, "timestamp": at, "status": status or {}, **changes}
    return observed(build(**spec | {"scaling": scaling}), pools({"prefill": prefill, "decode": decode}), **known)


class _Looks:
    """Looks of one autoscaler at a service."""

    def __init__(self, build):
        self._build = build
        self.source = _Source()
        self.autoscaler = Autoscaler(self.source, ServiceMetrics())

    def __call__(self, now=1000.0, known=None, **changes):
        self.source.known = known or self.source.known
        return asyncio.run(self.autoscaler.poll(_observed(self._build, now, **changes)))


@pytest.fixture
def look(build):
    return _Looks(build)


def _gpus(resource="nvidia.com/gpu", **scaling):
    """Workers of one GPU each, with these fields of `spec.scaling`."""
    pool = {"resources": {"requests": {resource: 1}}}
    return {"prefill": pool, "decode": pool, "scaling": scaling}


def test_managed_writes_the_wish_as_its_own_field_manager_and_says_why(look):
    scaled = look()
    (action,) = scaled.actions
    assert (action.manager, action.item["spec"], action.force) == (common.AUTOSCALER, {"replicas": 4}, True)
    assert scaled.status["records"][0]["pool"] == "prefill"
    assert scaled.status["pools"]["prefill"]["reason"] == "Arrivals"
    assert scaled.condition.reason == conditions.AUTOSCALING
    assert scaled.news == ((SCALED_UP, "prefill 1 → 4: Arrivals, prompt tokens arriving per second (3.33 needed)"),)


@pytest.mark.parametrize(
    ("limit", "allowed", "by"),
    [
        ({"gpuBudget": 3}, 2, "scaling.gpuBudget"),
        ({"maxPrefillPerDecode": 2}, 2, "scaling.maxPrefillPerDecode"),
        ({"gpuBudget": 5}, None, ""),
    ],
)
def test_what_limits_of_both_pools_leave_of_a_wish_is_told_with_the_decision(look, limit, allowed, by):
    """The wish stays, so that it is followed as soon as the limits allow it."""
    scaled = look(spec=_gpus(**limit))
    (record,) = scaled.status["records"]
    reported = scaled.status["pools"]["prefill"]
    assert reported == {name: value for name, value in record.items() if name != "pool"}
    assert (reported["recommended"], reported.get("allowed"), reported["cappedBy"]) == (4, allowed, by)
    if allowed:
        assert reported["change"] == f"has more than {allowed} only when {by} allows it: 4 are desired"
    assert scaled.actions[0].item["spec"] == {"replicas": 4}


def test_advisory_decides_and_changes_nothing(look):
    scaled = look(mode="Advisory")
    assert (scaled.actions, scaled.news, scaled.status["records"]) == ((), (), [])
    assert scaled.status["pools"]["prefill"]["recommended"] == 4
    assert scaled.condition.reason == conditions.ADVISORY


@pytest.mark.parametrize("changes", [{"mode": "External"}, {"deleting": True}])
def test_nobody_scales_a_service_that_others_scale_or_that_ends(look, changes):
    nothing = look(**changes)
    assert nothing == type(nothing)()
    assert look.source.forgotten == ["uid"]


def _holding(requests):
    held = {"queued_requests": requests, "queued_tokens": 10 * requests, "queued_prompt_tokens": 10 * requests}
    return pod("gateway-0", common.GATEWAY, report=report(**held))


@pytest.mark.parametrize(
    ("held", "prefill", "decode", "decides"),
    [(1, 0, 0, True), (0, 0, 0, False), (1, 0, 1, False), (1, 1, 0, False)],
    ids=["woken", "nobody waits", "a decode worker", "a prefill worker"],
)
def test_a_request_at_zero_is_decided_about_at_once(look, held, prefill, decode, decides):
    """Else a look that came just before it would make it wait for the next one."""
    at_zero = {"prefill": prefill, "decode": decode}
    first = look(known=IDLE, **at_zero)
    again = look(1000.0 + DECIDE_EVERY / 2, BUSY, pods=(_holding(held),), **at_zero)
    assert bool(again.actions) is decides
    assert (again.status is first.status) is not decides


def test_a_pause_ends_by_itself(look):
    paused = {"annotations": {common.ANNOTATION_PAUSED: UNTIL}}
    during = look(1799.0, **paused)
    assert (during.actions, during.condition.reason) == ((), conditions.PAUSED)
    assert during.status["pausedUntil"] == UNTIL
    # However many requests are queued meanwhile, nothing is decided before its time.
    assert look(1799.5, pods=[_holding(1)], prefill=0, decode=0, **paused).status is during.status
    assert look(1801.0, **paused).actions
    assert look(1803.0, annotations={common.ANNOTATION_PAUSED: "soon"}).actions, "not a time"


def test_decisions_are_two_seconds_apart_however_often_passes_are(look):
    assert look().actions
    again = look(1000.5)
    assert (again.actions, again.news) == ((), ())
    assert again.due == pytest.approx(1.5)
    assert look(1002.0).actions


def test_a_size_that_somebody_else_set_is_kept_for_the_window(look):
    """`kubectl scale` with mode Managed: more workers than needed stay as if they had been desired now."""
    for now in range(0, 1000, 2):
        look(float(now), IDLE)
    assert not look(1000.0, prefill=6).actions
    assert not look(1002.0, prefill=6).actions
    assert not look(1004.0, BUSY, prefill=2).actions  # for 30 s


@pytest.mark.parametrize(
    ("known", "late", "reason"),
    [
        (BLIND, 1030.0, conditions.METRICS_STALE),
        (BLIND, 1028.0, conditions.AUTOSCALING),
        (Signals((), None), 1040.0, conditions.METRICS_STALE),  # a silent gateway, and no workers
        # No worker is ready, so none can report: a model loads for minutes while prompts arrive.
        (Signals((LOADING,), arriving(60, 100)), 1040.0, conditions.AUTOSCALING),
    ],
)
def test_metrics_are_stale_after_thirty_seconds_without_and_nothing_shrinks(look, known, late, reason):
    assert look(known=known, prefill=3).condition.reason == conditions.AUTOSCALING
    scaled = look(late, prefill=3)
    assert scaled.status["pools"]["prefill"]["missing"]
    assert (scaled.condition.reason, scaled.actions) == (reason, ())


def test_records_are_the_last_twenty_and_none_is_lost_with_a_write(look):
    status = {}
    for number, size in enumerate([1, 2] * 15):
        known = Signals((prefiller(), decoder()), arriving(600 * size, 2000))
        scaled = look(1000.0 + 2 * number, known, status=status)
        if number != 27:  # that write fails
            status = {"scaling": scaled.status}
    times = [each["time"] for each in status["scaling"]["records"]]
    assert len(times) == record.MOST_RECORDS
    assert times == sorted(set(times))
    assert any(time.startswith("1970-01-01T00:17:34") for time in times)  # of the write that failed


def test_numbers_alone_do_not_change_the_status_more_often_than_every_thirty_seconds(look):
    first = look(prefill=4).status
    status = {"scaling": first}
    soon = look(1028.0, Signals((prefiller(), decoder()), arriving(610, 2000)), prefill=4, status=status).status
    later = look(1030.0, prefill=4, status=status).status
    assert soon["pools"] == first["pools"]
    assert later["pools"]["prefill"] != first["pools"]["prefill"]


@pytest.mark.parametrize(("known", "reason"), [(CONFIRMING, "Confirming"), (BEHIND, "Arrivals")])
def test_another_state_is_written_immediately_and_another_term_later(look, known, reason):
    """A need of five that has not lasted, and a backlog of four."""
    status = {"scaling": look(prefill=4).status}
    assert look(1002.0, known, prefill=4, status=status).status["pools"]["prefill"]["reason"] == reason


def test_a_plan_tells_of_scaling_and_stops_telling_when_nobody_scales(look, build):
    scaled = look()
    made = with_scaling(Plan((), {"conditions": []}, 30.0), _observed(build), scaled)
    assert [phase.name for phase in scaled.phases] == ["scale"]
    assert with_new_sizes(_observed(build), scaled).desired_replicas == {"prefill": 4, "decode": 1}
    assert made.requeue_after == 2.0
    assert [each["type"] for each in made.status["conditions"]] == [conditions.SCALING_ACTIVE]
    stopped = with_scaling(Plan((), made.status, 30.0), _observed(build, mode="External"), look(mode="External"))
    assert stopped.status == {"conditions": [], "scaling": None}


class _Ahead(SystemClock):
    """Passes wait for nothing: each is as late as the last one asked for."""

    ahead = 0.0

    def now(self):
        return super().now() + self.ahead


async def _pass(f, clock):
    clock.ahead += await f.reconciler.reconcile(Ref("InferenceService", "default", "demo"))


async def _pass_until(f, clock, condition):
    async def passed():
        await _pass(f, clock)
        return await condition()

    await f.wait(passed)


@pytest.mark.parametrize(
    ("known", "changes", "stable"),
    [
        (IDLE, {}, [idle.LONGEST] * 3),
        (BUSY, {}, [0.0] * 3),
        (BLIND, {}, [0.0] * 3),
        (IDLE, {"annotations": {common.ANNOTATION_PAUSED: UNTIL}}, [0.0] * 3),
        (IDLE, {"spec": {"slo": {"tpot": "1ms"}}}, [0.0, 0.0, idle.LONGEST]),  # until the condition reports it
    ],
)
def test_decisions_are_foretold_unless_more_than_demand_may_change_them(look, known, changes, stable):
    assert [look(now, known, **changes).stable_for for now in (1000.0, 1010.0, 1035.0)] == stable


def test_decision_that_was_not_made_again_foretells_nothing(look):
    assert look(1000.0, IDLE).stable_for > 0
    assert look(1001.0, IDLE).stable_for == 0


class _Counted:
    """A cluster that counts calls of it, and gateways that report no demand, or nothing."""

    def __init__(self):
        self.calls = 0
        self.reported = report()
        self.edit = None  # made by a user while a gateway is asked

    def of(self, cluster):
        self._cluster = cluster
        return self

    def __getattr__(self, name):
        self.calls += 1
        return getattr(self._cluster, name)

    async def report(self, address, tokens, tls=None):
        if self.edit is not None:
            await self._cluster.apply(self.edit, "user")
        return self.reported


async def test_a_settled_service_costs_only_polls_of_its_gateways(fakes, build):
    """Until something wakes it, its gateway's state changes, or there is something to do."""
    source, clock, counted = _Source(IDLE), _Ahead(), _Counted()
    async with fakes(False, Autoscaler(source, ServiceMetrics()), clock=clock, seen=counted.of, gateways=counted) as f:
        service = build(scaling={"mode": "Managed", "prefill": {"max": 10}})
        await f.cluster.store.apply(service, "user")

        async def is_polled(woken=False):
            counted.calls = 0
            clock.ahead += await f.reconciler.reconcile(Ref("InferenceService", "default", "demo"), woken)
            return not counted.calls

        await f.wait(is_polled)
        assert await is_polled()
        assert not await is_polled(woken=True)
        for reported in (None, report(), report(retried=("worker_lost",)), report(), report(adapters="new")):
            counted.reported = reported
            assert not await is_polled()
            await f.wait(is_polled)
        paused = {**service["metadata"], "annotations": {common.ANNOTATION_PAUSED: "2999-01-01T00:00:00Z"}}
        counted.edit = {**service, "metadata": paused}
        source.known = BUSY
        assert not await is_polled()
        assert await _prefill_replicas(f) == 1, "paused after the decision, and before it was written"
        counted.edit = service

        async def is_scaled():
            return not await is_polled() and await _prefill_replicas(f) == 4

        await f.wait(is_scaled)


class _Waker:
    """Waits for all gateways, or for none."""

    waits = True

    def follow(self, service, observed, idle):
        return idle and self.waits

    def forget(self, service):
        return


async def test_a_service_whose_gateways_are_waited_for_needs_few_polls_and_passes(fakes, build):
    source, clock, counted, waker = _Source(IDLE), _Ahead(), _Counted(), _Waker()
    async with fakes(
        False, Autoscaler(source, ServiceMetrics()), clock=clock, seen=counted.of, gateways=counted, waker=waker
    ) as f:
        f.reconciler._placement = dataclasses.replace(f.reconciler._placement, idle_resync_after=600.0)
        await f.cluster.store.apply(build(scaling={"mode": "Managed", "prefill": {"max": 10}}), "user")

        async def due():
            counted.calls = 0
            seconds = await f.reconciler.reconcile(Ref("InferenceService", "default", "demo"), False)
            clock.ahead += seconds
            return seconds

        await f.wait(lambda: _is_idle(due))
        idle_for = await due()
        while not counted.calls:  # until a pass
            assert source.unchanged_for == pytest.approx(NOTICED_WITHIN, abs=1e-3)
            idle_for += await due()
        assert 300.0 - 2 * idle.LONGEST <= idle_for <= 600.0 + idle.LONGEST
        await f.wait(lambda: _is_idle(due))  # no decision is made within two seconds of the last
        waker.waits = False
        assert await due() == DECIDE_EVERY
        assert source.unchanged_for == pytest.approx(NOTICED_WITHIN, abs=1e-3)
        assert await due() <= DECIDE_EVERY
        assert source.unchanged_for > 1e6
        source.known = BEHIND
        await due()
        assert await _prefill_replicas(f) == len(await f.pods("prefill")) == 4, "all in one pass"


def _adapters(status):
    rest = {"reason": "", "message": "", "lastTransitionTime": ""}
    return {"conditions": [{"type": conditions.ADAPTERS_READY, "status": status, **rest}]}


@pytest.mark.parametrize(
    ("pods", "status", "unwatched"),
    [
        ([pod("demo-decode-0", "decode"), pod("demo-gateway-0", "gateway")], {}, False),
        ([], _adapters("Unknown"), False),  # at zero
        ([], _adapters("False"), True),  # workers try again
        ([pod("demo-decode-0", "decode", state=None)], {}, True),
        ([pod("demo-decode-0", "decode", ready=False, state=None)], {}, False),  # its readiness is watched
        ([], {"routes": [{"kind": "Ingress"}]}, True),
    ],
)
def test_some_changes_are_only_noticed_by_passes(build, pods, status, unwatched):
    assert is_unwatched(observed(build(), (), pods), status) is unwatched


async def _is_idle(due):
    return await due() == idle.LONGEST


async def _prefill_replicas(f):
    pool = await f.cluster.store.get(Ref("WorkerPool", "default", "demo-prefill"))
    return pool["spec"]["replicas"]


class _Unscalable:
    """A cluster that lets the autoscaler write nothing."""

    def __init__(self, cluster):
        self._cluster = cluster

    async def apply(self, item, manager, force=False):
        if manager == common.AUTOSCALER:
            raise Forbidden("no sizes")
        return await self._cluster.apply(item, manager, force)

    def __getattr__(self, name):
        return getattr(self._cluster, name)


async def test_a_size_that_cannot_be_written_starts_nobody_and_the_rest_is_done(fakes, build):
    source, clock = _Source(IDLE), _Ahead()
    async with fakes(False, Autoscaler(source, ServiceMetrics()), clock=clock, seen=_Unscalable) as f:
        await f.cluster.store.apply(build(scaling={"mode": "Managed"}), "user")
        await _pass_until(f, clock, lambda: _are_ready(f, "demo-prefill-0"))
        source.known = BEHIND
        clock.ahead += DECIDE_EVERY
        (pod,) = (await f.pods("decode")).values()
        await f.cluster.store.remove(Ref("Pod", "default", "demo-decode-0"), pod["metadata"]["uid"])
        with pytest.raises(Forbidden, match="no sizes"):
            await _pass(f, clock)
        assert set(await f.pods("decode")) == {"demo-decode-0"}
        assert set(await f.pods("prefill")) == {"demo-prefill-0"}
        told = conditions.find((await f.service())["status"], conditions.PROGRESSING)
        assert (told["reason"], told["message"]) == (conditions.API_REFUSED, "no sizes")


async def _are_ready(f, *names):
    return await f.ready("prefill") == set(names)


def test_what_it_decides_and_changes_is_sent_to_its_journal(look):
    heard = []

    class Journal:
        def record_decision(self, service, decision):
            heard.append(("recommended", service.name, decision.pool))

        def record_change(self, service, decision):
            heard.append(("changed", decision.pool, decision.desired))

        def forget_decisions(self, service):
            heard.append(("forgot", service.name))

    look.autoscaler = Autoscaler(look.source, Journal())
    look()
    look(1002.0, prefill=4, mode="Advisory")
    look.autoscaler.forget("uid")
    wishes = [("recommended", "demo", "decode"), ("recommended", "demo", "prefill")]
    assert heard == [*wishes, ("changed", "prefill", 4), *wishes, ("forgot", "demo")]


LOW, MET = {"slo": {"tpot": "1ms"}}, {"slo": {"tpot": "100ms"}}


@pytest.mark.parametrize("mode", ["Managed", "Advisory"])
def test_an_objective_that_an_empty_worker_misses_for_thirty_seconds_is_told_without_numbers(look, mode):
    """Measured costs vary: the message would be another one with each look."""
    first = look(known=IDLE, mode=mode, spec=LOW)
    assert first.condition.message == ""
    assert "a decode step of one sequence takes 11 ms" in first.status["pools"]["decode"]["unmet"][0]
    late = look(1030.0, mode=mode, spec=LOW)
    assert late.condition.message == "even an idle worker misses slo.tpot: status.scaling.pools has the arithmetic"
    assert late.condition.status is (mode == "Managed")


def test_it_is_told_no_more_when_it_can_be_met_and_anew_only_after_as_long(look):
    for now, spec in ((1000.0, LOW), (1028.0, MET), (1030.0, LOW), (1058.0, LOW)):
        assert look(now, IDLE, spec=spec).condition.message == ""
    assert look(1060.0, spec=LOW).condition.message
    assert look(1062.0, spec=MET).condition.message == ""


def test_at_rest_the_arithmetic_is_written_once_it_differs_and_no_sooner_than_after_thirty_seconds(look):
    before = look(known=IDLE, spec=MET).status
    soon = look(1028.0, status={"scaling": before}, spec=LOW).status
    late = look(1030.0, status={"scaling": before}, spec=LOW).status
    assert "unmet" not in soon["pools"]["decode"]
    assert late["pools"]["decode"]["unmet"]
    assert look(1500.0, status={"scaling": late}, spec=LOW).status == late
