"""The plan is pure: what it does for an observation, and that it does nothing where nothing is to be done."""

import dataclasses

import pytest
from planned import actions, condition, observed, report

from legato_operator.api import conditions, parsing
from legato_operator.manifests import common, placement, pool
from legato_operator.manifests.pods import gateway, worker
from legato_operator.observing.observed import KVFormat, Pod, WorkerState
from legato_operator.planning.actions import Apply, Delete, DrainWorker
from legato_operator.planning.plan import plan

PLACEMENT = placement.local(("legato",))
SETTLED = {"prefill": 1, "decode": 1}


def _observed(item, pods=(), desired=None, **changes):
    service = parsing.read_service(item)
    pools = tuple(_pool(service, role, desired) for role, desired in (desired or {}).items())
    return observed(service, pools, pods, **changes)


def _pool(service, role, desired):
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


def _plan(item, pods, desired=SETTLED, **changes):
    return plan(_observed(item, pods, desired, **changes), PLACEMENT)


def _drained(made):
    return [action.name for action in actions(made, DrainWorker)]


def _deleted(made):
    return [action.ref.name for action in actions(made, Delete)]


def _created(made):
    return {a.item["metadata"]["name"] for a in actions(made, Apply) if "spec" in a.item and a.item["kind"] == "Pod"}


def test_replicas_beyond_the_bounds_are_capped(build):
    item = build(scaling={"decode": {"max": 1}})
    made = _plan(item, _running(item), {"prefill": 1, "decode": 9})
    assert not _created(made)
    progressing = condition(made, "Progressing")
    assert (progressing["reason"], progressing["message"]) == (
        conditions.CAPPED,
        "decode is 1 instead of 9, by scaling.decode.max",
    )
    assert made.status["pools"]["decode"]["cappedBy"] == "scaling.decode.max"
    assert "cappedBy" not in made.status["pools"]["prefill"]


def test_a_change_of_the_degree_is_a_rollout_of_its_pool(build):
    made = _plan(build(decode={"parallelism": {"tensor": 2}}), _running(build()))
    assert (_created(made), _drained(made)) == ({"demo-decode-1"}, [])
    assert {name: pool["ranks"] for name, pool in made.status["pools"].items()} == {"prefill": 1, "decode": 2}


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


def test_gateway_of_an_old_revision_goes_only_after_a_new_one_is_ready(build):
    item = build()
    workers = _running(item)[:2]
    old = _gateway(item, revision="old")
    new = _gateway(item, name="demo-gateway-1", uid="uid-1", created="1")

    def made(*gateways):
        found = _plan(item, [*workers, *gateways])
        assert condition(found, "GatewayReady")["status"] == "True"
        assert condition(found, "Progressing")["reason"] == conditions.ROLLING_OUT
        return _created(found), _deleted(found)

    assert made(old) == ({"demo-gateway-1"}, [])
    assert made(old, dataclasses.replace(new, ready=False)) == (set(), [])
    assert made(old, new) == (set(), ["demo-gateway-0"])
    assert made(dataclasses.replace(old, leaving=True), new) == (set(), [])


def test_gateway_that_never_became_ready_goes_for_the_next_one(build):
    """A ready one keeps serving meanwhile; one that is still finishing its streams delays nothing."""
    item = build()
    serving = _gateway(item, revision="first")
    broken = _gateway(item, name="demo-gateway-1", uid="uid-1", created="1", revision="second", ready=False)
    found = _plan(item, [*_running(item)[:2], serving, broken])
    assert (_created(found), _deleted(found)) == (set(), ["demo-gateway-1"])
    found = _plan(item, [*_running(item)[:2], serving, dataclasses.replace(broken, leaving=True)])
    assert (_created(found), _deleted(found)) == ({"demo-gateway-2"}, [])


