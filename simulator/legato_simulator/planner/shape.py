"""A candidate of the search: pools with their sizes and degrees, the chunk and `slo.tpot`."""

import dataclasses
from dataclasses import dataclass

from legato_operator.policy import Bounds, PoolSpec, Spec, accelerators, quantity
from legato_simulator.engine.chunks import chunk_tokens


@dataclass(frozen=True, order=True)
class PoolLayout:
    """The degrees of the pools' workers. Without a prefill pool, decode workers are unified."""

    prefill: int  # ranks of one worker; 0: no prefill pool
    decode: int

    @property
    def unified(self) -> bool:
        return not self.prefill

    def __str__(self) -> str:
        if self.unified:
            return f"unified, tensor {self.decode}"
        return f"prefill + decode, tensor {self.prefill} + {self.decode}"


@dataclass(frozen=True, order=True)
class PoolShape:
    """The searched fields of a manifest. Pools have a fixed number of workers."""

    layout: PoolLayout
    prefill: int  # workers; 0 without a prefill pool
    decode: int
    chunk: int  # tokens
    tpot: float  # seconds: `slo.tpot`, by which workers limit their steps

    @property
    def gpus(self) -> int:
        """GPUs of all workers: one for each rank."""
        return self.prefill * self.layout.prefill + self.decode * self.layout.decode

    @property
    def workers(self) -> str:
        return f"{self.decode} unified" if self.layout.unified else f"{self.prefill} prefill + {self.decode} decode"

    def spec(self, written: Spec) -> Spec:
        """Returns the manifest with this shape. It may break rules, as `problems` finds."""
        pools = {
            "prefill": _pool(written.prefill if written.disaggregated else written.decode, self.layout.prefill),
            "decode": _pool(written.decode, self.layout.decode),
        }
        sizes = {"prefill": self.prefill, "decode": self.decode}
        scaling, budget = written.scaling, written.scaling.gpu_budget
        if self.layout.unified:
            pools["prefill"] = written.prefill
        if scaling.mode == "Fixed":
            pools = {pool: each.model_copy(update={"replicas": sizes[pool]}) for pool, each in pools.items()}
        else:
            bounds = {pool: Bounds(min=size, max=size) for pool, size in sizes.items()}
            scaling = scaling.model_copy(update=bounds)
        if budget is not None:
            scaling = scaling.model_copy(update={"gpu_budget": max(budget, self.gpus)})
        changed = {**pools, "scaling": scaling, "slo": written.slo.model_copy(update={"tpot": self.tpot})}
        if self.chunk != chunk_tokens(written):
            changed["engine"] = written.engine.model_copy(update={"chunk_tokens": self.chunk})
        return written.model_copy(update=changed)

    def with_workers(self, prefill: int, decode: int) -> "PoolShape":
        """Returns the shape with other sizes."""
        return dataclasses.replace(self, prefill=prefill, decode=decode)


def _pool(pool: PoolSpec, ranks: int) -> PoolSpec:
    """Returns the pool with workers of this degree, with as many accelerators if it requested one per rank."""
    if ranks == pool.parallelism.tensor:
        return pool
    each = pool.parallelism.tensor  # other amounts are, for example, of memory
    resources = pool.resources
    amounts = {
        kind: {**given, **{name: str(ranks) for name in accelerators(given) if quantity(given[name]) == each}}
        for kind, given in (("requests", resources.requests), ("limits", resources.limits))
    }
    return pool.model_copy(
        update={
            "parallelism": pool.parallelism.model_copy(update={"tensor": ranks}),
            "resources": resources.model_copy(update=amounts),
        }
    )
