"""Adapters without a rollout: what is in pods' templates and what is not, and what the service says of its adapters."""

import dataclasses

import pytest
from planned import actions, observed, pod, report

from legato_operator.api import conditions, parsing
from legato_operator.manifests import common, placement
from legato_operator.manifests.pods import adapters, gateway, worker
from legato_operator.observing.observed import AdapterState, WorkerState
from legato_operator.planning import checks
from legato_operator.planning.actions import Apply, Delete
from legato_operator.planning.plan import plan

CLUSTER = placement.kubernetes(placement.Containers("engine:1", "gateway:1"))
LAPTOP = placement.local(("legato",))
CLAIM = {"name": "sql", "source": {"pvc": {"claim": "team", "path": "/sql"}}}
OTHER = {"name": "law", "source": {"pvc": {"claim": "team", "path": "law/3"}}}
HUB = {"repo": "owner/lora", "revision": "a" * 40}
OF_HUB = {"name": "sql", "source": {"huggingFace": HUB}}
PATH = {"name": "chess", "source": {"path": "/srv/adapters/chess"}}


@pytest.fixture
def service(build):
    def made(*listed, **model):
        named = {"source": {"builtin": "smollm2-135m-instruct"}, "adapters": list(listed)} | model
        return parsing.read_service(build(model=named))

    return made


def _templates(service, where=CLUSTER):
    return [worker.template(service, pool, where) for pool in ("prefill", "decode")] + [
        gateway.template(service, where)
    ]


def _paths(service, where=CLUSTER):
    return [entry.path for entry in adapters.entries(service, where)]


def _mounts(service):
    return [(each.mount["mountPath"], each.volume) for each in adapters.volumes(service, CLUSTER)]


def test_one_on_a_claim_that_pods_have_changes_the_list_alone(service):
    before, after = service(CLAIM), service(OTHER, CLAIM | {"maxRank": 8})
    assert _templates(before) == _templates(after)
    assert adapters.list_id(before, CLUSTER) != adapters.list_id(after, CLUSTER)
    assert _paths(after) == ["/adapters/claims/team/law/3", "/adapters/claims/team/sql"]
    assert [entry.max_rank for entry in adapters.entries(after, CLUSTER)] == [None, 8]


def test_one_on_another_claim_is_mounted_by_workers_and_gateways_stay(service):
    before, after = service(CLAIM), service(CLAIM, {"name": "law", "source": {"pvc": {"claim": "other"}}})
    old, new = _templates(before), _templates(after)
    assert [one == other for one, other in zip(old, new, strict=True)] == [False, False, True]


def test_volumes_for_adapters_to_come_are_mounted_whatever_is_on_them(service):
    volumes = [{"path": "/srv/adapters/"}, {"claim": "team"}]
    empty, full = service(adapterVolumes=volumes), service(PATH, CLAIM, OTHER, adapterVolumes=volumes)
    assert _templates(empty) == _templates(full)
    assert [at for at, _ in _mounts(empty)] == ["/adapters/claims/team", "/adapters/paths/srv/adapters"]
    assert _paths(full)[0] == "/adapters/paths/srv/adapters/chess"


def test_a_path_within_another_is_seen_through_it(service):
    within = {"name": "openings", "source": {"path": "/srv/adapters/chess/openings/"}}
    beside = {"name": "chess2", "source": {"path": "/srv/adapters/chess2"}}
    assert [at for at, _ in _mounts(service(within, PATH, beside))] == [
        "/adapters/paths/srv/adapters/chess",
        "/adapters/paths/srv/adapters/chess2",
    ]


def test_on_one_machine_the_list_names_folders_as_they_are_and_changes_no_template(service):
    before, after = service(PATH), service(PATH, {"name": "go", "source": {"path": "/elsewhere/go"}})
    assert _templates(before, LAPTOP) == _templates(after, LAPTOP)
    assert _paths(after, LAPTOP) == ["/srv/adapters/chess", "/elsewhere/go"]


def test_each_of_the_hub_is_downloaded_by_a_container_of_its_own(service):
    """In any order, before workers start; gateways need no adapters."""
    law = {"name": "team/law", "source": {"huggingFace": HUB | {"tokenSecret": "hub"}}}
    *workers, front = _templates(service(OF_HUB, law, PATH))
    assert "initContainers" not in front["spec"]
    for template in workers:
        downloads = template["spec"]["initContainers"]
        assert [download["args"][-1] for download in downloads] == ["sql", "team/law"]
        assert len({download["name"] for download in downloads}) == 2
        variables = [[each["name"] for each in download["env"]] for download in downloads]
        assert variables == [["LEGATO_CACHE"], ["HF_TOKEN", "LEGATO_CACHE"]]
    assert _paths(service(OF_HUB, law, PATH))[:2] == [f"/cache/hub/owner--lora/{'a' * 40}"] * 2
    assert _templates(service(PATH, law, OF_HUB)) == [*workers, front], "their order is no reason for a rollout"


def test_a_download_has_the_processor_and_memory_that_the_worker_has_after_it(build):
    resources = {"requests": {"cpu": 2, "memory": "2Gi", "nvidia.com/gpu": 1}, "limits": {"nvidia.com/gpu": 1}}
    model = {"source": {"huggingFace": HUB}, "adapters": [OF_HUB]}
    item = parsing.read_service(build(model=model, decode={"resources": resources}))
    first, second = worker.template(item, "decode", CLUSTER)["spec"]["initContainers"]
    assert (first["name"], first.get("resources")) == ("model", None)
    assert second["resources"] == {"requests": {"cpu": "2", "memory": "2Gi"}}
    _, without = worker.template(item, "prefill", CLUSTER)["spec"]["initContainers"]
    assert "resources" not in without