def test_obsolete_prefill_pool_goes_after_the_others_settled(build):
    item = build(scaling={"prefill": {"max": 0}})
    unified, prefill, front = _running(item)
    assert _drained(_plan(item, [unified, prefill, front])) == ["demo-prefill-0"]
    assert _drained(_plan(item, [dataclasses.replace(unified, ready=False), prefill, front])) == []


def test_manifest_that_is_not_available_is_refused_by_all_its_paths(build):
    made = plan(_observed(build(engine={"numerics": "Invariant"}, gateway={"replicas": 2})), PLACEMENT)
    assert not made.phases
    refused = [
        "spec.engine.numerics: Invariant is not available yet; use Fast",
        "spec.gateway.replicas: more than 1 is only available on Kubernetes: here one gateway owns the port",
    ]
    entry = {"status": "False", "reason": "NotAvailable", "message": "; ".join(refused), "observedGeneration": 1}
    entry["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    assert made.status["conditions"] == [{"type": kind, **entry} for kind in ("Ready", "Progressing")]


def test_service_without_any_usable_manifest_tells_of_its_pods_and_nothing_old(build):
    """As after an upgrade of an operator that kept none."""
    item = build(engine={"numerics": "Invariant"})
    before = _plan(build(), _running(build())).status
    whole = _plan(item, _running(build()), status=before)
    assert not whole.phases
    parts = ["Ready", "PrefillReady", "DecodeReady", "GatewayReady"]
    assert [c["type"] for c in whole.status["conditions"]] == [*parts, "Progressing"]
    assert {condition(whole, kind)["status"] for kind in parts} == {"True"}
    less = [pod for pod in _running(build()) if pod.pool != "decode"]
    told = _plan(item, less, status=whole.status)
    assert condition(told, "Ready")["status"] == "False"
    assert "DecodeReady" not in {c["type"] for c in told.status["conditions"]}


@pytest.mark.parametrize("required", [False, True])
def test_missing_transport_is_reported_and_with_required_not_ready(build, required):
    item = build(transfer={"transport": "TCP", "required": required})
    silent = WorkerState(0, False, "")
    made = _plan(item, [dataclasses.replace(pod, state=silent) if pod.state else pod for pod in _running(item)])
    assert condition(made, "KVTransportReady")["reason"] == conditions.NO_TRANSPORT
    assert condition(made, "Ready")["status"] == str(not required)


@pytest.mark.parametrize(
    ("field", "kind", "reason"),
    [
        ("kernel_fallback", "KernelsReady", conditions.KERNEL_FALLBACK),
        ("tier_problem", "KVTiersReady", conditions.KV_TIER_ERRORS),
    ],
)
def test_what_workers_do_without_is_reported_while_it_lasts(build, field, kind, reason):
    """As kernels that are missing, and KV files that cannot be used."""
    first, *rest = _running(build())
    state = WorkerState(0, False, "ucx:tcp", **{field: "the reason"})
    made = _plan(build(), [dataclasses.replace(first, state=state), *rest])
    reported = condition(made, kind)
    assert (reported["status"], reported["reason"]) == ("False", reason)
    assert reported["message"] == "demo-decode-0: the reason"
    after = _plan(build(), _running(build()), status=made.status)
    assert kind not in [each["type"] for each in after.status["conditions"]]


def test_requests_that_are_retried_after_failures_are_reported(build):
    *workers, gateway = _running(build())
    reports = (report(retried=("worker_lost",)), report(retried=("internal", "worker_lost")), None)
    gateways = [dataclasses.replace(gateway, name=f"g{i}", report=each) for i, each in enumerate(reports)]
    found = condition(_plan(build(), [*workers, *gateways]), "GatewayReady")
    assert (found["status"], found["reason"]) == ("True", conditions.REQUESTS_RETRIED)
    assert found["message"].endswith("; requests were dispatched again after internal, worker_lost")


@pytest.mark.parametrize(("failed", "status"), [(2, "True"), (3, "False"), (40, "False")])
def test_transport_is_not_ready_while_every_connection_of_a_worker_fails(build, failed, status):
    first, *rest = _running(build())
    made = _plan(
        build(), [dataclasses.replace(first, state=WorkerState(0, False, "ucx:tcp", failed_connections=failed)), *rest]
    )
    transport = condition(made, "KVTransportReady")
    assert (transport["status"], condition(made, "Ready")["status"]) == (status, "True")
    if status == "False":
        assert transport["reason"] == conditions.PEERS_UNREACHABLE
        assert transport["message"] == f"demo-decode-0: its last {failed} connections to other workers failed"


@pytest.mark.parametrize(
    ("fallback", "reason", "message"),
    [
        (False, conditions.CONNECTED, "ucx:tcp, ucx:tcp (RDMA: the self-test failed)"),
        (True, conditions.TRANSPORT_FALLBACK, "demo-decode-0: ucx:tcp (RDMA: the self-test failed)"),
    ],
)
def test_reason_against_rdma_is_reported_and_alarming_where_hand_offs_should_go_by_it(build, fallback, reason, message):
    why = {"transport_reason": "RDMA: the self-test failed", "transport_fallback": fallback}
    first, *rest = _running(build())
    made = _plan(build(), [dataclasses.replace(first, state=WorkerState(0, False, "ucx:tcp", **why)), *rest])
    transport = condition(made, "KVTransportReady")
    assert (transport["status"], transport["reason"], transport["message"]) == ("True", reason, message)
    assert (reason in conditions.ALARMING) is fallback


FLOAT, BYTES = KVFormat("1", "w", "dim=64 float32", "amx"), KVFormat("2", "w", "dim=64 float8", "amx")
OTHER = dataclasses.replace(FLOAT, revision="2")


@pytest.mark.parametrize(
    ("decode", "difference"),
    [
        ([FLOAT], ""),
        ([BYTES, BYTES], "layout 'dim=64 float32' and 'dim=64 float8'"),
        ([BYTES, FLOAT], ""),
        ([OTHER], "their engines compute other values"),
        ([BYTES, None], ""),  # whose KV is unknown may be the partner
        ([], ""),
    ],
)
def test_pools_that_cannot_exchange_kv_are_reported(build, decode, difference):
    states = {"prefill": [FLOAT], "decode": decode}
    pods = [
        _worker(build(), f"{role}-{at}", role, state=WorkerState(0, False, "ucx:tcp", kv=kv))
        for role, formats in states.items()
        for at, kv in enumerate(formats)
    ]
    made = condition(_plan(build(), pods), "KVTransportReady")
    assert made["reason"] == (conditions.POOLS_DIFFER if difference else conditions.CONNECTED)
    assert f"for example prefill-0 and decode-0: {difference}. Both" in made["message"] or not difference


@pytest.mark.parametrize("state", [None, WorkerState(0, False, "", core_runs=False)])
@pytest.mark.parametrize(
    "reported",
    [
        *({"kv": BYTES}, {"transport": ""}, {"failed_connections": 3}, {"transport_fallback": True}),
        *({"kernel_fallback": "the reason"}, {"tier_problem": "the reason"}, {"max_length": 64}),
    ],
)
def test_one_missed_answer_or_a_restarting_core_changes_nothing_in_the_status(build, reported, state):
    decode, prefill, front = _running(build())
    prefill = dataclasses.replace(prefill, state=dataclasses.replace(prefill.state, kv=FLOAT))
    decode = dataclasses.replace(
        decode, state=WorkerState(0, False, **{"transport": "ucx:tcp", "kv": FLOAT} | reported)
    )
    before = _plan(build(), [decode, prefill, front]).status
    silent = dataclasses.replace(decode, state=state, last_state=decode.state)
    assert _plan(build(), [silent, prefill, front], status=before).status == before
    lasting = dataclasses.replace(silent, last_state=None)
    assert _plan(build(), [lasting, prefill, front], status=before).status != before


@pytest.mark.parametrize(
    ("last_state", "reason"),
    [(WorkerState(0, False, "ucx:tcp", kv=FLOAT), conditions.CONNECTED), (None, conditions.POOLS_DIFFER)],
)
def test_pools_do_not_differ_while_the_partner_of_a_worker_restarts(build, last_state, reason):
    formats = ("prefill", FLOAT), ("decode", BYTES)
    pods = [_worker(build(), role, role, state=WorkerState(0, False, "ucx:tcp", kv=kv)) for role, kv in formats]
    partner = _worker(build(), "partner", "decode", ready=False, last_state=last_state)
    assert condition(_plan(build(), [*pods, partner]), "KVTransportReady")["reason"] == reason


def _command(item, role="decode", where=PLACEMENT):
    """Flags of a worker with their values, as far as they have some."""
    (container,) = worker.template(parsing.read_service(item), role, where)["spec"]["containers"]
    given = container.get("command", container.get("args"))
    return dict(zip(given, [*given[1:], ""], strict=True))


@pytest.mark.parametrize(
    ("transfer", "required"),
    [
        ({"transport": "RDMA", "required": True}, True),
        ({"transport": "RDMA"}, False),
        ({"transport": "TCP", "required": True}, False),
        ({}, False),
    ],
)
def test_workers_hear_that_rdma_is_required(build, transfer, required):
    for role in SETTLED:
        assert ("--transport-required" in _command(build(transfer=transfer), role)) == required


def test_threads_follow_requested_cpu(build):
    asked = build(decode={"resources": {"requests": {"cpu": "1500m"}}})
    assert (_command(asked)["--threads"], _command(asked, "prefill").get("--threads")) == ("2", None)
    ranks = build(decode={"resources": {"requests": {"cpu": 6}}, "parallelism": {"tensor": 4}})
    assert (_command(ranks)["--tensor"], _command(ranks)["--threads"]) == ("4", "1")
    assert "--tensor" not in _command(ranks, "prefill")


@pytest.mark.parametrize(("prefill", "share"), [({"min": 1}, "3"), ({"max": 0}, "2")])
def test_workers_of_one_machine_share_its_memory(build, prefill, share):
    item = build(engine={"kvCacheMemory": "Auto"}, scaling={"prefill": prefill, "decode": {"min": 2}})
    for where, expected in ((PLACEMENT, share), (placement.kubernetes(placement.Containers("e", "g")), None)):
        flags = _command(item, where=where)
        assert (flags["--kv-cache-memory"], flags.get("--memory-share")) == ("Auto", expected)


@pytest.mark.parametrize(
    ("limits", "gpus", "share"),
    [
        *((1, (), "4"), (1, ("0",), "4"), (1, ("0", "1"), "2"), (1, ("0", "1", "2"), "2"), (0, ("0", "1"), "4")),
        *((2, ("0", "1"), "4"), (2, ("0", "1", "2"), "3"), (2, (), "4")),
    ],
)
def test_workers_of_one_machine_that_ask_for_gpus_compute_on_them_and_share_them(build, limits, gpus, share):
    asked = {"resources": {"limits": {"nvidia.com/gpu": limits}}, "parallelism": {"tensor": limits}} if limits else {}
    pools = {"prefill": asked, "decode": asked, "scaling": {role: {"min": 2} for role in SETTLED}}
    for role in SETTLED:
        flags = _command(
            build(engine={"kvCacheMemory": "Auto"}, **pools), role, placement.local(("legato",), gpus=gpus)
        )
        on_gpu = bool(gpus and limits)
        assert ("--device" in flags) == on_gpu
        assert flags.get("--device", "cuda") == "cuda"
        assert flags["--memory-share"] == share


@pytest.mark.parametrize(
    ("cores", "prefill", "decode", "threads"),
    [(2, 1, 1, ("2", "1")), (8, 1, 2, ("8", "2")), (8, 3, 1, ("2", "4")), (1, 2, 1, ("1", "1"))],
)
def test_ranks_of_a_pool_share_a_machines_cores(build, cores, prefill, decode, threads):
    scaling = {"prefill": {"min": prefill}, "decode": {"min": decode}}
    item = build(scaling=scaling, decode={"parallelism": {"tensor": 2}})
    shared = placement.local(("legato",), cores)
    flags = [_command(item, role, shared) for role in ("prefill", "decode")]
    assert tuple(flag["--threads"] for flag in flags) == threads
    assert all("--time-slices" in flag for flag in flags)  # else steps of both pools would hinder each other
    pods = placement.kubernetes(placement.Containers("e", "g"))
    assert "--time-slices" not in _command(item, where=pods)  # each has cores of its own


REFUSED = "demo-gateway-0: it refuses this gateway's token"


def test_a_service_is_not_ready_while_gateways_reach_none_of_its_workers(build):
    """All pods are ready by their probes: that is how an outage looked while every condition was True."""
    decode, prefill, front = _running(build())
    cut_off = dataclasses.replace(decode, unreached=REFUSED, ready_for=60.0)
    made = _plan(build(), [cut_off, prefill, front])
    for kind in ("Ready", "DecodeReady", "GatewayReady"):
        told = condition(made, kind)
        assert (told["status"], told["reason"]) == ("False", conditions.WORKERS_UNREACHABLE), kind
        assert "refuses this gateway's token" in told["message"]
    assert condition(made, "PrefillReady")["status"] == "True"
    assert made.status["pools"]["decode"]["ready"] == 0
    assert made.requeue_after <= 2.0
    assert (_created(made), _deleted(made)) == (set(), [])


def test_one_worker_without_a_gateway_is_told_and_others_serve(build):
    decode, prefill, front = _running(build())
    other = _worker(build(), "demo-decode-1", "decode", unreached=REFUSED, ready_for=60.0)
    made = _plan(build(), [decode, other, prefill, front], {"prefill": 1, "decode": 2})
    assert condition(made, "Ready")["status"] == condition(made, "GatewayReady")["status"] == "True"
    assert "demo-decode-1: demo-gateway-0: it refuses" in condition(made, "DecodeReady")["message"]


def test_a_worker_that_became_ready_just_now_starts_until_a_gateway_has_greeted_it(build):
    decode, prefill, front = _running(build())
    new = dataclasses.replace(decode, unreached="demo-gateway-0: not listed there", ready_for=1.0)
    made = _plan(build(), [new, prefill, front])
    assert (condition(made, "Ready")["status"], condition(made, "Ready")["reason"]) == ("False", "Starting")
    assert condition(made, "GatewayReady")["status"] == "True"


def test_a_rollout_does_not_remove_workers_that_answer_for_some_that_no_gateway_reaches(build):
    decode, prefill, front = _running(build())
    new = dataclasses.replace(decode, name="demo-decode-1", unreached=REFUSED, ready_for=60.0)
    old = dataclasses.replace(decode, revision="old")
    made = _plan(build(), [old, new, prefill, front])
    assert not _drained(made)
    reached = dataclasses.replace(new, unreached="")
    made = _plan(build(), [old, reached, prefill, front])
    assert _drained(made) == ["demo-decode-0"]


def test_a_worker_that_no_gateway_reaches_is_the_first_to_leave(build):
    decode, prefill, front = _running(build())
    busy = dataclasses.replace(decode, state=WorkerState(5, False, "ucx:tcp"))
    cut_off = _worker(build(), "demo-decode-1", "decode", unreached=REFUSED, ready_for=60.0)
    made = _plan(build(), [busy, cut_off, prefill, front])
    assert _drained(made) == ["demo-decode-1"]
