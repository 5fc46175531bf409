"""Which resources are GPUs is said to the operator: slices of one, or those of another maker, count as well."""

import dataclasses

import pytest

from legato_operator.api import parsing
from legato_operator.manifests import placement, worker
from legato_operator.planning import limits

SLICE = "nvidia.com/mig-3g.71gb"
PLACEMENT = placement.kubernetes("engine:1", "gateway:1", gpu_resources=("nvidia.com/gpu", SLICE))


def _spec(build, resource):
    pool = {"resources": {"requests": {resource: 1}}}
    return parsing.read_service(build(prefill=pool, decode=pool, scaling={"gpuBudget": 3}))


@pytest.mark.parametrize(("resource", "decode"), [("nvidia.com/gpu", 2), (SLICE, 2), ("example.com/nic", 4)])
def test_budget_counts_them(build, resource, decode):
    desired = {"prefill": 1, "decode": 4}
    targets = limits.targets(_spec(build, resource).spec, desired, PLACEMENT.gpu_resources)
    assert targets["decode"].replicas == decode


@pytest.mark.parametrize(("resource", "device"), [("nvidia.com/gpu", True), (SLICE, True), ("example.com/nic", False)])
def test_worker_that_has_one_computes_on_it(build, resource, device):
    (container,) = worker.template(_spec(build, resource), "decode", PLACEMENT)["spec"]["containers"]
    assert ("--device" in container["args"]) is device


def test_others_are_none_unless_that_is_said(build):
    usual = dataclasses.replace(PLACEMENT, gpu_resources=placement.kubernetes("e", "g").gpu_resources)
    (container,) = worker.template(_spec(build, SLICE), "decode", usual)["spec"]["containers"]
    assert "--device" not in container["args"]
