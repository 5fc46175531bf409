"""The autoscaler at work: what it writes, what it tells, and when it keeps its hands off."""

import asyncio
import dataclasses

import pytest
from known_signals import NO_TRAFFIC, arriving, decoder, prefiller

from legato_operator.api import conditions, parsing
from legato_operator.autoscaler import record
from legato_operator.autoscaler.signals import Signals
from legato_operator.autoscaling import DECIDE_EVERY, SCALED_UP, Autoscaler, with_scaling, with_wishes
from legato_operator.clock import SystemClock
from legato_operator.cluster import Ref, is_leaving
from legato_operator.errors import Forbidden
from legato_operator.manifests import common, pool
from legato_operator.observing.observed import Observed, Pod
from legato_operator.planning.plan import Plan
from legato_protocol.demand import DemandReport

BUSY = Signals((prefiller(), decoder()), arriving(600, 2000))
IDLE = Signals((prefiller(), decoder()), NO_TRAFFIC)
BLIND = Signals((prefiller(sample_age=None), decoder()), None)
UNTIL = "1970-01-01T00:30:00Z"  # 1,800 s


class _Source:
    """Tells what it is given."""

    def __init__(self, known=BUSY):
        self.known = known
        self.forgotten = []

    async def signals(self, observed):
        return self.known

    def forget(self, uid):
        self.forgotten.append(uid)


def _observed(build, now=1000.0, prefill=1, decode=1, status=None, mode="Managed", **changes):
    service = parsing.read_service(build(scaling={"mode": mode, "prefill": {"max": 10}}))
    pools = tuple(
        {**pool.scale(service, role, count), "spec": {"role": role, "replicas": count}}
        for role, count in (("prefill", prefill), ("decode", decode))
    )
    stamp = f"1970-01-01T00:{int(now // 60):02}:{now % 60:09.6f}+00:00"
    empty = Observed(service, "uid", 1, status or {}, False, pools, (), True, now, stamp)
    return dataclasses.replace(empty, **changes)


def _look(autoscaler, observed):
    return asyncio.run(autoscaler.look(observed))


def test_managed_writes_the_wish_as_its_own_field_manager_and_says_why(build):
    scaled = _look(Autoscaler(_Source()), _observed(build))
    (action,) = scaled.actions
    assert (action.manager, action.item["spec"], action.force) == (common.AUTOSCALER, {"replicas": 4}, True)
    assert scaled.status["records"][0]["pool"] == "prefill"
    assert scaled.status["pools"]["prefill"]["reason"] == "Arrivals"
    assert scaled.condition.reason == conditions.AUTOSCALING
    assert [reason for reason, _ in scaled.news] == [SCALED_UP]


@pytest.mark.parametrize(
    ("limit", "allowed", "by"),
    [
        ({"gpuBudget": 3}, 2, "scaling.gpuBudget"),
        ({"maxPrefillPerDecode": 2}, 2, "scaling.maxPrefillPerDecode"),
        ({"gpuBudget": 5}, None, ""),
    ],
)
def test_what_limits_of_both_pools_leave_of_a_wish_is_told_with_the_decision(build, limit, allowed, by):
    """The wish stays, so that it is followed as soon as the limits allow it."""
    gpu = {"resources": {"requests": {"nvidia.com/gpu": 1}}}
    observed = _observed(lambda scaling: build(scaling={**scaling, **limit}, prefill=gpu, decode=gpu))
    scaled = _look(Autoscaler(_Source()), observed)
    (record,) = scaled.status["records"]
    told = scaled.status["pools"]["prefill"]
    assert told == {name: value for name, value in record.items() if name != "pool"}
    assert (told["wish"], told.get("allowed"), told["cappedBy"]) == (4, allowed, by)
    if allowed:
        assert told["change"] == f"has more than {allowed} only when {by} allows it: the wish is 4"
    assert scaled.actions[0].item["spec"] == {"replicas": 4}


def test_a_pool_that_the_ratio_makes_larger_than_its_wish_is_told(build):
    observed = _observed(lambda scaling: build(scaling={**scaling, "prefill": {"min": 4}, "maxPrefillPerDecode": 2}))
    told = _look(Autoscaler(_Source(IDLE)), observed).status["pools"]["decode"]
    assert (told["wish"], told["allowed"]) == (1, 2)
    assert told["change"].startswith("has fewer than 2 only when scaling.prefill.min")


def test_other_gpu_resources_count_in_the_budget(build):
    gpu = {"resources": {"requests": {"example.com/gpu": 1}}}
    observed = _observed(lambda scaling: build(scaling={**scaling, "gpuBudget": 3}, prefill=gpu, decode=gpu))
    told = _look(Autoscaler(_Source(), gpu_resources=("example.com/gpu",)), observed).status["pools"]["prefill"]
    assert (told["wish"], told["allowed"]) == (4, 2)


