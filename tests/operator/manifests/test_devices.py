"""A pod's devices are counted as the scheduler counts them."""

from legato_operator.manifests.pods import devices

GPU, NIC = "nvidia.com/gpu", "example.com/nic"


def _container(more=None, **resources):
    return {"resources": resources, **(more or {})}


def test_containers_hold_theirs_together_and_one_that_runs_before_them_holds_its_own():
    worker = _container(requests={"cpu": "1", GPU: "2"}, limits={GPU: 2, NIC: 1})
    spec = {"containers": [worker, _container(limits={GPU: 1})]}
    assert devices.requested(spec) == {GPU: 3, NIC: 1}
    spec["initContainers"] = [_container(requests={GPU: 4}), _container(requests={GPU: 1})]
    assert devices.requested(spec) == {GPU: 4, NIC: 1}


def test_sidecar_runs_beside_the_containers():
    sidecar = _container({"restartPolicy": "Always"}, requests={GPU: 1})
    assert devices.requested({"containers": [_container(requests={GPU: 1})], "initContainers": [sidecar]}) == {GPU: 2}