def test_on_one_machine_one_of_the_hub_lies_in_the_cache_of_its_user(service):
    before, after = service(), service(OF_HUB)
    here = placement.local(("legato",), cache_folder="/home/me/.cache")
    assert _paths(after, here) == [f"/home/me/.cache/hub/owner--lora/{'a' * 40}"]
    assert [checks.unavailable(each.spec) for each in (before, after)] == [[], []]
    secret = service({"name": "sql", "source": {"huggingFace": HUB | {"tokenSecret": "hub"}}})
    ((path, message),) = checks.unavailable(secret.spec)
    assert path == "spec.model.adapters.0.source.huggingFace.tokenSecret"
    assert "HF_TOKEN" in message


def _worker(service, pool, state, revision=None):
    revision = revision or common.revision_of(worker.template(service, pool, CLUSTER))
    return pod(f"demo-{pool}-0", pool, revision, state=WorkerState(0, False, "tcp", adapters=state), ready_for=99.0)


def _gateway(**given):
    return pod("demo-gateway-0", "gateway", report=report(**given), ready_for=99.0)


def _condition(service, *pods, **changes):
    made = plan(observed(service, pods=pods, timestamp="1970-01-01T00:16:40Z", **changes), CLUSTER)
    return conditions.find(made.status, conditions.ADAPTERS_READY), made


def test_the_condition_names_who_has_not_read_the_list_and_is_looked_at_soon(service):
    adapted = service(CLAIM, OTHER)
    new, old = adapters.list_id(adapted, CLUSTER), adapters.list_id(service(CLAIM), CLUSTER)
    has = AdapterState(new, frozenset({"sql", "law"}))
    prefill, decode = _worker(adapted, "prefill", has), _worker(adapted, "decode", AdapterState(old))
    condition, made = _condition(adapted, prefill, decode, _gateway(adapters=old))
    assert (condition["status"], condition["reason"]) == ("False", conditions.ADAPTERS_PENDING)
    assert condition["message"] == "demo-decode-0, demo-gateway-0 have not read the new list yet"
    assert made.requeue_after <= 2.0
    condition, _ = _condition(adapted, prefill, _worker(adapted, "decode", has), _gateway(adapters=new))
    assert (condition["status"], condition["reason"], condition["message"]) == (
        "True",
        conditions.ALL_READY,
        "2 served",
    )
    condition, _ = _condition(adapted, prefill, _worker(adapted, "decode", has), _gateway(adapters=None))
    assert condition["status"] == "True", "an older gateway reads names when it starts"


def test_the_condition_names_what_cannot_be_opened_and_where_that_is_in_the_manifest(service):
    adapted = service(CLAIM, OTHER)
    state = AdapterState(adapters.list_id(adapted, CLUSTER), frozenset({"sql"}), {"law": "/adapters/x: r is 128"})
    condition, made = _condition(adapted, _worker(adapted, "prefill", state), _worker(adapted, "decode", state))
    assert (condition["status"], condition["reason"]) == ("False", conditions.ADAPTER_REFUSED)
    assert condition["message"] == "spec.model.adapters.1: law: /adapters/x: r is 128 (demo-decode-0)"
    assert not actions(made, Delete), "nothing is replaced"
    silent = dataclasses.replace(worker := _worker(adapted, "decode", state), state=None, last_state=worker.state)
    assert _condition(adapted, _worker(adapted, "prefill", state), silent)[0] == condition, "it missed one answer"
    older = _worker(adapted, "decode", state, revision="before")
    condition, _ = _condition(adapted, older)
    assert condition["reason"] == conditions.UNKNOWN, "pods of an older revision lack volumes"


def test_what_a_worker_says_of_another_list_is_no_problem_of_this_one(service):
    """It names an adapter that was mended meanwhile, or is at another place in the manifest now."""
    adapted = service(CLAIM, OTHER)
    before = AdapterState(adapters.list_id(service(CLAIM), CLUSTER), frozenset(), {"law": "it is damaged"})
    condition, _ = _condition(adapted, _worker(adapted, "prefill", before), _worker(adapted, "decode", before))
    assert (condition["status"], condition["reason"]) == ("False", conditions.ADAPTERS_PENDING)


@pytest.mark.parametrize("leaving", [{"draining_since": 990.0}, {"leaving": True}])
def test_nobody_waits_for_pods_on_their_way_out(service, leaving):
    adapted = service(CLAIM, OTHER)
    new, old = adapters.list_id(adapted, CLUSTER), adapters.list_id(service(CLAIM), CLUSTER)
    has = AdapterState(new, frozenset({"sql", "law"}))
    pods = [_worker(adapted, "prefill", has), _worker(adapted, "decode", has), _gateway(adapters=new)]
    late = _worker(adapted, "decode", AdapterState(old)), _gateway(adapters=old)
    going = [dataclasses.replace(each, name=f"{each.name}-late", uid=f"{each.uid}-late", **leaving) for each in late]
    condition, _ = _condition(adapted, *pods, *going)
    assert (condition["status"], condition["reason"]) == ("True", conditions.ALL_READY)


def test_the_list_is_applied_and_goes_when_no_adapter_is_left(service):
    adapted = service(CLAIM)
    _, made = _condition(adapted)
    (item,) = [action.item for action in actions(made, Apply) if action.item["kind"] == "ConfigMap"]
    assert item["metadata"]["name"] == "demo-adapters"
    live = {**item, "metadata": {**item["metadata"], "uid": "list"}}
    _, made = _condition(service(), objects=(live,))
    assert [action.ref.name for action in actions(made, Delete)] == ["demo-adapters"]
