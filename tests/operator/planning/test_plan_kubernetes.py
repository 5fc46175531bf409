"""The plan on Kubernetes: owned objects come and go with the spec, and settled services cost no writes."""

import copy
import dataclasses

import pytest
from planned import actions, condition, observed, pod

from legato_operator.api import conditions, parsing
from legato_operator.apply import apply
from legato_operator.cluster import Ref
from legato_operator.errors import ClusterError
from legato_operator.local.store import Store
from legato_operator.manifests import common, gateway, placement, worker
from legato_operator.observing.observed import Pod, WorkerState
from legato_operator.planning.actions import Apply, Delete, PatchStatus, Release
from legato_operator.planning.plan import plan

PLACEMENT = placement.kubernetes("engine:1", "gateway:1")
SERVING = {"replicas": 1, "updatedReplicas": 1, "availableReplicas": 1, "observedGeneration": 1}


def _applied(made, objects=()):
    """The objects after a plan's applies, with what a server adds."""
    known = {(i["kind"], i["metadata"]["name"]): copy.deepcopy(i) for i in objects}
    for action in actions(made, Apply):
        key = action.item["kind"], action.item["metadata"]["name"]
        if key[0] == "Pod":
            continue
        if action.manager == "legato-scaler":
            known[key]["spec"]["replicas"] = action.item["spec"]["replicas"]
            continue
        known[key] = copy.deepcopy(dict(action.item))
        known[key]["metadata"] |= {"uid": f"uid-{key}", "generation": 1}
    return list(known.values())


def _living(item, status=SERVING):
    """All objects of a service whose gateway serves, whose pools' status is told, and whose revision is kept."""
    objects = _applied(plan(observed(item), PLACEMENT))
    _find(objects, "Deployment")["status"] = status
    second = plan(observed(item, objects, _pods(item)), PLACEMENT)
    objects = _applied(second, objects)
    for action in actions(second, PatchStatus):
        _find(objects, "WorkerPool", action.ref.name)["status"] = action.status
    return objects


def _find(objects, kind, name=None):
    return next(i for i in objects if i["kind"] == kind and name in (None, i["metadata"]["name"]))


def _pod(item, pool, number=0, **changes):
    revision = common.revision_of(worker.template(parsing.read_service(item), pool, PLACEMENT))
    return pod(f"demo-{pool}-{number}", pool, revision, **changes)


def _pods(item):
    return [_pod(item, pool) for pool in ("prefill", "decode")]


def _deleted(made):
    return {(action.ref.kind, action.ref.name) for action in actions(made, Delete)}


def test_settled_service_costs_no_writes(build):
    made = plan(observed(build(), _living(build()), _pods(build())), PLACEMENT)
    assert made.phases == ()
    assert made.requeue_after == PLACEMENT.resync_after
    assert condition(made, "Ready")["status"] == "True"
    assert made.status["url"] == "http://demo.default.svc/v1"
    assert made.status["model"] == "demo"


def test_the_url_of_a_service_with_a_certificate_is_https(build):
    made = build(gateway={"tls": {"secret": "certificate"}})
    made = plan(observed(made, _living(made), _pods(made)), PLACEMENT)
    assert made.status["url"] == "https://demo.default.svc/v1"


@pytest.mark.parametrize("kind", [kind for kind in common.OWNED_KINDS if kind != "WorkerPool"])
def test_deleted_object_comes_back(build, kind):
    item = build()
    objects = _living(item)
    gone = _find(objects, kind)
    made = plan(observed(item, [i for i in objects if i is not gone], _pods(item)), PLACEMENT)
    assert [a.item["metadata"]["name"] for a in actions(made, Apply)] == [gone["metadata"]["name"]]


def test_edited_object_comes_back_and_additions_of_others_stay(build):
    item = build()
    objects = _living(item)
    _find(objects, "Service", "demo-workers")["spec"]["publishNotReadyAddresses"] = False
    _find(objects, "Service", "demo")["metadata"]["labels"]["somebody"] = "else"
    made = plan(observed(item, objects, _pods(item)), PLACEMENT)
    assert [a.item["metadata"]["name"] for a in actions(made, Apply)] == ["demo-workers"]


