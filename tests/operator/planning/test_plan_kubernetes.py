"""The plan on Kubernetes: owned objects come and go with the spec, and settled services cost no writes."""

import copy
import dataclasses

import pytest
from planned import actions, condition, observed, pod

from legato_operator.api import conditions, parsing
from legato_operator.manifests import common, placement
from legato_operator.manifests.pods import gateway, worker
from legato_operator.observing.observed import Pod, WorkerState
from legato_operator.planning.actions import Apply, Delete, PatchStatus, Release
from legato_operator.planning.plan import plan

PLACEMENT = placement.kubernetes(placement.Containers("engine:1", "gateway:1"))
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


def _plan(item, objects=None, pods=None, **more):
    """For a service of this manifest, with all its objects and workers unless others are given."""
    objects, pods = _living(item) if objects is None else objects, _pods(item) if pods is None else pods
    return plan(observed(item, objects, pods, **more), PLACEMENT)


def _named(made):
    return [action.item["metadata"]["name"] for action in actions(made, Apply)]


def _kinds(made):
    return {action.item["kind"] for action in actions(made, Apply)}


def _of_pods(made):
    """Names of the pods that are made or marked."""
    return [action.item["metadata"]["name"] for action in actions(made, Apply) if action.item["kind"] == "Pod"]


def _progressing(made):
    entry = condition(made, "Progressing")
    return entry["status"], entry["reason"]


def _deleted(made):
    return {(action.ref.kind, action.ref.name) for action in actions(made, Delete)}


@pytest.mark.parametrize(("tls", "scheme"), [({}, "http"), ({"tls": {"secret": "certificate"}}, "https")])
def test_settled_service_costs_no_writes(build, tls, scheme):
    made = _plan(build(gateway=tls))
    assert (made.phases, made.requeue_after) == ((), PLACEMENT.resync_after)
    assert condition(made, "Ready")["status"] == "True"
    assert (made.status["url"], made.status["model"]) == (f"{scheme}://demo.default.svc/v1", "demo")


@pytest.mark.parametrize("change", [{"allowedOrigins": ["https://a.example"]}, {"defaultDeadline": "1m"}])
def test_an_edit_of_gateways_is_under_way_from_the_pass_that_applies_it(build, change):
    made = _plan(build(gateway=change), _living(build()), generation=2)
    assert _named(made) == ["demo-gateway"]
    assert _progressing(made) == ("True", conditions.ROLLING_OUT)
    assert condition(made, "Progressing")["message"] == "gateway 0 of 1"
    objects = _living(build())
    _find(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]["image"] = "mirror/gateway:1"
    assert _progressing(_plan(build(), objects)) == ("False", conditions.UP_TO_DATE)


def test_prefill_budget_goes_at_once_and_its_pool_after_its_workers(build):
    item, unified = build(), build(scaling={"prefill": {"max": 0}})
    prefill = _pod(item, "prefill", draining_since=990.0, state=WorkerState(1, True, "ucx:tcp"))
    objects, budget, pool = _living(item), ("PodDisruptionBudget", "demo-prefill"), ("WorkerPool", "demo-prefill")
    assert _deleted(_plan(unified, objects, [prefill, _pod(unified, "decode")])) == {budget}
    assert _deleted(_plan(unified, objects, [_pod(unified, "decode")])) == {budget, pool}


def test_only_known_objects_are_taken_by_force(build):
    first = actions(_plan(build(), [], []), Apply)
    assert not any(action.force for action in first if action.manager == "legato-operator")
    objects = _living(build())
    _find(objects, "Deployment")["spec"]["replicas"] = 7
    (again,) = actions(_plan(build(), objects), Apply)
    assert again.force


def test_workers_belong_to_their_pool_and_wait_for_it(build):
    """Disruption budgets find its scale thereby. The service owns workers, too, so that they outlive a deleted pool."""
    first = _plan(build(), [], [])
    assert "Pod" not in _kinds(first)
    objects = _applied(first)
    second = [action.item for action in actions(_plan(build(), objects, []), Apply) if action.item["kind"] == "Pod"]
    assert len(second) == 2
    for started in second:
        owner, service = started["metadata"]["ownerReferences"]
        assert (owner["controller"], service["uid"], service.get("controller")) == (True, "uid", None)
        assert owner["uid"] == _find(objects, "WorkerPool", owner["name"])["metadata"]["uid"]
        assert owner["name"] == started["metadata"]["name"].rsplit("-", 1)[0]


