"""`transfer.rdma` gives workers the rights that RDMA needs; its devices, pages and volumes are in golden/gpu-rdma."""

import pytest

from legato_operator.api import parsing
from legato_operator.manifests import placement
from legato_operator.manifests.pods import worker
from legato_operator.planning import checks

PLACEMENT = placement.kubernetes(placement.Containers("engine:1", "gateway:1"))


def _service(build, rdma=None, **more):
    given = {} if rdma is None else {"rdma": {"resource": "rdma/ib"} | rdma}
    return parsing.read_service(build(transfer={"transport": "RDMA"} | given, **more))


def _security(service):
    (container,) = worker.template(service, "decode", PLACEMENT)["spec"]["containers"]
    return container["securityContext"]


def test_locked_memory_takes_root_with_one_capability_or_nothing(build):
    """An added capability has no effect for another user than root."""
    plain = _security(_service(build))
    assert _security(_service(build, {"memoryLock": "NodeLimit"})) == plain
    as_root = {"runAsNonRoot": False, "runAsUser": 0, "runAsGroup": 65532}
    assert _security(_service(build, {})) == plain | as_root | {"capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]}}


def test_a_template_has_the_last_word(build):
    own = {"spec": {"containers": [{"name": "worker", "securityContext": {"runAsUser": 1000, "runAsNonRoot": True}}]}}
    context = _security(_service(build, {}, decode={"template": own}))
    assert (context["runAsUser"], context["runAsNonRoot"]) == (1000, True)


@pytest.mark.parametrize(
    ("resources", "more", "told"),
    [
        ({}, {}, ["spec.prefill.resources", "spec.decode.resources"]),
        ({"requests": {"cpu": 1}}, {}, []),
        ({"limits": {"memory": "1Gi"}}, {}, []),
        ({"requests": {"rdma/other": 1}}, {}, ["spec.prefill.resources", "spec.decode.resources"]),
        ({}, {"scaling": {"prefill": {"max": 0}}}, ["spec.decode.resources"]),
    ],
)
def test_huge_pages_need_cpu_or_memory_beside_them(build, resources, more, told):
    pools = {role: {"resources": resources} for role in ("prefill", "decode")}
    spec = _service(build, {"hugePages": {"memory": "2Mi"}}, **pools, **more).spec
    assert [path for path, _ in checks.unavailable(spec, in_containers=True)] == told
    assert checks.unavailable(_service(build, {}, **pools, **more).spec, in_containers=True) == []


LEVELS = ["restricted", "baseline", "privileged"]


@pytest.mark.parametrize(("lock", "taken"), [("IPCLock", ["privileged"]), ("NodeLimit", LEVELS)])
def test_namespaces_take_the_pods_from_the_level_on_that_the_docs_say(api_server, build, lock, taken):
    """A real API server's admission; huge pages and shared memory change nothing."""
    rdma = {"memoryLock": lock, "hugePages": {"memory": "4Mi"}, "sharedMemory": "1Gi"}
    service = _service(build, rdma, decode={"resources": {"requests": {"cpu": 1}}})
    pod = worker.pod(service, "demo-decode-0", worker.template(service, "decode", PLACEMENT))
    assert [level for level in LEVELS if _is_taken(api_server, level, pod)] == taken


def _is_taken(api_server, level, pod):
    name = f"rdma-{level}"
    metadata = {"name": name, "labels": {"pod-security.kubernetes.io/enforce": level}}
    status, answer = api_server.call("POST", "/api/v1/namespaces", {"metadata": metadata})
    assert status in (201, 409), answer
    account = {"metadata": {"name": pod["spec"]["serviceAccountName"]}}
    api_server.call("POST", f"/api/v1/namespaces/{name}/serviceaccounts", account)
    moved = {**pod, "metadata": {**pod["metadata"], "namespace": name}}
    status, answer = api_server.call("POST", f"/api/v1/namespaces/{name}/pods?dryRun=All&fieldValidation=Strict", moved)
    assert status in (201, 403), answer
    assert status == 201 or "IPC_LOCK" in answer["message"]
    return status == 201