def test_removed_field_is_a_change(build):
    """Every desired field may still be there; the hash says that there was another one."""
    item = build(gateway={"tenantTokensPerMinute": {"*": 1}})
    objects = _living(item)
    _find(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"].pop()
    made = plan(observed(build(), objects, _pods(item)), PLACEMENT)
    assert [a.item["kind"] for a in actions(made, Apply) if a.item["kind"] != "Pod"] == ["Deployment"]


def test_prefill_budget_goes_at_once_and_its_pool_after_its_workers(build):
    item, unified = build(), build(scaling={"prefill": {"max": 0}})
    prefill = _pod(item, "prefill", draining_since=990.0, state=WorkerState(1, True, "ucx:tcp"))
    rolling = observed(unified, _living(item), [prefill, _pod(unified, "decode")])
    made = plan(rolling, PLACEMENT)
    assert _deleted(made) == {("PodDisruptionBudget", "demo-prefill")}
    made = plan(dataclasses.replace(rolling, pods=(_pod(unified, "decode"),)), PLACEMENT)
    assert _deleted(made) == {("PodDisruptionBudget", "demo-prefill"), ("WorkerPool", "demo-prefill")}


def test_objects_of_others_with_our_label_are_left_alone(build):
    metadata = {"name": "mine", "namespace": "default", "labels": {"serving.legato.dev/service": "demo"}, "uid": "u"}
    mine = {"apiVersion": "v1", "kind": "Service", "metadata": metadata}
    assert plan(observed(build(), [*_living(build()), mine], _pods(build())), PLACEMENT).phases == ()


def test_only_known_objects_are_taken_by_force(build):
    item = build()
    assert not any(a.force for a in actions(plan(observed(item), PLACEMENT), Apply) if a.manager == "legato-operator")
    objects = _living(item)
    _find(objects, "Deployment")["spec"]["replicas"] = 7
    (again,) = actions(plan(observed(item, objects, _pods(item)), PLACEMENT), Apply)
    assert again.force


async def test_object_of_another_owner_is_told_and_left_alone(build):
    """A service may be named as somebody's Service is."""
    theirs = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "demo", "namespace": "default"},
        "spec": {"type": "NodePort", "selector": {"app": "shop"}},
    }
    store = Store(lambda: "2026-01-01T00:00:00Z")
    before = await store.apply(theirs, "shop")
    seen = observed(build())
    with pytest.raises(ClusterError, match="Service demo is not the service's own"):
        await apply(store, None, seen, plan(seen, PLACEMENT).phases)
    assert await store.get(Ref("Service", "default", "demo")) == before
    assert await store.get(Ref("Deployment", "default", "demo-gateway")), "all else is made"


def test_workers_belong_to_their_pool_and_wait_for_it(build):
    """So that disruption budgets find its scale, and its end is theirs."""
    first = plan(observed(build()), PLACEMENT)
    assert "Pod" not in {a.item["kind"] for a in actions(first, Apply)}
    objects = _applied(first)
    second = plan(observed(build(), objects), PLACEMENT)
    for started in (a.item for a in actions(second, Apply) if a.item["kind"] == "Pod"):
        (owner,) = started["metadata"]["ownerReferences"]
        assert owner["controller"]
        assert owner["uid"] == _find(objects, "WorkerPool", owner["name"])["metadata"]["uid"]
        assert owner["name"] == started["metadata"]["name"].rsplit("-", 1)[0]


def test_pool_status_counts_workers_that_stay(build):
    item = build()
    pods = [*_pods(item), _pod(item, "decode", 1, ready=False), _pod(item, "decode", 2, draining_since=999.0)]
    made = plan(observed(item, _living(item), pods), PLACEMENT)
    (told,) = actions(made, PatchStatus)
    assert told.ref.name == "demo-decode"
    assert told.status == {
        "observedGeneration": 1,
        "replicas": 2,
        "readyReplicas": 1,
        "selector": "serving.legato.dev/role=decode,serving.legato.dev/service=demo,serving.legato.dev/serving=true",
        "workers": ["uid-demo-decode-0", "uid-demo-decode-1", "uid-demo-decode-2"],
        "wish": None,
        "reason": None,
    }


def test_pool_status_tells_what_the_autoscaler_decided(build):
    item = build()
    status = {"scaling": {"pools": {"decode": {"wish": 3, "reason": "KVBlocks"}}}}
    made = plan(observed(item, _living(item), _pods(item), status=status), PLACEMENT)
    told = {action.ref.name: (action.status["wish"], action.status["reason"]) for action in actions(made, PatchStatus)}
    assert told == {"demo-decode": (3, "KVBlocks")}  # that of the other pool is as it was


