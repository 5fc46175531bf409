"""Random steps on a GPU that is not here: what each would launch, and what it allocates; called by `uninterpreted`."""

from collections.abc import Callable
from typing import Any

import torch
import window_tables
from budget import times
from compiled_kernels import CHUNK, RandomSteps
from interpreted_models import load, random_weights
from recorded_graphs import Operators
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from legato_engine.backends.cuda.device import Interpreted
from legato_engine.kernels.gpu.ahead import Launch, launches
from legato_engine.layers.low_rank import LowRankAdapter, Pair
from legato_engine.models.config import ModelConfig
from legato_engine.runner.runner import Runner
from legato_engine.scheduler.batch import Draw, Row
from legato_engine.weights.expected import projections
from legato_protocol.sampling.parameters import SamplingParams

GREEDY = SamplingParams(max_tokens=1, seed=0, temperature=0.0)


class Allocations(TorchDispatchMode):
    """Operators whose result is in memory that none of their arguments is in."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = operator(*args, **(kwargs or {}))
        known = {_memory(value) for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)}
        if any(_memory(value) not in known for value in tree_leaves(result) if isinstance(value, torch.Tensor)):
            self.found.add(str(operator))
        return result


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def made_adapters(runner: Runner, config: ModelConfig) -> list[LowRankAdapter]:
    """Adapters of different ranks and projections."""
    found = []
    for rank, target in ((1, "q_proj"), (17, "_proj"), (64, "o_proj")):
        sizes = {name: size for name, size in projections(config).items() if name.endswith(target)}
        found.append(
            runner.adapter({n: Pair(torch.zeros(rank, i), torch.zeros(o, rank)) for n, (o, i) in sizes.items()})
        )
    return found


class Repeated(Interpreted):
    """A GPU whose graphs launch anew what was captured, to compare both. `launched` is left with launches outside of
    graphs; operators within are not computed."""

    def __init__(self, launched: list[Launch]) -> None:
        super().__init__(132, "sm_90")
        self.sizes = self.differing = self.updates = 0
        self._launched = launched

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        nodes = self._taken(work)
        self.sizes += 1
        self.updates = max(self.updates, sum(each.kernel == "_expand_ranks" for each in nodes))

        def again() -> None:
            self.differing += self._taken(work) != nodes

        return again

    def _taken(self, work: Callable[[], None]) -> list[Launch]:
        before = len(self._launched)
        with Operators([], set()):
            work()
        taken = self._launched[before:]
        del self._launched[before:]
        return taken


def recorded(name: str, steps: int) -> dict[str, Any]:
    allocations = Allocations()
    with torch.inference_mode(), launches("sm_90") as launched:
        device, weights = Repeated(launched), random_weights(name)
        runner = load(weights, dtype="float16", gpu=device, chunk_tokens=CHUNK)
        windows = window_tables.of_row(runner, range(3))
        runner.logits((Row([7] * 48, 0, range(3), (Draw(0, 48, GREEDY, [0], 1),), windows=windows),))
        prompt = [each.kernel for each in launched]
        adapters = made_adapters(runner, weights.config)
        runner.warm_up_adapter(adapters[0])
        runner.capture()
        launched.clear()
        made = RandomSteps(runner, weights.config.vocab_size, 8, adapters)
        with allocations:
            for _ in range(steps):
                runner.logits(made.rows())
                runner.capture_missing()
    return {
        "prompt": prompt,
        "sizes": device.sizes,
        "updates": device.updates,
        "differing": device.differing,
        "outside": sorted({each.kernel for each in launched}),
        "allocating": sorted(allocations.found),
    }


def recorded_by_model(steps: dict[str, int]) -> dict[str, dict[str, Any]]:
    """By model, for a number of random steps: the kernels of a prompt, the number of captured sizes, of updates by
    adapters in one, and of steps that launched something else than was captured, kernels launched outside of graphs,
    and operators that returned new memory; in one process, as starting one takes seconds.
    """
    return {name: recorded(name, times(count)) for name, count in steps.items()}