def test_advisory_decides_and_changes_nothing(build):
    scaled = _look(Autoscaler(_Source()), _observed(build, mode="Advisory"))
    assert not scaled.actions
    assert not scaled.news
    assert not scaled.status["records"]
    assert scaled.status["pools"]["prefill"]["wish"] == 4
    assert scaled.condition.reason == conditions.ADVISORY


@pytest.mark.parametrize("mode", ["External", "Managed"])
def test_nobody_scales_a_service_that_others_scale_or_that_ends(build, mode):
    source = _Source()
    autoscaler = Autoscaler(source)
    observed = _observed(build, mode=mode, deleting=mode == "Managed")
    assert _look(autoscaler, observed) == type(_look(autoscaler, observed))()
    assert source.forgotten == ["uid", "uid"]


@pytest.mark.parametrize(
    ("held", "prefill", "decode", "decides"),
    [(1, 0, 0, True), (0, 0, 0, False), (1, 0, 1, False), (1, 1, 0, False)],
    ids=["woken", "nobody waits", "a decode worker", "a prefill worker"],
)
def test_a_request_at_zero_is_decided_about_at_once(build, held, prefill, decode, decides):
    """Else a look that came just before it would make it wait for the next one."""
    holding = DemandReport("g", 1e6, (), {}, (), 0.0, {}, (), held, 10 * held, 10 * held, ())
    gateway = Pod("gateway-0", "uid", common.GATEWAY, "", "0", ready=True, leaving=False, report=holding)
    source = _Source(IDLE)
    autoscaler, at_zero = Autoscaler(source), {"prefill": prefill, "decode": decode}
    first = _look(autoscaler, _observed(build, **at_zero))
    source.known = BUSY
    again = _look(autoscaler, _observed(build, now=1000.0 + DECIDE_EVERY / 2, pods=(gateway,), **at_zero))
    assert bool(again.actions) is decides
    assert (again.status is first.status) is not decides


def test_in_a_pause_nothing_is_decided_out_of_turn(build):
    """However many requests are held meanwhile: a pass may follow another at once."""
    holding = DemandReport("g", 1e6, (), {}, (), 0.0, {}, (), 1, 10, 10, ())
    gateway = Pod("gateway-0", "uid", common.GATEWAY, "", "0", ready=True, leaving=False, report=holding)
    at_zero = {"prefill": 0, "decode": 0, "pods": (gateway,), "annotations": {common.ANNOTATION_PAUSED: UNTIL}}
    autoscaler = Autoscaler(_Source())
    first = _look(autoscaler, _observed(build, **at_zero))
    assert _look(autoscaler, _observed(build, now=1000.5, **at_zero)).status is first.status


def test_a_pause_ends_by_itself(build):
    autoscaler = Autoscaler(_Source())
    paused = {common.ANNOTATION_PAUSED: UNTIL}
    during = _look(autoscaler, _observed(build, now=1799.0, annotations=paused))
    assert (during.actions, during.condition.reason) == ((), conditions.PAUSED)
    assert during.status["pausedUntil"] == UNTIL
    assert _look(autoscaler, _observed(build, now=1801.0, annotations=paused)).actions


def test_a_pause_that_is_no_time_is_none(build):
    assert _look(Autoscaler(_Source()), _observed(build, annotations={common.ANNOTATION_PAUSED: "soon"})).actions


def test_decisions_are_two_seconds_apart_however_often_passes_are(build):
    autoscaler = Autoscaler(_Source())
    assert _look(autoscaler, _observed(build)).actions
    again = _look(autoscaler, _observed(build, now=1000.5))
    assert (again.actions, again.news) == ((), ())
    assert again.due == pytest.approx(1.5)
    assert _look(autoscaler, _observed(build, now=1002.0)).actions


def test_a_size_that_somebody_else_set_is_kept_for_the_window(build):
    """`kubectl scale` with mode Managed: more workers than needed stay as if they had been wished now."""
    autoscaler = Autoscaler(_Source(IDLE))
    for now in range(0, 1000, 2):
        _look(autoscaler, _observed(build, now=float(now)))
    assert not _look(autoscaler, _observed(build, now=1000.0, prefill=6)).actions
    assert not _look(autoscaler, _observed(build, now=1002.0, prefill=6)).actions


