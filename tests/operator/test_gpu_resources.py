"""The operator's settings name the resources that are GPUs: slices, or GPUs of another maker, count as well."""

import dataclasses

import pytest

from legato_engine.backends.cuda import support
from legato_operator.api import parsing
from legato_operator.manifests import placement
from legato_operator.manifests.pods import worker
from legato_operator.planning import checks
from legato_operator.planning.pools import limits

SLICE = "nvidia.com/mig-3g.71gb"
KUBERNETES = placement.kubernetes(placement.Containers("e", "g"))
PLACEMENT = dataclasses.replace(KUBERNETES, gpu_resources=("nvidia.com/gpu", SLICE))


@pytest.mark.parametrize(
    ("names", "resource", "is_gpu"),
    [
        (PLACEMENT.gpu_resources, "nvidia.com/gpu", True),
        (PLACEMENT.gpu_resources, SLICE, True),
        (PLACEMENT.gpu_resources, "example.com/nic", False),
        (KUBERNETES.gpu_resources, SLICE, False),
    ],
)
def test_budget_counts_them_and_a_worker_that_has_one_computes_on_it(build, names, resource, is_gpu):
    pool = {"resources": {"requests": {resource: 1}}}
    service = parsing.read_service(build(prefill=pool, decode=pool, scaling={"gpuBudget": 3}))
    targets = limits.targets(service.spec, {"prefill": 1, "decode": 4}, names)
    assert targets["decode"].replicas == (2 if is_gpu else 4)
    where = dataclasses.replace(PLACEMENT, gpu_resources=names)
    (container,) = worker.template(service, "decode", where)["spec"]["containers"]
    assert ("--device" in container["args"]) is is_gpu


def _refused(build, prefill, decode, where=PLACEMENT, decode_ranks=1, **more):
    pools = {
        role: {"resources": {"requests": dict.fromkeys(names, 1)}, "parallelism": {"tensor": ranks}}
        for role, names, ranks in (("prefill", prefill, 1), ("decode", decode, decode_ranks))
    }
    spec = parsing.read_service(build(**pools, **more)).spec
    refusal = checks.refusal(spec, 1, where)
    return refusal.message if refusal else ""


FLOAT16 = {"engine": {"dtype": "Float16"}}
PACED = {"engine": {"runner": "Paced", "profile": "h200-llama-3.1-8b-bf16"}}
UNIFIED = {"scaling": {"prefill": {"max": 0}}}
RDMA = {"transfer": {"transport": "RDMA", "rdma": {"resource": SLICE}}}

TWO_RANKS = {"decode_ranks": 2}
TOO_FEW = "spec.decode.resources: request 1 GPUs, but parallelism.tensor is 2: each rank computes on one GPU"

ACCELERATORS = (
    *("amd.com/gpu", "gpu.intel.com/i915", "habana.ai/gaudi", "google.com/tpu", "huawei.com/Ascend910"),
    *("aws.amazon.com/neuroncore", "nvidia.com/gpu.shared", "nvidia.com/gpus", "nvidia.com/mig-1g.10gb"),
)


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
        ([SLICE], [SLICE, "nvidia.com/gpu"], {}, "spec.decode.resources: request 2 GPUs, but parallelism"),
        ([SLICE], [SLICE, "nvidia.com/gpu"], TWO_RANKS, ""),
        ([SLICE], [SLICE], TWO_RANKS, TOO_FEW),
        ([SLICE], [SLICE, "nvidia.com/gpu"], PACED, ""),
        *(([], [name], UNIFIED, f"spec.decode.resources: {name} is not one of") for name in ACCELERATORS),
        *(
            ([], [name], UNIFIED, "")
            for name in ("intel.com/qat", "nvidia.com/hostdev", "gpu.example.com/nic", "example.com/input")
        ),
        ([SLICE], [SLICE, "nvidia.com/gpumem", "amd.com/gpu"], {}, ""),
        ([], ["amd.com/gpu"], UNIFIED | PACED, ""),
        ([], [], RDMA, "spec.transfer.rdma.resource: must be devices for RDMA, not GPUs"),
    ],
)
def test_pools_compute_on_devices_that_fit_one_another(build, prefill, decode, more, told):
    refused = _refused(build, prefill, decode, **more)
    assert refused.startswith(told)
    assert bool(refused) is bool(told)


def test_processes_of_one_machine_are_not_asked_for_gpus(build):
    here = placement.local(("legato",))
    assert _refused(build, ["nvidia.com/gpu"], [], here) == ""
    assert _refused(build, [], [], here, **FLOAT16) == "spec.engine.dtype: Float16 needs GPUs; this machine has none"
    assert _refused(build, [], [], here, **PACED) == ""