def test_pool_status_loses_what_nobody_decides_any_more(build):
    item = build()
    objects = _living(item)
    _find(objects, "WorkerPool", "demo-decode")["status"] |= {"wish": 3, "reason": "KVBlocks"}
    made = plan(observed(item, objects, _pods(item)), PLACEMENT)
    (told,) = actions(made, PatchStatus)
    assert (told.status["wish"], told.status["reason"]) == (None, None)


def test_drained_worker_leaves_its_pools_selector(build):
    item = build()
    pods = [*_pods(item), _pod(item, "decode", 1)]
    made = plan(observed(item, _living(item), pods), PLACEMENT)
    (mark,) = [a.item for a in actions(made, Apply) if a.item["kind"] == "Pod"]
    assert mark["metadata"]["name"] == "demo-decode-1"
    assert mark["metadata"]["labels"] == {"serving.legato.dev/serving": "false"}


@pytest.mark.parametrize(
    ("status", "ready", "settled"),
    [
        (SERVING, "True", True),
        ({}, "False", False),
        (SERVING | {"updatedReplicas": 0}, "True", False),
        (SERVING | {"observedGeneration": 0}, "True", False),
        (SERVING | {"replicas": 2}, "True", False),
        (SERVING | {"availableReplicas": 0}, "False", False),
    ],
)
def test_gateway_is_ready_by_its_deployment(build, status, ready, settled):
    item = build()
    made = plan(observed(item, _living(item, status), _pods(item)), PLACEMENT)
    assert condition(made, "GatewayReady")["status"] == ready
    assert (made.requeue_after == PLACEMENT.resync_after) is settled


@pytest.mark.parametrize(("unavailable", "ready"), [("Local", ("True", "Degraded")), ("Wait", ("False", "Starting"))])
def test_service_whose_decode_workers_prefill_is_degraded_without_prefill_workers(build, unavailable, ready):
    item = build(routing={"whenPrefillUnavailable": unavailable})
    lost = _pod(item, "prefill", ready=False, state=None, message="node lost")
    made = plan(observed(item, _living(item), [lost, _pod(item, "decode")]), PLACEMENT)
    told = condition(made, "Ready")
    assert (told["status"], told["reason"]) == ready
    assert "PrefillReady: demo-prefill-0: node lost" in told["message"]
    assert condition(made, "PrefillReady")["status"] == "False"
    none = plan(observed(item, _living(item), [lost]), PLACEMENT)
    assert condition(none, "Ready")["status"] == "False", "nobody decodes"


@pytest.mark.parametrize(
    ("prefill", "ready"),
    [
        ({"message": "loading"}, ("False", "Starting")),
        ({"downloading": True}, ("False", "Downloading")),
        ({"refused": "no such flag"}, ("True", "Degraded")),
        ({"unschedulable": True}, ("True", "Degraded")),
    ],
)
def test_new_service_is_ready_when_all_its_pools_are_or_prefill_cannot_be(build, prefill, ready):
    item = build()
    objects = [i for i in _living(item) if i["kind"] != "ControllerRevision"]
    pods = [_pod(item, "prefill", ready=False, state=None, **prefill), _pod(item, "decode")]
    told = condition(plan(observed(item, objects, pods), PLACEMENT), "Ready")
    assert (told["status"], told["reason"]) == ready


def test_failed_worker_is_replaced_when_it_is_old_enough(build):
    """A node that refuses every pod gets the next one only then."""
    item = build()
    for age, deleted, started in ((1.0, set(), []), (11.0, {("Pod", "demo-decode-0")}, ["demo-decode-1"])):
        failed = _pod(item, "decode", ready=False, failed=True, age=age, state=None)
        made = plan(observed(item, _living(item), [_pod(item, "prefill"), failed]), PLACEMENT)
        assert _deleted(made) == deleted
        assert [a.item["metadata"]["name"] for a in actions(made, Apply) if a.item["kind"] == "Pod"] == started


