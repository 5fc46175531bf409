"""A pool's degree of tensor parallelism changes: its workers are replaced by ones with more GPUs, within the budget."""

from collections.abc import Callable
from typing import Any

import nodes
from service import Service

BUDGET = 5  # one prefill worker, one decode worker with two GPUs, and as many for a surge


def test_a_change_of_the_degree_is_a_rollout_within_the_budget(
    serve: Callable[..., Service], watch: Callable[[Service], Any]
) -> None:
    service = serve("degree", gpuBudget=BUDGET)
    service.until_settled()
    sharded = {"parallelism": {"tensor": 2}, "resources": {"requests": {nodes.GPU: 2}}}
    with watch(service) as samples:
        service.patch({"decode": sharded})
        samples.until(
            lambda sample: sample.settled and [w.gpus for w in sample.of("decode")] == [2], "it has two ranks"
        )
    assert {worker.gpus for sample in samples.taken for worker in sample.of("prefill")} == {1}
    (args,) = [pod["spec"]["containers"][0]["args"] for pod in service.found("decode")]
    assert args[args.index("--tensor") + 1] == "2"
    assert service.object()["status"]["pools"]["decode"]["ranks"] == 2
