"""Pods of all the golden manifests are let into a namespace for restricted ones only, by a real API server."""

import golden
import pytest
import yaml

NAMESPACE = "restricted"
LEVEL = "pod-security.kubernetes.io/enforce"
# What a manifest adds itself: pinned memory for RDMA.
ADDED = {"gpu-rdma": "unrestricted capabilities"}


@pytest.fixture(scope="module")
def restricted(api_server):
    item = {"metadata": {"name": NAMESPACE, "labels": {LEVEL: "restricted"}}}
    status, answer = api_server.call("POST", "/api/v1/namespaces", item)
    assert status == 201, answer
    priority = {"metadata": {"name": "serving"}, "value": 1}  # which a manifest names
    status, answer = api_server.call("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", priority)
    assert status == 201, answer
    return api_server


def _pods(case):
    """The worker pods of a case, and one of its gateway's."""
    for item in yaml.safe_load_all((golden.FOLDER / case / "objects.yaml").read_text()):
        if item["kind"] == "Pod":
            yield item["metadata"]["name"], item["spec"]
        if item["kind"] == "Deployment":
            yield item["metadata"]["name"], item["spec"]["template"]["spec"]


def _made(api, name, spec):
    """What the server says to such a pod, without keeping it."""
    pod = {"metadata": {"name": name}, "spec": spec}
    return api.call("POST", f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All", pod)


@pytest.mark.parametrize("case", [case for case in golden.CASES if [*_pods(case)]])
def test_pods_are_restricted(restricted, case):
    for name, spec in _pods(case):
        status, answer = _made(restricted, name, spec)
        if case in ADDED and "gateway" not in name:
            assert (status, ADDED[case] in answer["message"]) == (403, True), answer
            continue
        assert status == 201, answer


def test_others_are_refused(restricted):
    """The server looks at all."""
    name, spec = next(_pods("quickstart"))
    status, answer = _made(restricted, name, {**spec, "securityContext": {}})
    assert status == 403
    assert "violates PodSecurity" in answer["message"]