def test_pool_status_counts_workers_that_stay(build):
    item = build()
    pods = [*_pods(item), _pod(item, "decode", 1, ready=False), _pod(item, "decode", 2, draining_since=999.0)]
    (patch,) = actions(_plan(item, pods=pods), PatchStatus)
    assert patch.ref.name == "demo-decode"
    assert patch.status == {
        "observedGeneration": 1,
        "replicas": 2,
        "readyReplicas": 1,
        "effectiveReplicas": 1,
        "ready": "1/1",
        "cappedBy": None,
        "selector": "serving.legato.dev/role=decode,serving.legato.dev/service=demo,serving.legato.dev/serving=true",
        "workers": ["uid-demo-decode-0", "uid-demo-decode-1", "uid-demo-decode-2"],
        "recommended": None,
        "reason": None,
    }


@pytest.mark.parametrize(
    ("scaling", "limited"),
    [
        ({"decode": {"max": 2}}, (2, "1/2", "scaling.decode.max")),
        ({"maxDecodePerPrefill": 1}, (1, "1/1", "scaling.maxDecodePerPrefill")),
        ({"gpuBudget": 3}, (3, "1/3", None)),
        ({}, (3, "1/3", None)),
    ],
)
def test_pool_status_has_the_size_that_limits_leave(build, scaling, limited):
    item = build(scaling={"mode": "External", "decode": {"max": 8}, **scaling})
    objects = _living(item)
    _find(objects, "WorkerPool", "demo-decode")["spec"]["replicas"] = 3
    status = next(
        patch.status for patch in actions(_plan(item, objects), PatchStatus) if patch.ref.name == "demo-decode"
    )
    assert (status["effectiveReplicas"], status["ready"], status["cappedBy"]) == limited


def test_pool_status_has_what_the_autoscaler_decided_for_as_long_as_it_decides(build):
    status = {"scaling": {"pools": {"decode": {"recommended": 3, "reason": "KVBlocks"}}}}
    objects = _living(build())
    (patch,) = actions(_plan(build(), objects, status=status), PatchStatus)  # the other pool's is as it was
    assert (patch.ref.name, patch.status["recommended"], patch.status["reason"]) == ("demo-decode", 3, "KVBlocks")
    _find(objects, "WorkerPool", "demo-decode")["status"] |= {"recommended": 3, "reason": "KVBlocks"}
    (patch,) = actions(_plan(build(), objects), PatchStatus)
    assert (patch.status["recommended"], patch.status["reason"]) == (None, None)


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
    made = _plan(build(), _living(build(), status))
    assert condition(made, "GatewayReady")["status"] == ready
    assert (made.requeue_after == PLACEMENT.resync_after) is settled


@pytest.mark.parametrize(("unavailable", "ready"), [("Local", ("True", "Degraded")), ("Wait", ("False", "Starting"))])
def test_service_whose_decode_workers_prefill_is_degraded_without_prefill_workers(build, unavailable, ready):
    item = build(routing={"whenPrefillUnavailable": unavailable})
    lost = _pod(item, "prefill", ready=False, state=None, message="node lost")
    made = _plan(item, pods=[lost, _pod(item, "decode")])
    entry = condition(made, "Ready")
    assert (entry["status"], entry["reason"]) == ready
    assert "PrefillReady: demo-prefill-0: node lost" in entry["message"]
    assert condition(made, "PrefillReady")["status"] == "False"
    assert condition(_plan(item, pods=[lost]), "Ready")["status"] == "False", "nobody decodes"


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
    entry = condition(_plan(item, objects, pods), "Ready")
    assert (entry["status"], entry["reason"]) == ready


@pytest.mark.parametrize(("lost", "started"), [(False, []), (True, ["demo-decode-1"])])
def test_worker_of_a_lost_node_is_waited_for_by_nobody(build, lost, started):
    """Not even without surge: its memory and GPUs are on a node that does not answer."""
    item = build(rollout={"maxSurge": 0, "maxUnavailable": 1})
    leaving = _pod(item, "decode", ready=False, leaving=True, lost=lost)
    assert _of_pods(_plan(item, pods=[_pod(item, "prefill"), leaving])) == started


def test_end_goes_from_gateway_to_workers_to_the_rest(build):
    item = build()
    front = Pod("demo-gateway-x", "uid-g", "gateway", "", "0", True, False)
    assert _deleted(_plan(item, pods=[*_pods(item), front], deleting=True)) == {("Deployment", "demo-gateway")}
    rest = [each for each in _living(item) if each["kind"] != "Deployment"]
    made = _plan(item, rest, [*_pods(item), front], deleting=True)
    assert _deleted(made) == set(), "its Deployment's end is the gateway's"
    assert _deleted(_plan(item, rest, deleting=True)) == {("Pod", "demo-prefill-0"), ("Pod", "demo-decode-0")}
    made = _plan(item, rest, [dataclasses.replace(_pods(item)[0], leaving=True, lost=True)], deleting=True)
    assert {kind for kind, _ in _deleted(made)} == {each["kind"] for each in rest}
    assert actions(made, Release)


