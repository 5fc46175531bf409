"""The plan is pure: what it does for an observation, and that it does nothing where nothing is to be done."""

import dataclasses

import pytest
from planned import actions, condition, observed

from legato_operator.api import conditions, parsing
from legato_operator.manifests import common, gateway, placement, pool, worker
from legato_operator.observing.observed import Pod, WorkerState
from legato_operator.planning import limits
from legato_operator.planning.actions import Apply, Delete, DrainWorker, Release, SetToken
from legato_operator.planning.plan import plan

PLACEMENT = placement.local(("legato",))
SETTLED = {"prefill": 1, "decode": 1}


def _observed(item, pods=(), desired=None, **changes):
    service = parsing.read_service(item)
    pools = tuple(_pool(service, role, desired) for role, desired in (desired or {}).items())
    return observed(service, pools, pods, **changes)


def _pool(service, role, desired):
    """A pool's object as it lives, with `spec.replicas`."""
    owner = common.service_object(service, "uid")
    made = common.signed(common.owned(pool.worker_pool(service, role), owner))
    metadata = {**made["metadata"], "uid": f"uid-{role}", "generation": 1}
    return {**made, "metadata": metadata, "spec": {**made["spec"], "replicas": desired}}


def _worker(item, name, pool, ready=True, busy=0, draining=False, **changes):
    service = parsing.read_service(item)
    revision = common.revision_of(worker.template(service, pool, PLACEMENT))
    state = WorkerState(busy, draining, "ucx:tcp") if ready else None
    pod = Pod(name, f"uid-{name}", pool, revision, name, ready, False, address="127.0.0.1:1", state=state)
    return dataclasses.replace(pod, **changes)


def _gateway(item, **changes):
    service = parsing.read_service(item)
    revision = common.revision_of(gateway.template(service, PLACEMENT))
    return dataclasses.replace(Pod("demo-gateway-0", "uid-gateway", "gateway", revision, "0", True, False), **changes)


def _running(item):
    return [_worker(item, "demo-decode-0", "decode"), _worker(item, "demo-prefill-0", "prefill"), _gateway(item)]


def _created(made):
    return {a.item["metadata"]["name"] for a in actions(made, Apply) if "spec" in a.item and a.item["kind"] == "Pod"}


def test_first_pass_makes_everything(build):
    """Workers follow as soon as their pools exist, which own them."""
    made = plan(_observed(build(), has_token=False), PLACEMENT)
    assert actions(made, SetToken)
    assert _created(made) == {"demo-gateway-0"}
    desired = {a.item["spec"]["replicas"] for a in actions(made, Apply) if "replicas" in a.item.get("spec", {})}
    assert desired == {1}
    made = plan(_observed(build(), desired=SETTLED), PLACEMENT)
    assert _created(made) == {"demo-prefill-0", "demo-decode-0", "demo-gateway-0"}


def test_settled_service_is_left_alone(build):
    item = build()
    made = plan(_observed(item, _running(item), SETTLED), PLACEMENT)
    assert not _created(made)
    assert not actions(made, Delete)
    assert not actions(made, DrainWorker)
    assert condition(made, "Ready")["status"] == "True"
    assert condition(made, "Progressing")["reason"] == conditions.UP_TO_DATE


def test_replicas_set_by_a_scaler_are_not_overwritten(build):
    item = build()
    made = plan(_observed(item, _running(item), {"prefill": 1, "decode": 2}), PLACEMENT)
    assert _created(made) == {"demo-decode-1"}
    assert not [a for a in actions(made, Apply) if "replicas" in a.item.get("spec", {})]


def test_replicas_beyond_the_bounds_are_capped(build):
    item = build(scaling={"decode": {"max": 1}})
    made = plan(_observed(item, _running(item), {"prefill": 1, "decode": 9}), PLACEMENT)
    assert not _created(made)
    assert condition(made, "Progressing")["reason"] == conditions.CAPPED
    assert condition(made, "Progressing")["message"] == "decode is 1 instead of 9, by scaling.decode.max"
    assert made.status["pools"]["decode"]["cappedBy"] == "scaling.decode.max"
    assert "cappedBy" not in made.status["pools"]["prefill"]


