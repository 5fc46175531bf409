"""`transfer.rdma` gives the workers of both pools, and nobody else, what RDMA needs."""

import pytest

from legato_operator.api import parsing
from legato_operator.manifests import gateway, placement, worker
from legato_operator.planning import checks

PLACEMENT = placement.kubernetes("engine:1", "gateway:1")
HUB = {"source": {"huggingFace": {"repo": "a/b", "revision": "0" * 40}}}


def _service(build, rdma=None, **more):
    given = {} if rdma is None else {"rdma": {"resource": "rdma/ib"} | rdma}
    return parsing.read_service(build(transfer={"transport": "RDMA"} | given, **more))


def _pod(service, pool="decode"):
    return worker.template(service, pool, PLACEMENT)["spec"]


def _worker(service, pool="decode"):
    (container,) = _pod(service, pool)["containers"]
    return container


@pytest.mark.parametrize("pool", ["prefill", "decode"])
def test_devices_and_pages_are_requested_with_equal_limits_beside_what_the_pool_requests(build, pool):
    rdma = {"count": 2, "hugePages": {"pageSize": "1Gi", "memory": "2048Mi"}}
    resources = {pool: {"resources": {"requests": {"cpu": 2}, "limits": {"memory": "4Gi"}}}}
    assert _worker(_service(build, rdma, **resources), pool)["resources"] == {
        "requests": {"cpu": "2", "rdma/ib": "2", "hugepages-1Gi": "2Gi"},
        "limits": {"memory": "4Gi", "rdma/ib": "2", "hugepages-1Gi": "2Gi"},
    }


def test_locked_memory_takes_root_with_one_capability_or_nothing(build):
    """An added capability has no effect for another user than root."""
    plain = _worker(_service(build))["securityContext"]
    assert _worker(_service(build, {"memoryLock": "NodeLimit"}))["securityContext"] == plain
    locking = _worker(_service(build, {}))["securityContext"]
    assert locking == plain | {
        "runAsNonRoot": False,
        "runAsUser": 0,
        "capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]},
    }
    assert locking["allowPrivilegeEscalation"] is False
    assert locking["readOnlyRootFilesystem"] is True


def test_what_downloads_a_model_and_gateways_get_nothing_of_it(build):
    """Init containers keep the pod's user, to whom the download belongs."""
    rdma = {"hugePages": {"memory": "2Mi"}, "sharedMemory": "1Gi"}
    requests = {"decode": {"resources": {"requests": {"cpu": 1}}}}
    without, service = (_service(build, given, model=HUB, **requests) for given in (None, rdma))
    assert _pod(service)["initContainers"] == _pod(without)["initContainers"]
    assert _pod(service)["securityContext"] == _pod(without)["securityContext"]
    assert gateway.template(service, PLACEMENT) == gateway.template(without, PLACEMENT)


def test_shared_memory_is_a_volume_of_that_size(build):
    pod = _pod(_service(build, {"sharedMemory": "1.5Gi"}))
    (volume,) = [volume for volume in pod["volumes"] if volume["name"] == "shared-memory"]
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": "1536Mi"}
    assert {"name": "shared-memory", "mountPath": "/dev/shm"} in pod["containers"][0]["volumeMounts"]
    assert all(volume["name"] != "shared-memory" for volume in _pod(_service(build, {}))["volumes"])


def test_a_template_has_the_last_word(build):
    own = {"spec": {"containers": [{"name": "worker", "securityContext": {"runAsUser": 1000, "runAsNonRoot": True}}]}}
    context = _worker(_service(build, {}, decode={"template": own}))["securityContext"]
    assert (context["runAsUser"], context["runAsNonRoot"]) == (1000, True)


@pytest.mark.parametrize(
    ("resources", "more", "told"),
    [
        ({}, {}, ["spec.decode.resources", "spec.prefill.resources"]),
        ({"requests": {"cpu": 1}}, {}, []),
        ({"limits": {"memory": "1Gi"}}, {}, []),
        ({"requests": {"rdma/other": 1}}, {}, ["spec.decode.resources", "spec.prefill.resources"]),
        ({}, {"scaling": {"prefill": {"max": 0}}}, ["spec.decode.resources"]),
    ],
)
def test_huge_pages_need_cpu_or_memory_beside_them(build, resources, more, told):
    """Otherwise Kubernetes refuses the pods."""
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