def test_worker_of_a_lost_node_is_waited_for_by_nobody(build):
    """Not even without surge: its memory and GPUs are on a node that does not answer."""
    item = build(rollout={"maxSurge": 0, "maxUnavailable": 1})
    leaving = _pod(item, "decode", ready=False, leaving=True)
    for lost, started in ((False, []), (True, ["demo-decode-1"])):
        pods = [_pod(item, "prefill"), dataclasses.replace(leaving, lost=lost)]
        made = plan(observed(item, _living(item), pods), PLACEMENT)
        assert [a.item["metadata"]["name"] for a in actions(made, Apply) if a.item["kind"] == "Pod"] == started


def test_end_goes_from_gateway_to_workers_to_the_rest(build):
    item = build()
    objects, front = _living(item), Pod("demo-gateway-x", "uid-g", "gateway", "", "0", True, False)
    made = plan(observed(item, objects, [*_pods(item), front], deleting=True), PLACEMENT)
    assert _deleted(made) == {("Deployment", "demo-gateway")}
    rest = [i for i in objects if i["kind"] != "Deployment"]
    made = plan(observed(item, rest, [*_pods(item), front], deleting=True), PLACEMENT)
    assert _deleted(made) == set(), "its Deployment's end is the gateway's"
    made = plan(observed(item, rest, _pods(item), deleting=True), PLACEMENT)
    assert _deleted(made) == {("Pod", "demo-prefill-0"), ("Pod", "demo-decode-0")}
    lost = dataclasses.replace(_pods(item)[0], leaving=True, lost=True)
    made = plan(observed(item, rest, [lost], deleting=True), PLACEMENT)
    assert {kind for kind, _ in _deleted(made)} == {i["kind"] for i in rest}
    assert actions(made, Release)


def test_fixed_replicas_are_written_again_and_others_never(build):
    fixed = build(scaling={"mode": "Fixed"}, prefill={"replicas": 1}, decode={"replicas": 1})
    for item, desired in ((fixed, [1]), (build(scaling={"mode": "External"}), [])):
        objects = _living(item)
        _find(objects, "WorkerPool", "demo-decode")["spec"]["replicas"] = 2
        made = plan(observed(item, objects, _pods(item)), PLACEMENT)
        assert [a.item["spec"]["replicas"] for a in actions(made, Apply) if a.manager == "legato-scaler"] == desired


@pytest.mark.parametrize(("wish", "available"), [(4, 1), (1, 1), (2, 1)])
def test_disruption_budget_follows_what_the_pool_gets(build, wish, available):
    """A budget that follows the wish never lets a drain end, or lets it take all workers at once."""
    item = build(scaling={"mode": "External", "prefill": {"max": 0}, "decode": {"min": 2, "max": 2}})
    objects = _living(item)
    _find(objects, "WorkerPool", "demo-decode")["spec"]["replicas"] = wish
    pods = [_pod(item, "decode"), _pod(item, "decode", 1)]
    objects = _applied(plan(observed(item, objects, pods), PLACEMENT), objects)
    budget = _find(objects, "PodDisruptionBudget", "demo-decode")["spec"]
    assert (budget["minAvailable"], budget.get("maxUnavailable")) == (available, None)


def test_disruption_budget_is_lowered_with_the_pool(build):
    item = build(scaling={"mode": "External", "prefill": {"max": 0}, "decode": {"min": 0, "max": 4}})
    objects = _living(item)
    for wish, available in ((4, 3), (1, 0), (0, 0)):
        _find(objects, "WorkerPool", "demo-decode")["spec"]["replicas"] = wish
        objects = _applied(plan(observed(item, objects, [_pod(item, "decode")]), PLACEMENT), objects)
        assert _find(objects, "PodDisruptionBudget", "demo-decode")["spec"]["minAvailable"] == available


def test_disruption_budget_lets_one_go_of_all_that_are_ready_while_some_drain(build):
    """Those that drain are ready, and leave anyway: counted as spare, they would let all that stay go at once."""
    item = build(scaling={"mode": "External", "prefill": {"max": 0}, "decode": {"min": 2, "max": 4}})
    objects = _living(item)
    _find(objects, "WorkerPool", "demo-decode")["spec"]["replicas"] = 2
    for ready, available in ((4, 3), (2, 1)):
        pods = [_pod(item, "decode", number) for number in range(ready)]
        objects = _applied(plan(observed(item, objects, pods), PLACEMENT), objects)
        assert _find(objects, "PodDisruptionBudget", "demo-decode")["spec"]["minAvailable"] == available


def _with_model(build, path):
    return build(model={"source": {"path": path}})