def test_minima_above_the_gpu_budget_are_refused_whatever_a_gpu_is_called(build):
    """Only the operator knows the names: what runs already goes on."""
    slice_ = {"resources": {"requests": {"example.com/slice": 2}}}
    item = build(prefill=slice_, decode=slice_, scaling={"gpuBudget": 3})
    placed = dataclasses.replace(PLACEMENT, gpu_resources=("nvidia.com/gpu", "example.com/slice"))
    assert plan(_observed(item), PLACEMENT).phases
    made = plan(_observed(item), placed)
    assert not made.phases
    assert condition(made, "Progressing")["reason"] == conditions.INVALID
    assert condition(made, "Progressing")["message"].endswith("decode 1 × 2 + prefill 1 × 2 = 4 > 3")


def test_gpu_budget_goes_to_decode_first(build):
    gpu = {"resources": {"requests": {"nvidia.com/gpu": 1}}}
    spec = parsing.read_service(build(prefill=gpu, decode=gpu, scaling={"gpuBudget": 3})).spec
    targets = limits.targets(spec, {"prefill": 4, "decode": 2})
    assert (targets["decode"].replicas, targets["prefill"].replicas) == (2, 1)
    assert targets["prefill"].capped_by == "scaling.gpuBudget"


def test_victim_is_the_idlest_and_of_equals_the_newest(build):
    item = build()
    busy = [_worker(item, f"demo-decode-{i}", "decode", busy=b) for i, b in enumerate((2, 1, 1))]
    made = plan(_observed(item, [*_running(item)[1:], *busy], {"prefill": 1, "decode": 2}), PLACEMENT)
    assert [action.name for action in actions(made, DrainWorker)] == ["demo-decode-2"]
    assert not actions(made, Delete)


@pytest.mark.parametrize(
    ("pod", "ended"),
    [
        ({"busy": 1, "draining": True}, False),
        ({"busy": 0, "draining": True}, True),
        ({"busy": 0, "draining": False}, False),  # not told yet: a request may be on its way
        ({"busy": 1, "draining": True, "draining_since": 800.0}, True),  # past the deadline of 120 s
        ({"ready": False}, True),
    ],
)
def test_draining_worker_is_deleted_when_nothing_runs_or_the_deadline_passed(build, pod, ended):
    item = build()
    leaving = _worker(item, "demo-decode-1", "decode", **({"draining_since": 990.0} | pod))
    made = plan(_observed(item, [*_running(item), leaving], SETTLED), PLACEMENT)
    assert [a.ref.name for a in actions(made, Delete)] == (["demo-decode-1"] if ended else [])


def test_workers_that_leave_are_not_counted_as_ready(build):
    item = build()
    leaving = _worker(item, "demo-decode-1", "decode", draining=True, draining_since=990.0)
    made = plan(_observed(item, [*_running(item), leaving], SETTLED), PLACEMENT)
    assert made.status["pools"]["decode"] | {"revision": ""} == {
        "replicas": 2, "ready": 1, "desired": 1, "revision": ""
    }  # fmt: skip


def test_draining_worker_that_forgot_is_told_again(build):
    item = build()
    leaving = _worker(item, "demo-decode-1", "decode", draining=False, draining_since=990.0)
    made = plan(_observed(item, [*_running(item), leaving], SETTLED), PLACEMENT)
    assert [a.name for a in actions(made, DrainWorker)] == ["demo-decode-1"]


def test_gateway_of_an_old_revision_goes_only_after_a_new_one_is_ready(build):
    item = build()
    workers = _running(item)[:2]
    old = _gateway(item, revision="old")
    new = _gateway(item, name="demo-gateway-1", uid="uid-1", created="1")

    def made(*gateways):
        found = plan(_observed(item, [*workers, *gateways], SETTLED), PLACEMENT)
        assert condition(found, "GatewayReady")["status"] == "True"
        assert condition(found, "Progressing")["reason"] == conditions.ROLLING_OUT
        return _created(found), [action.ref.name for action in actions(found, Delete)]

    assert made(old) == ({"demo-gateway-1"}, [])
    assert made(old, dataclasses.replace(new, ready=False)) == (set(), [])
    assert made(old, new) == (set(), ["demo-gateway-0"])
    assert made(dataclasses.replace(old, leaving=True), new) == (set(), [])


