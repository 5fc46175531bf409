"""Decoding steps of one padded size on a GPU that is not here: what each would launch, and what it allocates; called by
`uninterpreted`.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
import window_tables
from budget import times
from interpreted_models import load, random_weights
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from legato_engine.backends.cuda.device import Interpreted
from legato_engine.kernels.gpu.ahead import launches
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
    """Of different ranks and projections."""
    found = []
    for rank, target in ((1, "q_proj"), (17, "_proj"), (64, "o_proj")):
        sizes = {name: size for name, size in projections(config).items() if name.endswith(target)}
        found.append(
            runner.adapter({n: Pair(torch.zeros(rank, i), torch.zeros(o, rank)) for n, (o, i) in sizes.items()})
        )
    return found


def rows(
    runner: Runner, draw: random.Random, count: int, adapters: Sequence[LowRankAdapter | None] = (None,)
) -> tuple[Row, ...]:
    """So many sequences of random lengths, in random blocks: the first with the first adapter, others with any."""
    found = []
    for index in range(count):
        length = draw.randint(1, 250)
        blocks = draw.sample(range(200 // (1 + len(runner.layout.windows))), -(-length // 16))
        windows = window_tables.of_row(runner, blocks, length - 1)
        draws, adapter = (Draw(0, length, GREEDY, [0], 1),), draw.choice(adapters) if index else adapters[0]
        found.append(Row([draw.randint(0, 300)], length - 1, blocks, draws, adapter=adapter, windows=windows))
    return tuple(found)


def steps(runner: Runner, take: Callable[[], Any], adapters: Sequence[LowRankAdapter | None] = (None,)) -> list[Any]:
    """Steps of 5 to 8 rows, all of which are padded to 8."""
    draw, found = random.Random(1), []
    for _ in range(times(15)):
        runner.logits(rows(runner, draw, draw.randint(5, 8), adapters))
        found.append(take())
    return found


def told(name: str) -> dict[str, Any]:
    allocations = Allocations()
    with torch.inference_mode(), launches("sm_90") as launched:
        runner = load(random_weights(name), dtype="float16", gpu=Interpreted(132, "sm_90"))
        runner.logits(rows(runner, random.Random(0), 8))  # is captured
        launched.clear()

        def take() -> list[Any]:
            step = list(launched)
            launched.clear()
            return step

        with allocations:
            first, *others = steps(runner, take)
        windows = window_tables.of_row(runner, range(3))
        prompt = Row([7] * 48, 0, range(3), (Draw(0, 48, GREEDY, [0], 1),), windows=windows)
        runner.logits((prompt,))
        quantizing = sum(each.kernel == "_quantize_rows" for each in take())
        adapters = made_adapters(runner, runner._model.config)
        runner.logits(rows(runner, random.Random(0), 8, adapters))
        launched.clear()
        with allocations:
            adapted, *others_adapted = steps(runner, take, [*adapters[:1], None, *adapters[1:]])
    differing = sum(step != first for step in others) + sum(step != adapted for step in others_adapted)
    updates = Counter(each.kernel for each in adapted)["_expand_ranks"]
    allocating = sorted(allocations.found)
    return {
        "launches": len(first), "updates": updates, "differing": differing, "allocating": allocating,
        "quantizing": quantizing,
    }  # fmt: skip


def told_by_model(models: list[str]) -> dict[str, dict[str, Any]]:
    """The number of launches of a step, and of updates in one with adapters, the differences between steps, the
    operators that returned memory of their own, and the passes that only quantize a prompt's activations; in one
    process, as starting one takes seconds.
    """
    return {name: told(name) for name in models}