def test_gateway_of_another_model_waits_for_workers_of_it(build):
    """It speaks to none of the workers there are; they stay until it is there."""
    before, after = _with_model(build, "/models/a.gguf"), _with_model(build, "/models/b.gguf")
    objects, old = _living(before), _pods(before)

    def made(*more, status=SERVING):
        _find(objects, "Deployment")["status"] = status
        return plan(observed(after, objects, [*old, *more]), PLACEMENT)

    assert "Deployment" not in {a.item["kind"] for a in actions(made(), Apply)}
    new = [_pod(after, pool, 1) for pool in ("prefill", "decode")]
    assert "Deployment" not in {a.item["kind"] for a in actions(made(new[0]), Apply)}
    objects = _applied(made(*new), objects)
    container = _find(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    assert "/model/b.gguf" in container["args"]
    rolling = made(*new, status=SERVING | {"observedGeneration": 0})
    assert not [a for a in actions(rolling, Apply) if a.item["kind"] == "Pod"], "nobody is marked to leave"
    leaving = {a.item["metadata"]["name"] for a in actions(made(*new), Apply) if a.item["kind"] == "Pod"}
    assert leaving == {"demo-prefill-0", "demo-decode-0"}


def test_gateway_does_not_go_back_when_a_pool_that_has_changed_loses_its_workers_for_a_while(build):
    """The old model's would find those alone that have not left yet."""
    before, after = _with_model(build, "/models/a.gguf"), _with_model(build, "/models/b.gguf")
    objects, new = _living(before), [_pod(after, pool, 1) for pool in ("prefill", "decode")]
    objects = _applied(plan(observed(after, objects, [*_pods(before), *new]), PLACEMENT), objects)
    _find(objects, "Deployment")["status"] = SERVING
    restarting = dataclasses.replace(new[0], ready=False, state=None)
    made = plan(observed(after, objects, [restarting, _pod(before, "decode"), new[1]]), PLACEMENT)
    assert "Deployment" not in {a.item["kind"] for a in actions(made, Apply)}
    early = plan(observed(after, objects, [*_pods(before), restarting, new[1]]), PLACEMENT)
    assert "Deployment" in {a.item["kind"] for a in actions(early, Apply)}, "the old workers serve together"


def test_moment_without_readiness_takes_no_gateway_back(build):
    """The new revision has shown that it can run; a gateway that goes to and fro cuts all it could reach."""
    before, after = _with_model(build, "/models/a.gguf"), _with_model(build, "/models/b.gguf")
    objects, new = _living(before), [_pod(after, pool, 1) for pool in ("prefill", "decode")]
    objects = _applied(plan(observed(after, objects, [*_pods(before), *new]), PLACEMENT), objects)
    _find(objects, "Deployment")["status"] = SERVING
    blinking = dataclasses.replace(new[0], ready=False, was_ready=True, waiting=2.0, restarts=3)
    made = plan(observed(after, objects, [*_pods(before), blinking, new[1]]), PLACEMENT)
    assert "Deployment" not in {a.item["kind"] for a in actions(made, Apply)}
    assert condition(made, "Progressing")["reason"] == conditions.ROLLING_OUT


@pytest.mark.parametrize("rollback", [False, True])
def test_short_outage_of_a_registry_is_no_failed_revision(build, rollback):
    """It is told, and the kubelet has its time to try again; then the revision has failed."""
    rollout = {"autoRollback": rollback}
    before, after = build(rollout=rollout), build(rollout=rollout, engine={"chunkTokens": 256})
    objects = _living(before)
    blocked = _pod(after, "decode", 1, ready=False, state=None, blocked="ErrImagePull: refused", blocked_for=5.0)
    made = plan(observed(after, objects, [*_pods(before), blocked]), PLACEMENT)
    told = condition(made, "Progressing")
    assert (told["status"], told["reason"]) == ("True", conditions.RETRYING)
    assert told["message"] == "demo-decode-1: ErrImagePull: refused"
    assert "failedRevision" not in made.status["pools"]["decode"]
    assert not _deleted(made)
    up = dataclasses.replace(blocked, ready=True, blocked="", blocked_for=0.0, state=WorkerState(0, False, "ucx:tcp"))
    made = plan(observed(after, objects, [*_pods(before), up], status=made.status), PLACEMENT)
    assert condition(made, "Progressing")["reason"] == conditions.ROLLING_OUT
    late = dataclasses.replace(blocked, blocked_for=301.0)
    made = plan(observed(after, objects, [*_pods(before), late]), PLACEMENT)
    assert condition(made, "Progressing")["reason"] == conditions.ROLLOUT_FAILED


def test_manifest_that_is_mended_before_anything_ran_waits_for_no_kubelet(build):
    before, after = build(), build(engine={"chunkTokens": 256})
    objects = [i for i in _living(before) if i["kind"] != "ControllerRevision"]
    blocked = _pod(before, "decode", ready=False, state=None, blocked="ErrImagePull: refused", blocked_for=5.0)
    made = plan(observed(after, objects, [blocked]), PLACEMENT)
    assert _deleted(made) == {("Pod", "demo-decode-0")}


def test_what_is_good_is_kept_with_its_pool_and_the_one_before_goes(build):
    before, after = build(), build(engine={"chunkTokens": 256})
    objects = _living(before)
    kept = {i["metadata"]["labels"]["serving.legato.dev/role"]: i for i in objects if i["kind"] == "ControllerRevision"}
    assert set(kept) == {"prefill", "decode", "gateway"}
    assert kept["decode"]["metadata"]["ownerReferences"][0]["name"] == "demo-decode"
    second = plan(observed(after, objects, _pods(after)), PLACEMENT)
    assert {a.item["revision"] for a in actions(second, Apply) if a.item["kind"] == "ControllerRevision"} == {2}
    assert not _deleted(second)
    third = plan(observed(after, _applied(second, objects), _pods(after)), PLACEMENT)
    assert _deleted(third) == {("ControllerRevision", kept[role]["metadata"]["name"]) for role in ("prefill", "decode")}


def test_failure_is_told_by_pool_revision_and_cause(build):
    before, after = build(), build(engine={"chunkTokens": 256})
    late = _pod(after, "decode", 1, ready=False, state=None, waiting=1801.0, message="0/3 nodes have a GPU")
    made = plan(observed(after, _living(before), [*_pods(before), late]), PLACEMENT)
    told = condition(made, "Progressing")
    assert (told["status"], told["reason"]) == ("False", conditions.PROGRESS_DEADLINE_EXCEEDED)
    cause = "demo-decode-1: not ready within 30m: 0/3 nodes have a GPU"
    assert told["message"] == f"decode: revision {late.revision}: {cause}; the last good revision keeps serving"
    pool = made.status["pools"]["decode"]
    assert pool["revision"] == pool["failedRevision"] == late.revision
    assert (pool["failureReason"], pool["failure"]) == (conditions.PROGRESS_DEADLINE_EXCEEDED, cause)
    assert condition(made, "Ready")["status"] == "True"


def _gateway(item, name, **changes):
    revision = common.revision_of(gateway.template(parsing.read_service(item), PLACEMENT))
    return pod(name, "gateway", revision, **changes)


def _with_broken_gateway(build, **rollout):
    """A service of another model: its workers came up, and its gateway does not."""
    before, after = (build(model={"source": {"path": f"/models/{name}.gguf"}}, rollout=rollout) for name in ("a", "b"))
    objects, new = _living(before), [_pod(after, pool, 1) for pool in ("prefill", "decode")]
    objects = _applied(plan(observed(after, objects, [*_pods(before), *new]), PLACEMENT), objects)
    _find(objects, "Deployment")["status"] = SERVING | {"replicas": 2, "availableReplicas": 1}
    front = _gateway(before, "demo-gateway-x"), _gateway(after, "demo-gateway-y", ready=False, refused="no tokenizer")
    return before, after, objects, [*_pods(before), *new, *front]


def test_gateway_that_cannot_come_up_fails_the_revision(build):
    """Its Deployment keeps the old one, and so do the pools."""
    _, after, objects, pods = _with_broken_gateway(build)
    made = plan(observed(after, objects, pods), PLACEMENT)
    told = condition(made, "Progressing")
    assert (told["status"], told["reason"]) == ("False", conditions.ROLLOUT_FAILED)
    assert "demo-gateway-y: no tokenizer; the last good revision keeps serving" in told["message"]
    assert made.status["gateway"]["failedRevision"] == made.status["gateway"]["revision"] == pods[-1].revision
    assert not actions(made, Apply)
    assert not _deleted(made)
    assert made.requeue_after == PLACEMENT.resync_after


def test_gateway_that_cannot_come_up_is_taken_back_with_its_pools(build):
    """And is not tried again until the manifest makes another one."""
    before, after, objects, pods = _with_broken_gateway(build, autoRollback=True)
    failed = plan(observed(after, objects, pods), PLACEMENT)
    made = plan(observed(after, objects, pods, status=failed.status), PLACEMENT)
    (front,) = [a.item for a in actions(made, Apply) if a.item["kind"] == "Deployment"]
    assert "/model/a.gguf" in front["spec"]["template"]["spec"]["containers"][0]["args"]
    drained = {a.item["metadata"]["name"] for a in actions(made, Apply) if a.item["kind"] == "Pod"}
    assert drained == {"demo-prefill-1", "demo-decode-1"}
    objects = _applied(made, objects)
    _find(objects, "Deployment")["status"] = SERVING
    whole = [*_pods(before), _gateway(before, "demo-gateway-x")]
    again = plan(observed(after, objects, whole, status=made.status), PLACEMENT)
    assert {action.item["kind"] for action in actions(again, Apply)} == {"PodDisruptionBudget"}, "fewer are ready"
    assert not _deleted(again)
    told = condition(again, "Progressing")
    assert (told["status"], told["reason"]) == ("False", conditions.ROLLOUT_FAILED)
    assert "gateway: " in told["message"]
    mended = build(model={"source": {"path": "/models/c.gguf"}}, rollout={"autoRollback": True})
    third = plan(observed(mended, objects, whole, status=again.status), PLACEMENT)
    assert {a.item["metadata"]["name"] for a in actions(third, Apply) if a.item["kind"] == "Pod"} == drained
    assert "failedRevision" not in third.status["gateway"]


def test_gateway_that_fails_alone_goes_back_alone(build):
    """An edit that changes nothing of the workers."""
    rollout = {"autoRollback": True}
    before, after = build(rollout=rollout), build(rollout=rollout, gateway={"defaultDeadline": "7s"})
    objects = _applied(plan(observed(after, _living(before), _pods(before)), PLACEMENT), _living(before))
    _find(objects, "Deployment")["status"] = SERVING | {"replicas": 2, "availableReplicas": 1}
    pods = [*_pods(before), _gateway(before, "x"), _gateway(after, "y", ready=False, refused="no such flag")]
    failed = plan(observed(after, objects, pods), PLACEMENT)
    made = plan(observed(after, objects, pods, status=failed.status), PLACEMENT)
    assert [a.item["kind"] for a in actions(made, Apply)] == ["Deployment"]
    assert made.status["pools"]["decode"].get("failedRevision") is None
    back = _applied(made, objects)
    assert _find(back, "Deployment")["spec"] == _find(_living(before), "Deployment")["spec"]


def test_old_gateway_that_fails_says_nothing_of_the_new_revision(build):
    _, after, objects, pods = _with_broken_gateway(build)
    old, new = pods[-2:]
    pods = [*pods[:-2], dataclasses.replace(old, ready=False, refused="x"), dataclasses.replace(new, refused="")]
    assert condition(plan(observed(after, objects, pods), PLACEMENT), "Progressing")["reason"] == "RollingOut"


def test_worker_that_shows_a_failure_outlives_one_that_may_still_come_up(build):
    """Without it the rollout would go on and make it again, over and over."""
    before, after = build(), build(engine={"chunkTokens": 256})
    objects = _living(before)
    for pool in ("prefill", "decode"):
        _find(objects, "WorkerPool", f"demo-{pool}")["spec"]["replicas"] = 2
    loading = _pod(after, "decode", 1, created="1", ready=False, state=None)
    refused = _pod(after, "decode", 2, created="2", ready=False, state=None, refused="no such flag")
    made = plan(observed(after, objects, [*_pods(before), _pod(before, "prefill", 1), loading, refused]), PLACEMENT)
    assert _deleted(made) == {("Pod", loading.name)}


def test_revision_that_somebody_else_made_is_none(build):
    item = build()
    objects = _living(item)
    kept = copy.deepcopy(next(i for i in objects if i["kind"] == "ControllerRevision"))
    del kept["metadata"]["annotations"]
    kept["metadata"]["name"], kept["data"], kept["revision"] = "theirs", {}, 7
    made = plan(observed(item, [*objects, kept], _pods(item)), PLACEMENT)
    assert not made.phases