def test_workers_of_a_deleted_pool_are_adopted_by_its_successor(build):
    """It controls them then, unless it is being deleted, too."""
    objects, workers = _living(build()), [_pod(build(), "prefill"), _pod(build(), "decode", adoptable=True)]
    pool = _find(objects, "WorkerPool", "demo-decode")
    (adopted,) = _adopted(build(), objects, workers)
    (owner,) = adopted["ownerReferences"]
    assert (adopted["name"], owner["uid"], owner["controller"]) == ("demo-decode-0", pool["metadata"]["uid"], True)
    pool["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert _adopted(build(), objects, workers) == []


def _adopted(item, objects, pods):
    made = _plan(item, objects, pods)
    return [action.item["metadata"] for action in actions(made, Apply) if action.manager == common.ADOPTER]


@pytest.mark.parametrize(
    ("spec", "desired"),
    [
        ({"scaling": {"mode": "Fixed"}, "prefill": {"replicas": 1}, "decode": {"replicas": 1}}, [1]),
        ({"scaling": {"mode": "External"}}, []),
    ],
)
def test_fixed_replicas_are_written_again_and_others_never(build, spec, desired):
    made = _plan(build(**spec), _scaled(_living(build(**spec)), 2))
    assert [a.item["spec"]["replicas"] for a in actions(made, Apply) if a.manager == "legato-scaler"] == desired


def _scaled(objects, replicas):
    _find(objects, "WorkerPool", "demo-decode")["spec"]["replicas"] = replicas
    return objects


@pytest.mark.parametrize(
    ("bounds", "passes"),
    [
        # With the desired replicas a drain would never end, or take all workers at the same time.
        ({"min": 2, "max": 2}, [(4, 2, 1), (1, 2, 1), (2, 2, 1)]),
        ({"min": 0, "max": 4}, [(4, 1, 3), (1, 1, 0), (0, 1, 0)]),
        # Workers that drain are ready, and leave anyway: counted as spare, they would let all others go together.
        ({"min": 2, "max": 4}, [(2, 4, 3), (2, 2, 1)]),
    ],
    ids=["what the pool gets", "lowered with the pool", "one may go of those that are ready"],
)
def test_disruption_budget_follows_the_pool(build, bounds, passes):
    """By desired and ready workers of each pass: those that must stay available."""
    item = build(scaling={"mode": "External", "prefill": {"max": 0}, "decode": bounds})
    objects = _living(item)
    for desired, ready, available in passes:
        pods = [_pod(item, "decode", number) for number in range(ready)]
        objects = _applied(_plan(item, _scaled(objects, desired), pods), objects)
        budget = _find(objects, "PodDisruptionBudget", "demo-decode")["spec"]
        assert (budget["minAvailable"], budget.get("maxUnavailable")) == (available, None)


def _with_model(build, name, **rollout):
    return build(model={"source": {"path": f"/models/{name}.gguf"}}, rollout=rollout)


def _with_new_workers(before, after):
    """Objects of a service of another model whose gateway serves it, and its workers, numbered 1."""
    objects, new = _living(before), [_pod(after, pool, 1) for pool in ("prefill", "decode")]
    objects = _applied(_plan(after, objects, [*_pods(before), *new]), objects)
    _find(objects, "Deployment")["status"] = SERVING
    return objects, new


def test_gateway_of_another_model_waits_for_workers_of_it(build):
    """It speaks to none of the workers there are; they stay until it is there."""
    before, after = _with_model(build, "a"), _with_model(build, "b")
    objects, old = _living(before), _pods(before)

    def made(*more, status=SERVING):
        _find(objects, "Deployment")["status"] = status
        return _plan(after, objects, [*old, *more])

    assert "Deployment" not in _kinds(made())
    new = [_pod(after, pool, 1) for pool in ("prefill", "decode")]
    assert "Deployment" not in _kinds(made(new[0]))
    objects = _applied(made(*new), objects)
    container = _find(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    assert "/model/b.gguf" in container["args"]
    assert _of_pods(made(*new, status=SERVING | {"observedGeneration": 0})) == [], "nobody is marked to leave"
    assert set(_of_pods(made(*new))) == {"demo-prefill-0", "demo-decode-0"}


def test_gateway_does_not_go_back_when_a_pool_that_has_changed_loses_its_workers_for_a_while(build):
    """The old model's would find only workers that have not left yet; one that goes to and fro cuts all it reached."""
    before, after = _with_model(build, "a"), _with_model(build, "b")
    objects, (prefill, decode) = _with_new_workers(before, after)
    restarting = dataclasses.replace(prefill, ready=False, state=None)
    assert "Deployment" not in _kinds(_plan(after, objects, [restarting, _pod(before, "decode"), decode]))
    early = _plan(after, objects, [*_pods(before), restarting, decode])
    assert "Deployment" in _kinds(early), "the old workers serve together"
    blinking = dataclasses.replace(prefill, ready=False, was_ready=True, waiting=2.0, restarts=3)
    made = _plan(after, objects, [*_pods(before), blinking, decode])
    assert "Deployment" not in _kinds(made), "the new revision has shown that it can run"
    assert condition(made, "Progressing")["reason"] == conditions.ROLLING_OUT


@pytest.mark.parametrize("rollback", [False, True])
def test_short_outage_of_a_registry_is_not_a_failed_revision(build, rollback):
    """It is reported, and the kubelet has its time to try again; then the revision has failed."""
    rollout = {"autoRollback": rollback}
    before, after = build(rollout=rollout), build(rollout=rollout, engine={"chunkTokens": 256})
    objects = _living(before)
    blocked = _pod(after, "decode", 1, ready=False, state=None, blocked="ErrImagePull: refused", blocked_for=5.0)
    made = _plan(after, objects, [*_pods(before), blocked])
    assert _progressing(made) == ("True", conditions.RETRYING)
    assert condition(made, "Progressing")["message"] == "demo-decode-1: ErrImagePull: refused"
    assert "failedRevision" not in made.status["pools"]["decode"]
    assert not _deleted(made)
    up = dataclasses.replace(blocked, ready=True, blocked="", blocked_for=0.0, state=WorkerState(0, False, "ucx:tcp"))
    made = _plan(after, objects, [*_pods(before), up], status=made.status)
    assert condition(made, "Progressing")["reason"] == conditions.ROLLING_OUT
    made = _plan(after, objects, [*_pods(before), dataclasses.replace(blocked, blocked_for=301.0)])
    assert condition(made, "Progressing")["reason"] == conditions.ROLLOUT_FAILED


def test_what_is_good_is_kept_with_its_pool_and_the_one_before_goes(build):
    before, after = build(), build(engine={"chunkTokens": 256})
    objects = _living(before)
    kept = {i["metadata"]["labels"]["serving.legato.dev/role"]: i for i in objects if i["kind"] == "ControllerRevision"}
    assert set(kept) == {"prefill", "decode", "gateway"}
    assert kept["decode"]["metadata"]["ownerReferences"][0]["name"] == "demo-decode"
    second = _plan(after, objects)
    assert {a.item["revision"] for a in actions(second, Apply) if a.item["kind"] == "ControllerRevision"} == {2}
    assert not _deleted(second)
    third = _plan(after, _applied(second, objects))
    assert _deleted(third) == {("ControllerRevision", kept[role]["metadata"]["name"]) for role in ("prefill", "decode")}


def test_failure_is_told_by_pool_revision_and_cause(build):
    before, after = build(), build(engine={"chunkTokens": 256})
    late = _pod(after, "decode", 1, ready=False, state=None, waiting=1801.0, message="0/3 nodes have a GPU")
    made = _plan(after, _living(before), [*_pods(before), late])
    assert _progressing(made) == ("False", conditions.PROGRESS_DEADLINE_EXCEEDED)
    cause = "demo-decode-1: not ready within 30m: 0/3 nodes have a GPU"
    assert (
        condition(made, "Progressing")["message"]
        == f"decode: revision {late.revision}: {cause}; the last good revision keeps serving"
    )
    pool = made.status["pools"]["decode"]
    assert pool["revision"] == pool["failedRevision"] == late.revision
    assert (pool["failureReason"], pool["failure"]) == (conditions.PROGRESS_DEADLINE_EXCEEDED, cause)
    assert condition(made, "Ready")["status"] == "True"


def _gateway(item, name, **changes):
    revision = common.revision_of(gateway.template(parsing.read_service(item), PLACEMENT))
    return pod(name, "gateway", revision, **changes)


def _with_broken_gateway(build, **rollout):
    """A service of another model: its workers came up, and its gateway does not."""
    before, after = (_with_model(build, name, **rollout) for name in ("a", "b"))
    objects, new = _with_new_workers(before, after)
    _find(objects, "Deployment")["status"] = SERVING | {"replicas": 2, "availableReplicas": 1}
    front = _gateway(before, "demo-gateway-x"), _gateway(after, "demo-gateway-y", ready=False, refused="no tokenizer")
    return before, after, objects, [*_pods(before), *new, *front]


def test_gateway_that_cannot_come_up_fails_the_revision(build):
    """Its Deployment keeps the old one, and so do the pools."""
    _, after, objects, pods = _with_broken_gateway(build)
    made = _plan(after, objects, pods)
    assert _progressing(made) == ("False", conditions.ROLLOUT_FAILED)
    message = condition(made, "Progressing")["message"]
    assert "demo-gateway-y: no tokenizer; the last good revision keeps serving" in message
    assert made.status["gateway"]["failedRevision"] == made.status["gateway"]["revision"] == pods[-1].revision
    assert not actions(made, Apply)
    assert not _deleted(made)
    assert made.requeue_after == PLACEMENT.resync_after


def test_gateway_that_cannot_come_up_is_taken_back_with_its_pools(build):
    """And is not tried again until the manifest makes another one."""
    before, after, objects, pods = _with_broken_gateway(build, autoRollback=True)
    made = _plan(after, objects, pods, status=_plan(after, objects, pods).status)
    (front,) = [action.item for action in actions(made, Apply) if action.item["kind"] == "Deployment"]
    assert "/model/a.gguf" in front["spec"]["template"]["spec"]["containers"][0]["args"]
    assert set(_of_pods(made)) == {"demo-prefill-1", "demo-decode-1"}
    objects = _applied(made, objects)
    _find(objects, "Deployment")["status"] = SERVING
    whole = [*_pods(before), _gateway(before, "demo-gateway-x")]
    again = _plan(after, objects, whole, status=made.status)
    assert _kinds(again) == {"PodDisruptionBudget"}, "fewer are ready"
    assert not _deleted(again)
    assert _progressing(again) == ("False", conditions.ROLLOUT_FAILED)
    assert "gateway: " in condition(again, "Progressing")["message"]
    third = _plan(_with_model(build, "c", autoRollback=True), objects, whole, status=again.status)
    assert set(_of_pods(third)) == {"demo-prefill-1", "demo-decode-1"}
    assert "failedRevision" not in third.status["gateway"]


def test_gateway_that_fails_alone_goes_back_alone(build):
    rollout = {"autoRollback": True}
    before, after = build(rollout=rollout), build(rollout=rollout, gateway={"defaultDeadline": "7s"})
    objects = _applied(_plan(after, _living(before), _pods(before)), _living(before))
    _find(objects, "Deployment")["status"] = SERVING | {"replicas": 2, "availableReplicas": 1}
    pods = [*_pods(before), _gateway(before, "x"), _gateway(after, "y", ready=False, refused="no such flag")]
    made = _plan(after, objects, pods, status=_plan(after, objects, pods).status)
    assert _named(made) == ["demo-gateway"]
    assert made.status["pools"]["decode"].get("failedRevision") is None
    back = _applied(made, objects)
    assert _find(back, "Deployment")["spec"] == _find(_living(before), "Deployment")["spec"]


def test_old_gateway_that_fails_says_nothing_of_the_new_revision(build):
    _, after, objects, pods = _with_broken_gateway(build)
    *workers, old, new = pods
    front = [dataclasses.replace(old, ready=False, refused="x"), dataclasses.replace(new, refused="")]
    assert condition(_plan(after, objects, [*workers, *front]), "Progressing")["reason"] == "RollingOut"


def test_worker_that_shows_a_failure_outlives_one_that_may_still_come_up(build):
    """Without it the rollout would go on and make it again, over and over."""
    before, after = build(), build(engine={"chunkTokens": 256})
    objects = _living(before)
    for pool in ("prefill", "decode"):
        _find(objects, "WorkerPool", f"demo-{pool}")["spec"]["replicas"] = 2
    loading = _pod(after, "decode", 1, created="1", ready=False, state=None)
    refused = _pod(after, "decode", 2, created="2", ready=False, state=None, refused="no such flag")
    made = _plan(after, objects, [*_pods(before), _pod(before, "prefill", 1), loading, refused])
    assert _deleted(made) == {("Pod", loading.name)}


def test_revision_that_somebody_else_made_does_not_count(build):
    objects = _living(build())
    theirs = copy.deepcopy(_find(objects, "ControllerRevision"))
    del theirs["metadata"]["annotations"]
    theirs["metadata"]["name"], theirs["data"], theirs["revision"] = "theirs", {}, 7
    assert not _plan(build(), [*objects, theirs]).phases