def test_metrics_are_stale_after_thirty_seconds_without_and_nothing_shrinks(build):
    autoscaler = Autoscaler(_Source(BLIND))
    assert _look(autoscaler, _observed(build, prefill=3)).condition.reason == conditions.AUTOSCALING
    late = _look(autoscaler, _observed(build, now=1030.0, prefill=3))
    assert late.condition.reason == conditions.METRICS_STALE
    assert not late.actions


def test_while_no_worker_is_ready_none_could_tell_and_nothing_is_stale(build):
    """A model that loads for minutes, while prompts arrive."""
    starting = decoder(ready=False, sample_age=None, prefill_cost=None)
    autoscaler = Autoscaler(_Source(Signals((starting,), arriving(60, 100))))
    _look(autoscaler, _observed(build))
    late = _look(autoscaler, _observed(build, now=1040.0))
    assert late.status["pools"]["prefill"]["missing"]
    assert late.condition.reason == conditions.AUTOSCALING


def test_a_silent_gateway_is_stale_without_workers_too(build):
    autoscaler = Autoscaler(_Source(Signals((), None)))
    _look(autoscaler, _observed(build))
    assert _look(autoscaler, _observed(build, now=1040.0)).condition.reason == conditions.METRICS_STALE


def test_records_are_the_last_twenty_and_none_is_lost_with_a_write(build):
    source = _Source()
    autoscaler = Autoscaler(source)
    status, sizes = {}, [1, 2] * 15
    for number, size in enumerate(sizes):
        source.known = Signals((prefiller(), decoder()), arriving(600 * size, 2000))
        scaled = _look(autoscaler, _observed(build, now=1000.0 + 2 * number, status=status))
        if number != 27:  # that write fails
            status = {"scaling": scaled.status}
    assert len(status["scaling"]["records"]) == record.MOST_RECORDS
    times = [each["time"] for each in status["scaling"]["records"]]
    assert times == sorted(set(times))
    assert any(time.startswith("1970-01-01T00:17:34") for time in times)  # of the write that failed


def test_numbers_alone_do_not_change_the_status_more_often_than_every_thirty_seconds(build):
    source = _Source()
    autoscaler = Autoscaler(source)
    first = _look(autoscaler, _observed(build, prefill=4)).status
    source.known = Signals((prefiller(), decoder()), arriving(610, 2000))
    soon = _look(autoscaler, _observed(build, now=1028.0, prefill=4, status={"scaling": first})).status
    later = _look(autoscaler, _observed(build, now=1030.0, prefill=4, status={"scaling": first})).status
    assert soon["pools"] == first["pools"]
    assert later["pools"]["prefill"] != first["pools"]["prefill"]


def test_at_rest_nothing_is_written(build):
    autoscaler = Autoscaler(_Source(IDLE))
    first = _look(autoscaler, _observed(build)).status
    assert _look(autoscaler, _observed(build, now=1500.0, status={"scaling": first})).status == first


def test_a_plan_tells_of_scaling_and_stops_telling_when_nobody_scales(build):
    plain = Plan((), {"conditions": []}, 30.0)
    observed = _observed(build)
    autoscaler = Autoscaler(_Source())
    scaled = _look(autoscaler, observed)
    made = with_scaling(plain, observed, scaled)
    assert [phase.name for phase in scaled.phases] == ["scale"]
    assert with_wishes(observed, scaled).desired_replicas == {"prefill": 4, "decode": 1}
    assert made.requeue_after == 2.0
    assert [each["type"] for each in made.status["conditions"]] == [conditions.SCALING_ACTIVE]
    after = _observed(build, mode="External")
    stopped = with_scaling(Plan((), made.status, 30.0), after, _look(autoscaler, after))
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


async def test_the_pass_that_wishes_for_more_recalls_who_would_have_gone_in_it(fakes, build):
    """Its drain is over, and nothing runs there any more: with another look first it would be deleted."""
    source, clock = _Source(), _Ahead()
    async with fakes(reconciled=False, autoscaler=Autoscaler(source), clock=clock) as f:
        f.steer("demo-prefill-0", "busy", "2")
        f.steer("demo-prefill-1", "busy", "1")
        scaling = {"mode": "Managed", "prefill": {"max": 2}, "scaleDownStabilization": "1s"}
        await f.cluster.store.apply(build(scaling=scaling), "user")
        await _pass_until(f, clock, lambda: _are_ready(f, "demo-prefill-0", "demo-prefill-1"))
        source.known = IDLE
        await _pass_until(f, clock, lambda: _exists(f.folder / "demo-prefill-1.drained"))
        f.steer("demo-prefill-1", "busy", "0")
        source.known = BUSY
        clock.ahead += DECIDE_EVERY
        await _pass(f, clock)
        assert (f.folder / "demo-prefill-1.recalled").exists()
        pod = (await f.pods("prefill"))["demo-prefill-1"]
        assert not is_leaving(pod)
        assert pod["metadata"]["labels"]["serving.legato.dev/serving"] == "true"
        pool = await f.cluster.store.get(Ref("WorkerPool", "default", "demo-prefill"))
        assert pool["spec"]["replicas"] == 2


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
    async with fakes(False, Autoscaler(source), clock=clock, seen=_Unscalable) as f:
        await f.cluster.store.apply(build(scaling={"mode": "Managed"}), "user")
        await _pass_until(f, clock, lambda: _are_ready(f, "demo-prefill-0"))
        source.known = BUSY
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