def test_gateway_that_never_became_ready_goes_for_the_next_one(build):
    """A ready one keeps serving meanwhile; one that is still finishing its streams delays nothing."""
    item = build()
    workers = _running(item)[:2]
    serving = _gateway(item, revision="first")
    broken = _gateway(item, name="demo-gateway-1", uid="uid-1", created="1", revision="second", ready=False)
    found = plan(_observed(item, [*workers, serving, broken], SETTLED), PLACEMENT)
    assert (_created(found), [a.ref.name for a in actions(found, Delete)]) == (set(), ["demo-gateway-1"])
    leaving = dataclasses.replace(broken, leaving=True)
    found = plan(_observed(item, [*workers, serving, leaving], SETTLED), PLACEMENT)
    assert (_created(found), actions(found, Delete)) == ({"demo-gateway-2"}, [])


def test_obsolete_prefill_pool_goes_after_the_others_settled(build):
    item = build(scaling={"prefill": {"max": 0}})
    unified, prefill = _worker(item, "demo-decode-0", "decode"), _worker(item, "demo-prefill-0", "prefill")
    made = plan(_observed(item, [unified, prefill, _gateway(item)], SETTLED), PLACEMENT)
    assert [a.name for a in actions(made, DrainWorker)] == ["demo-prefill-0"]
    starting = dataclasses.replace(unified, ready=False)
    made = plan(_observed(item, [starting, prefill, _gateway(item)], SETTLED), PLACEMENT)
    assert not actions(made, DrainWorker)


def test_end_releases_only_when_every_pod_is_gone(build):
    item = build()
    made = plan(_observed(item, _running(item), SETTLED, deleting=True), PLACEMENT)
    assert [a.ref.name for a in actions(made, Delete)] == ["demo-gateway-0"]
    made = plan(_observed(item, _running(item)[:2], SETTLED, deleting=True), PLACEMENT)
    assert {a.ref.name for a in actions(made, Delete)} == {"demo-decode-0", "demo-prefill-0"}
    made = plan(_observed(item, [], SETTLED, deleting=True), PLACEMENT)
    assert actions(made, Release)


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"engine": {"numerics": "Invariant"}}, "spec.engine.numerics"),
        ({"model": {"source": {"image": "x"}}}, "spec.model.source.image"),
        ({"decode": {"parallelism": {"tensor": 2}}}, "spec.decode.parallelism.tensor"),
        ({"gateway": {"replicas": 2}}, "spec.gateway.replicas"),
    ],
)
def test_what_is_not_available_is_refused_and_told(build, spec, path):
    made = plan(_observed(build(**spec)), PLACEMENT)
    assert not made.phases
    assert condition(made, "Progressing")["reason"] == conditions.NOT_AVAILABLE
    assert path in condition(made, "Progressing")["message"]


def test_service_without_any_usable_manifest_tells_of_its_pods_and_nothing_old(build):
    """As after an upgrade of an operator that kept none."""
    item = build(decode={"parallelism": {"tensor": 2}})
    before = plan(_observed(build(), _running(build()), SETTLED), PLACEMENT).status
    whole = plan(_observed(item, _running(build()), SETTLED, status=before), PLACEMENT)
    assert not whole.phases
    parts = ["Ready", "PrefillReady", "DecodeReady", "GatewayReady"]
    assert [c["type"] for c in whole.status["conditions"]] == [*parts, "Progressing"]
    assert {condition(whole, kind)["status"] for kind in parts} == {"True"}
    less = [pod for pod in _running(build()) if pod.pool != "decode"]
    told = plan(_observed(item, less, SETTLED, status=whole.status), PLACEMENT)
    assert condition(told, "Ready")["status"] == "False"
    assert "DecodeReady" not in {c["type"] for c in told.status["conditions"]}


def test_transition_time_changes_only_with_the_status(build):
    item = build()
    first = plan(_observed(item, _running(item), SETTLED), PLACEMENT)
    later = _observed(item, _running(item)[1:], SETTLED, status=first.status, timestamp="2026-02-02T00:00:00Z")
    second = plan(later, PLACEMENT)
    assert condition(second, "GatewayReady")["lastTransitionTime"] == "2026-01-01T00:00:00Z"
    assert condition(second, "DecodeReady")["lastTransitionTime"] == "2026-02-02T00:00:00Z"


