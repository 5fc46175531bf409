"""Which resources are GPUs is said to the operator: slices of one, or those of another maker, count as well."""

import dataclasses

import pytest

from legato_engine.backends.cuda import support
from legato_operator.api import parsing
from legato_operator.manifests import placement, worker
from legato_operator.planning import checks, limits

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


def _refused(build, prefill, decode, where=PLACEMENT, **more):
    pools = {
        role: {"resources": {"requests": dict.fromkeys(names, 1)}}
        for role, names in (("prefill", prefill), ("decode", decode))
    }
    spec = parsing.read_service(build(**pools, **more)).spec
    refusal = checks.refusal(spec, 1, where)
    return refusal.message if refusal else ""


FLOAT16 = {"engine": {"dtype": "Float16"}}
PACED = {"engine": {"runner": "Paced", "profile": "h200-llama-3.1-8b-bf16"}}
UNIFIED = {"scaling": {"prefill": {"max": 0}}}
RDMA = {"transfer": {"transport": "RDMA", "rdma": {"resource": SLICE}}}


@pytest.mark.parametrize(
    ("prefill", "decode", "more", "told"),
    [
        (["nvidia.com/gpu"], [SLICE], {}, ""),
        (["nvidia.com/gpu"], [], {}, "spec.decode.resources: must request GPUs (nvidia.com/gpu, " + SLICE),
        ([], [SLICE], {}, "spec.prefill.resources: must request GPUs"),
        ([], [SLICE], UNIFIED, ""),
        ([], [SLICE], PACED, ""),
        ([], [], FLOAT16, "spec.engine.dtype: Float16 needs workers that request GPUs"),
        ([SLICE], [SLICE], FLOAT16, ""),
        *(([SLICE], [SLICE], {"engine": {"blockSize": size}}, "") for size in support.BLOCK_SIZES),
        *(
            ([SLICE], [SLICE], {"engine": {"blockSize": size}}, "spec.engine.blockSize: must be one of 16, 32, 64")
            for size in (8, 128)
        ),
        ([], [], {"engine": {"blockSize": 128}}, ""),
        ([], [], RDMA, "spec.transfer.rdma.resource: must be devices for RDMA, and not GPUs"),
    ],
)
def test_pools_compute_on_devices_that_fit_one_another(build, prefill, decode, more, told):
    refused = _refused(build, prefill, decode, **more)
    assert refused.startswith(told)
    assert bool(refused) is bool(told)


def test_processes_of_one_machine_are_not_asked_for_gpus(build):
    assert _refused(build, ["nvidia.com/gpu"], [], placement.local(("legato",))) == ""
