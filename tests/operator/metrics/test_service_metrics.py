"""Metrics of services: from the last pass, by the leader only, and removed together with the service."""

from planned import observed, pools
from prometheus_client import CollectorRegistry

from legato_operator.autoscaler.decision import PoolDecision
from legato_operator.cluster import Ref
from legato_operator.metrics.service_metrics import ServiceMetrics

DEMO = Ref("InferenceService", "default", "demo")


def _decision(current=2, wish=3, needed=3, capped_by="", missing=()):
    return PoolDecision("decode", current, wish, needed, wish, "KVBlocks", (), missing, capped_by)


def _status(desired=3, ready=1, **pool):
    condition = {"type": "Ready", "status": "True", "reason": "AllReady", "message": "", "lastTransitionTime": "t"}
    counts = {"replicas": 2, "ready": ready, "desired": desired}
    return {"conditions": [condition], "pools": {"decode": {**counts, **pool}}}


def _told(metrics, name):
    registry = CollectorRegistry()
    registry.register(metrics)
    samples = [s for family in registry.collect() for s in family.samples if s.name == f"legato_operator_{name}"]
    assert all((s.labels["namespace"], s.labels["service"]) == ("default", "demo") for s in samples)
    return {tuple(v for k, v in s.labels.items() if k not in ("namespace", "service")): s.value for s in samples}


def _metrics(build, replicas=3, decision=None, **status):
    metrics = ServiceMetrics()
    metrics.observe(DEMO, observed(build(slo={"ttft": "2s", "tpot": "50ms"}), pools({"decode": replicas})))
    metrics.record_status(DEMO, _status(**status))
    if decision is not None:
        metrics.record_decision(DEMO, decision)
    return metrics


def test_a_service_s_pools_conditions_and_objectives(build):
    metrics = _metrics(build)
    names = ("pool_spec_replicas", "pool_desired_replicas", "pool_replicas", "pool_ready_replicas")
    assert [_told(metrics, name) for name in names] == [{("decode",): value} for value in (3, 3, 2, 1)]
    assert _told(metrics, "condition") == {("Ready", "True", "AllReady"): 1}
    assert _told(metrics, "objective_seconds") == {("ttft",): 2.0, ("tpot",): 0.05}


def test_what_was_decided(build):
    metrics = _metrics(build, decision=_decision(missing=("rate", "load")))
    told = [_told(metrics, f"scaling_{name}") for name in ("recommended", "needed", "missing_signals")]
    assert told == [{("decode",): value} for value in (3, 3, 2)]
    metrics.forget_decisions(DEMO)
    assert _told(metrics, "scaling_recommended") == {}
    assert _told(metrics, "pool_replicas") == {("decode",): 2}


def test_changes_are_counted_by_reason_and_direction(build):
    metrics = _metrics(build)
    for current in (2, 2, 4):
        metrics.record_change(DEMO, _decision(current=current))
    assert _told(metrics, "scaling_changes_total") == {
        ("decode", "up", "KVBlocks"): 2,
        ("decode", "down", "KVBlocks"): 1,
    }


def test_a_limit_that_keeps_a_pool_small_is_told(build):
    cases = [
        ({"replicas": 9, "desired": 5, "cappedBy": "scaling.gpuBudget"}, {("decode", "scaling.gpuBudget"): 1}),
        ({"replicas": 1, "desired": 2, "cappedBy": "scaling.decode.min"}, {}),
        ({"replicas": 3, "desired": 3}, {}),
        ({"decision": _decision(needed=7, capped_by="scaling.decode.max")}, {("decode", "scaling.decode.max"): 1}),
        ({"decision": _decision(wish=1, needed=0, capped_by="scaling.decode.min")}, {}),
    ]
    assert [_told(_metrics(build, **values), "pool_capped") for values, _ in cases] == [told for _, told in cases]


def test_only_the_leader_tells(build):
    metrics = _metrics(build, decision=_decision())
    metrics.leads = lambda: False
    assert [_told(metrics, name) for name in ("condition", "scaling_recommended", "pool_replicas")] == [{}, {}, {}]


def test_a_service_that_is_gone_is_told_of_no_more(build):
    metrics = _metrics(build, decision=_decision())
    metrics.remove(DEMO)
    metrics.forget_decisions(DEMO)
    assert _told(metrics, "condition") == _told(metrics, "scaling_recommended") == {}


async def test_passes_tell_of_a_service_until_it_is_gone(fakes, build):
    metrics = ServiceMetrics()
    async with fakes(journal=metrics) as f:
        await f.cluster.store.apply(build(), "user")

        async def is_ready():
            return _told(metrics, "pool_ready_replicas") == {("prefill",): 1, ("decode",): 1}

        await f.wait(is_ready)
        assert _told(metrics, "pool_desired_replicas") == {("prefill",): 1, ("decode",): 1}
        assert ("ttft",) in _told(metrics, "objective_seconds")
        await f.cluster.store.delete(Ref("InferenceService", "default", "demo"))

        async def is_gone():
            return _told(metrics, "condition") == {}

        await f.wait(is_gone)