def test_missing_transport_is_told_and_with_required_not_ready(build):
    for required in (False, True):
        item = build(transfer={"transport": "TCP", "required": required})
        pods = [
            dataclasses.replace(pod, state=WorkerState(0, False, "")) if pod.state else pod for pod in _running(item)
        ]
        made = plan(_observed(item, pods, SETTLED), PLACEMENT)
        assert condition(made, "KVTransportReady")["reason"] == conditions.NO_TRANSPORT
        assert condition(made, "Ready")["status"] == str(not required)


@pytest.mark.parametrize("fallback", [False, True])
def test_why_hand_offs_do_not_go_by_rdma_is_told_and_alarming_where_they_should(build, fallback):
    item, reason = build(), "RDMA: the self-test failed"
    state = WorkerState(0, False, "ucx:tcp", transport_reason=reason, transport_fallback=fallback)
    first, *rest = _running(item)
    made = plan(_observed(item, [dataclasses.replace(first, state=state), *rest], SETTLED), PLACEMENT)
    told = condition(made, "KVTransportReady")
    assert told["status"] == "True"
    if fallback:
        assert told["reason"] == conditions.TRANSPORT_FALLBACK
        assert told["message"] == f"demo-decode-0: ucx:tcp ({reason})"
        assert conditions.TRANSPORT_FALLBACK in conditions.ALARMING
    else:
        assert told["reason"] == conditions.CONNECTED
        assert told["message"] == f"ucx:tcp, ucx:tcp ({reason})"


@pytest.mark.parametrize(
    ("transfer", "told"),
    [
        ({"transport": "RDMA", "required": True}, True),
        ({"transport": "RDMA"}, False),
        ({"transport": "TCP", "required": True}, False),
        ({}, False),
    ],
)
def test_workers_hear_that_rdma_is_required(build, transfer, told):
    service = parsing.read_service(build(transfer=transfer))
    for role in ("prefill", "decode"):
        command = worker.template(service, role, PLACEMENT)["spec"]["containers"][0]["command"]
        assert ("--transport-required" in command) == told


def test_threads_follow_requested_cpu(build):
    asked = parsing.read_service(build(decode={"resources": {"requests": {"cpu": "1500m"}}}))
    command = worker.template(asked, "decode", PLACEMENT)["spec"]["containers"][0]["command"]
    assert command[command.index("--threads") + 1] == "2"
    assert "--threads" not in worker.template(asked, "prefill", PLACEMENT)["spec"]["containers"][0]["command"]


@pytest.mark.parametrize(("prefill", "share"), [({"min": 1}, "3"), ({"max": 0}, "2")])
def test_workers_of_one_machine_share_its_memory(build, prefill, share):
    spec = {"engine": {"kvCacheMemory": "Auto"}, "scaling": {"prefill": prefill, "decode": {"min": 2}}}
    item = parsing.read_service(build(**spec))
    command = worker.template(item, "decode", placement.local(("legato",)))["spec"]["containers"][0]["command"]
    assert command[command.index("--kv-cache-memory") + 1] == "Auto"
    assert command[command.index("--memory-share") + 1] == share
    alone = worker.template(item, "decode", placement.kubernetes("e", "g"))["spec"]["containers"][0]["args"]
    assert alone[alone.index("--kv-cache-memory") + 1] == "Auto"
    assert "--memory-share" not in alone


@pytest.mark.parametrize(("gpus", "share"), [((), "4"), (("0",), "4"), (("0", "1"), "2"), (("0", "1", "2"), "2")])
def test_workers_of_one_machine_compute_on_its_gpus_and_share_them(build, gpus, share):
    asked = {"resources": {"limits": {"nvidia.com/gpu": 1}}}
    spec = {"prefill": asked, "decode": asked, "scaling": {"prefill": {"min": 2}, "decode": {"min": 2}}}
    item = parsing.read_service(build(engine={"kvCacheMemory": "Auto"}, **spec))
    for role in ("prefill", "decode"):
        here = placement.local(("legato",), gpus=gpus)
        command = worker.template(item, role, here)["spec"]["containers"][0]["command"]
        assert ("cuda" in command, "--on-kernel-failure" in command) == (bool(gpus), bool(gpus))
        assert command[command.index("--memory-share") + 1] == share