async def _exists(path):
    return path.exists()


async def test_what_is_wished_runs_and_is_told_until_others_scale(fakes, build):
    async with fakes(autoscaler=Autoscaler(_Source())) as f:
        await f.cluster.store.apply(build(), "user")

        async def has_grown():
            return len(await f.ready("prefill")) == 4 and await f.ready("decode") == {"demo-decode-0"}

        await f.wait(has_grown)
        assert set(await f.pods("decode")) == {"demo-decode-0"}
        records = (await f.service())["status"]["scaling"]["records"]
        assert [(each["pool"], each["current"], each["wish"]) for each in records] == [("prefill", 1, 4)]
        await f.cluster.store.apply(build(scaling={"mode": "External"}), "user")

        async def is_silent():
            status = (await f.service())["status"]
            return "scaling" not in status and not conditions.find(status, conditions.SCALING_ACTIVE)

        await f.wait(is_silent)
        assert len(await f.pods("prefill")) == 4


def test_what_it_decides_and_changes_is_told_to_its_journal(build):
    heard = []

    class Journal:
        def wished(self, service, decision):
            heard.append(("wished", service.name, decision.pool))

        def changed(self, service, decision):
            heard.append(("changed", decision.pool, decision.wish))

        def forgot(self, service):
            heard.append(("forgot", service.name))

    autoscaler = Autoscaler(_Source(), Journal())
    _look(autoscaler, _observed(build))
    _look(autoscaler, _observed(build, now=1002.0, prefill=4, mode="Advisory"))
    autoscaler.forget("uid")
    wishes = [("wished", "demo", "decode"), ("wished", "demo", "prefill")]
    assert heard == [*wishes, ("changed", "prefill", 4), *wishes, ("forgot", "demo")]


def _low(build, now, tpot="1ms", **changes):
    low = _observed(build, now, **changes)
    written = build(scaling={"mode": changes.get("mode", "Managed"), "prefill": {"max": 10}}, slo={"tpot": tpot})
    return dataclasses.replace(low, service=parsing.read_service(written))


@pytest.mark.parametrize("mode", ["Managed", "Advisory"])
def test_an_objective_that_an_empty_worker_misses_for_thirty_seconds_is_told_without_numbers(build, mode):
    """Measured costs vary: the message would be another one with each look."""
    autoscaler = Autoscaler(_Source(IDLE))
    first = _look(autoscaler, _low(build, 1000.0, mode=mode))
    assert first.condition.message == ""
    assert "a decode step of one sequence takes 11 ms" in first.status["pools"]["decode"]["unmet"][0]
    late = _look(autoscaler, _low(build, 1030.0, mode=mode))
    assert late.condition.message == "even an idle worker misses slo.tpot: status.scaling.pools has the arithmetic"
    assert late.condition.status is (mode == "Managed")


def test_it_is_told_no_more_when_it_can_be_met_and_anew_only_after_as_long(build):
    autoscaler = Autoscaler(_Source(IDLE))
    for now, tpot in ((1000.0, "1ms"), (1028.0, "100ms"), (1030.0, "1ms"), (1058.0, "1ms")):
        assert _look(autoscaler, _low(build, now, tpot)).condition.message == ""
    assert _look(autoscaler, _low(build, 1060.0)).condition.message
    assert _look(autoscaler, _low(build, 1062.0, "100ms")).condition.message == ""


def test_at_rest_the_arithmetic_is_written_once_it_differs_and_no_sooner_than_after_thirty_seconds(build):
    autoscaler = Autoscaler(_Source(IDLE))
    before = _look(autoscaler, _low(build, 1000.0, "100ms")).status
    soon = _look(autoscaler, _low(build, 1028.0, status={"scaling": before})).status
    late = _look(autoscaler, _low(build, 1030.0, status={"scaling": before})).status
    assert "unmet" not in soon["pools"]["decode"]
    assert late["pools"]["decode"]["unmet"]
    assert _look(autoscaler, _low(build, 1500.0, status={"scaling": late})).status == late
