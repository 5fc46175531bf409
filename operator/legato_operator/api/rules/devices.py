"""Rules about CPUs and GPUs, in CEL.

The API server only knows nvidia.com/gpu, so it refuses only specs that are wrong whatever other names of GPUs the
operator is given. `planning.checks.contradictions` uses all names.
"""

from legato_operator.api import roles
from legato_operator.api.pool_sizes import other
from legato_operator.api.quantities import GPU
from legato_operator.api.rules.unavailable import pool_exists

BLOCK_SIZES = (16, 32, 64)  # that the engine's GPU kernels are compiled for
NO_HAND_OFF = "CPUs and GPUs cannot hand KV over to one another"
NO_FLOAT32 = "Float32 is not computed on GPUs; use Auto, BFloat16 or Float16"
NO_KV_IN_FLOAT32 = "Float32 is not computed on GPUs; use Auto or BFloat16"
NOT_FOR_RDMA = "must be devices for RDMA, not GPUs"


def _given(role: str) -> list[str]:
    return [f"self.{role}.resources.{kind}" for kind in ("requests", "limits")]


def _requests_gpus(role: str, amount: str = "> 0.0") -> str:
    """Returns CEL that is true if one worker of this role requests this amount of GPUs."""
    counted = [
        f"(has({given}) && '{GPU}' in {given} && quantity(string({given}['{GPU}'])).asApproximateFloat() {amount})"
        for given in _given(role)
    ]
    return f"({pool_exists(role)} && ({' || '.join(counted)}))"


def _requests_other_gpus_than_ranks(role: str) -> str:
    """Returns CEL that is true if a worker requests more GPUs than ranks, or fewer and nothing else that may be one."""
    ranks = f"double(self.{role}.parallelism.tensor)"
    only = [f"(!has({each}) || !{each}.exists(name, name.contains('/') && name != '{GPU}'))" for each in _given(role)]
    fewer = f"{_requests_gpus(role)} && {_requests_gpus(role, f'< {ranks}')} && {' && '.join(only)}"
    return f"{_requests_gpus(role, f'> {ranks}')} || ({fewer})"


def _requests_no_device(role: str) -> str:
    bare = [f"(!has({given}) || !{given}.exists(name, name.contains('/')))" for given in _given(role)]
    return f"(!{pool_exists(role)} || ({' && '.join(bare)}))"


def _refused(field: str, broken: str, message: str) -> dict[str, str]:
    rule = f"self.engine.runner != 'Model' || !({broken})"
    return {"rule": rule, "message": message, "fieldPath": f".{field}"}


_ON_GPUS = f"({' || '.join(map(_requests_gpus, roles.BOTH))})"
_ON_CPUS = f"({' && '.join(map(_requests_no_device, roles.BOTH))})"

VALIDATIONS = {
    "spec": [
        *(
            _refused(
                f"{role}.resources",
                f"{pool_exists(role)} && {_requests_gpus(other(role))} && {_requests_no_device(role)}",
                f"must request GPUs ({GPU}), as {other(role)} does: {NO_HAND_OFF}",
            )
            for role in roles.BOTH
        ),
        *(
            _refused(
                f"{role}.resources",
                _requests_other_gpus_than_ranks(role),
                f"must request as many GPUs ({GPU}) as parallelism.tensor has ranks: each rank computes on one",
            )
            for role in roles.BOTH
        ),
        _refused(
            "engine.dtype",
            f"self.engine.dtype == 'Float16' && {_ON_CPUS}",
            f"Float16 needs workers that request GPUs ({GPU})",
        ),
        _refused("engine.dtype", f"self.engine.dtype == 'Float32' && {_ON_GPUS}", NO_FLOAT32),
        _refused(
            "engine.kvCacheDtype",
            f"self.engine.dtype == 'Auto' && self.engine.kvCacheDtype == 'Float32' && {_ON_GPUS}",
            NO_KV_IN_FLOAT32,
        ),
        _refused(
            "engine.blockSize",
            f"!(string(self.engine.blockSize) in {['Auto', *map(str, BLOCK_SIZES)]}) && {_ON_GPUS}",
            f"must be one of {', '.join(map(str, BLOCK_SIZES))} for workers that request GPUs ({GPU})",
        ),
    ],
    "spec.transfer.rdma": [{"rule": f"self.resource != '{GPU}'", "message": NOT_FOR_RDMA, "fieldPath": ".resource"}],
}