def test_workers_that_ask_for_no_gpu_compute_on_the_cpu_of_a_machine_with_some(build):
    here = placement.local(("legato",), gpus=("0", "1"))
    item = parsing.read_service(build(engine={"kvCacheMemory": "Auto"}))
    command = worker.template(item, "decode", here)["spec"]["containers"][0]["command"]
    assert "--device" not in command
    assert command[command.index("--memory-share") + 1] == "2"


@pytest.mark.parametrize(
    ("cores", "prefill", "decode", "threads"),
    [(2, 1, 1, ("2", "2")), (8, 1, 2, ("8", "4")), (8, 3, 1, ("2", "8")), (1, 2, 1, ("1", "1"))],
)
def test_workers_of_a_pool_share_a_machines_cores(build, cores, prefill, decode, threads):
    item = parsing.read_service(build(scaling={"prefill": {"min": prefill}, "decode": {"min": decode}}))
    for role, expected in zip(("prefill", "decode"), threads, strict=True):
        shared = placement.local(("legato",), cores)
        command = worker.template(item, role, shared)["spec"]["containers"][0]["command"]
        assert command[command.index("--threads") + 1] == expected


REFUSED = "demo-gateway-0: it refuses this gateway's token"


def test_a_service_is_not_ready_while_gateways_reach_none_of_its_workers(build):
    """All pods are ready by their probes: that is how an outage looked while every condition was True."""
    decode, prefill, front = _running(build())
    cut_off = dataclasses.replace(decode, unreached=REFUSED, ready_for=60.0)
    made = plan(_observed(build(), [cut_off, prefill, front], SETTLED), PLACEMENT)
    for kind in ("Ready", "DecodeReady", "GatewayReady"):
        told = condition(made, kind)
        assert (told["status"], told["reason"]) == ("False", conditions.WORKERS_UNREACHABLE), kind
        assert "refuses this gateway's token" in told["message"]
    assert condition(made, "PrefillReady")["status"] == "True"
    assert made.status["pools"]["decode"]["ready"] == 0
    assert made.requeue_after <= 2.0
    assert not _created(made)
    assert not actions(made, Delete)


def test_one_worker_without_a_gateway_is_told_and_others_serve(build):
    decode, prefill, front = _running(build())
    other = _worker(build(), "demo-decode-1", "decode", unreached=REFUSED, ready_for=60.0)
    made = plan(_observed(build(), [decode, other, prefill, front], {"prefill": 1, "decode": 2}), PLACEMENT)
    assert condition(made, "Ready")["status"] == condition(made, "GatewayReady")["status"] == "True"
    assert "demo-decode-1: demo-gateway-0: it refuses" in condition(made, "DecodeReady")["message"]


def test_a_worker_that_became_ready_just_now_starts_until_a_gateway_has_greeted_it(build):
    decode, prefill, front = _running(build())
    new = dataclasses.replace(decode, unreached="demo-gateway-0: not listed there", ready_for=1.0)
    made = plan(_observed(build(), [new, prefill, front], SETTLED), PLACEMENT)
    assert (condition(made, "Ready")["status"], condition(made, "Ready")["reason"]) == ("False", "Starting")
    assert condition(made, "GatewayReady")["status"] == "True"


def test_a_rollout_does_not_remove_workers_that_answer_for_some_that_no_gateway_reaches(build):
    decode, prefill, front = _running(build())
    new = dataclasses.replace(decode, name="demo-decode-1", unreached=REFUSED, ready_for=60.0)
    old = dataclasses.replace(decode, revision="old")
    made = plan(_observed(build(), [old, new, prefill, front], SETTLED), PLACEMENT)
    assert not actions(made, DrainWorker)
    reached = dataclasses.replace(new, unreached="")
    made = plan(_observed(build(), [old, reached, prefill, front], SETTLED), PLACEMENT)
    assert [action.name for action in actions(made, DrainWorker)] == ["demo-decode-0"]


def test_a_worker_that_no_gateway_reaches_is_the_first_to_leave(build):
    decode, prefill, front = _running(build())
    busy = dataclasses.replace(decode, state=WorkerState(5, False, "ucx:tcp"))
    cut_off = _worker(build(), "demo-decode-1", "decode", unreached=REFUSED, ready_for=60.0)
    made = plan(_observed(build(), [busy, cut_off, prefill, front], SETTLED), PLACEMENT)
    assert [action.name for action in actions(made, DrainWorker)] == ["demo-decode-1"]
