"""Mixtures of experts by Triton's kernels. Grids depend only on the number of tokens, and the host waits for nothing,
so a step with experts can be replayed as a CUDA graph.
"""

from dataclasses import dataclass

import torch

from legato_engine.backends import projections
from legato_engine.backends.cuda import expert_weights
from legato_engine.backends.cuda.expert_weights import Names
from legato_engine.backends.cuda.layers import CudaActivation, CudaLinear
from legato_engine.backends.cuda.linear import ProductMemory
from legato_engine.backends.cuda.step import CudaStep
from legato_engine.backends.cuda.workspace import Buffer, Workspace
from legato_engine.kernels.gpu.configurations import Configuration, choose
from legato_engine.kernels.gpu.experts.arrange import FIELDS, MOST_SPANS, TOKENS, PairBlocks, most_blocks
from legato_engine.kernels.gpu.experts.combine import combine
from legato_engine.kernels.gpu.experts.multiply import ExpertProduct, multiply, parts_needed, product_splits
from legato_engine.kernels.gpu.experts.route import (
    FEW,
    MOST_SPLITS,
    ExpertChoice,
    PresentTokens,
    RouterColumns,
    route,
    router_splits,
)
from legato_engine.kernels.routing import Gating
from legato_engine.layers.experts import ExpertsShape
from legato_engine.weights.checkpoint import Checkpoint

_ROWS = (16, 32, 64, 128)  # of a block of pairs


class ExpertMemory:
    """Memory and configurations for mixtures of one shape, shared by all layers."""

    def __init__(self, shape: ExpertsShape, products: ProductMemory, workspace: Workspace) -> None:
        routing, active, device = shape.routing, shape.routing.active, products.device
        self.device = device
        self._shape = shape
        self._columns = routing.count + (shape.shared is not None and shape.shared.weight is not None)
        self._dtype = products.dtype
        self._scores = workspace.buffer("router", MOST_SPLITS * self._columns, torch.float32)
        self._numbers = workspace.buffer("numbers of experts", active, torch.int32)
        self._weights = workspace.buffer("weights of experts", active, torch.float32)
        self._shared = workspace.buffer("weight of the shared expert", 1, torch.float32)
        self._pairs = workspace.buffer("pairs of experts", active, torch.int32)
        self._blocks = workspace.buffer("blocks of pairs", FIELDS * active, torch.int32)
        self._inner = workspace.buffer("activations of experts", active * shape.inner, products.dtype)
        self._results = workspace.buffer("results of experts", active * shape.hidden, products.dtype)
        width = 1 << (routing.count - 1).bit_length()
        self._counts = torch.zeros(MOST_SPANS, width, dtype=torch.int32, device=device.place)
        self._few = {bits: self._choose(_ROWS[0], bits) for bits in (4, 8, 16, 32)}
        sums = max(parts_needed(device.processors, config) for config in self._few.values())
        self._sums = torch.empty(sums, device=device.place)
        self.combining = choose("combine_experts", {}, device.chip)

    def _choose(self, rows: int, bits: int) -> Configuration:
        return choose("multiply_experts", {"rows": rows, "bits": bits}, self.device.chip)

    def scoring(self, tokens: int) -> Configuration:
        """The configuration of the router's product."""
        return choose("score_experts", {"rows": 16 if tokens <= FEW else 64}, self.device.chip)

    def multiplying(self, tokens: int, bits: int) -> Configuration:
        """The configuration of products with weights of these bits. A block has as many rows as experts have tokens on
        average, if the chip has a tile of that size."""
        routing = self._shape.routing
        expected = _ROWS[0] if tokens <= TOKENS else tokens * routing.active / routing.count
        rows = next((rows for rows in _ROWS if rows >= expected), _ROWS[-1])
        return self._few[bits] if rows == _ROWS[0] else self._choose(rows, bits)

    @property
    def step_sizes(self) -> tuple[int, ...]:
        """Numbers of tokens, multiples of 16, whose steps use other kernels than smaller ones."""
        routing = self._shape.routing
        fuller = [rows * routing.count // routing.active // 16 * 16 + 16 for rows in _ROWS[:-1]]
        return tuple(sorted({2 * TOKENS, FEW + 16, *(size for size in fuller if size > TOKENS)}))

    def scores(self, tokens: int) -> torch.Tensor:
        """float32 [splits, tokens, columns]."""
        count = router_splits(self._shape.hidden, tokens)
        flat = self._scores.take(tokens).flatten()
        return flat[: count * tokens * self._columns].view(count, tokens, self._columns)

    def choice(self, tokens: int) -> ExpertChoice:
        shared = self._shared.take(tokens).flatten() if self._columns > self._shape.routing.count else None
        return ExpertChoice(self._numbers.take(tokens), self._weights.take(tokens), shared)

    def blocks(self, tokens: int, rows: int) -> PairBlocks:
        routing = self._shape.routing
        most = most_blocks(tokens, routing.active, routing.count, rows)
        table = self._blocks.take(tokens).flatten()[: most * FIELDS].view(most, FIELDS)
        return PairBlocks(self._pairs.take(tokens).flatten(), table, self._counts, rows)

    def inner(self, tokens: int) -> torch.Tensor:
        """[1, pairs, inner]."""
        return self._inner.take(tokens).view(1, -1, self._shape.inner)

    def results(self, tokens: int, splits: int) -> torch.Tensor:
        """[splits, pairs, hidden], in float32 if there are several."""
        pairs, hidden = tokens * self._shape.routing.active, self._shape.hidden
        if splits == 1:
            return self._results.take(tokens).view(1, pairs, hidden)
        return self._sums[: splits * pairs * hidden].view(splits, pairs, hidden)


@dataclass(frozen=True, slots=True)
class SharedMlp:
    """The shared expert."""

    gate_up: CudaLinear
    activation: CudaActivation
    down: CudaLinear

    def __call__(self, step: CudaStep, x: torch.Tensor) -> torch.Tensor:
        return self.down(step, self.activation(step, self.gate_up(step, x)))


@dataclass(frozen=True, slots=True)
class CudaExperts:
    router: RouterColumns
    gate_up: ExpertProduct
    down: ExpertProduct
    shared: SharedMlp | None
    memory: ExpertMemory
    out: Buffer

    def __call__(self, step: CudaStep, x: torch.Tensor) -> torch.Tensor:
        tokens, memory = len(x), self.memory
        present = PresentTokens(step.starts, len(step.starts) - 1)
        first, second = (memory.multiplying(tokens, each.weights.bits) for each in (self.gate_up, self.down))
        choice, blocks = memory.choice(tokens), memory.blocks(tokens, first.tiles["TILE_M"])
        route(x, self.router, present, memory.scores(tokens), choice, blocks, memory.scoring(tokens))
        inner = memory.inner(tokens)
        multiply(x, self.gate_up, blocks, inner, first)
        count = 1
        if tokens <= TOKENS:
            count = product_splits(self.down.weights, len(blocks.table), memory.device.processors, second)
        results = memory.results(tokens, count)
        multiply(inner[0], self.down, blocks, results, second)
        added = None if self.shared is None else self.shared(step, x)
        out = self.out.take(tokens)
        combine(results, choice, added, present, out, memory.combining)
        return out

    @property
    def nbytes(self) -> int:
        return self.router.nbytes + self.gate_up.weights.nbytes + self.down.weights.nbytes


class Mixtures:
    """Makes mixtures of experts, which share memory if they have one shape."""

    def __init__(self, checkpoint: Checkpoint, products: ProductMemory, workspace: Workspace) -> None:
        self._checkpoint = checkpoint
        self._products = products
        self._workspace = workspace
        self._memories: dict[tuple[object, ...], ExpertMemory] = {}

    @property
    def step_sizes(self) -> tuple[int, ...]:
        """Numbers of tokens whose steps use other kernels than smaller ones."""
        return tuple(sorted({size for memory in self._memories.values() for size in memory.step_sizes}))

    def make(self, shape: ExpertsShape, shared: SharedMlp | None) -> CudaExperts:
        """The mixture of `shape`, with its shared expert. Raises UnusableFormat."""
        numbers, active = range(shape.routing.count), shape.routing.active
        return CudaExperts(
            self._router(shape),
            self._product(shape, [shape.gate_up(number) for number in numbers], shape.gating, active),
            self._product(shape, [(shape.down(number),) for number in numbers], None, 1),
            shared,
            self._memory(shape),
            self._workspace.buffer("experts", shape.hidden, self._products.dtype),
        )

    def _memory(self, shape: ExpertsShape) -> ExpertMemory:
        key = shape.hidden, shape.inner, shape.routing, shape.shared is not None and shape.shared.weight is not None
        if key not in self._memories:
            self._memories[key] = ExpertMemory(shape, self._products, self._workspace)
        return self._memories[key]

    def _product(self, shape: ExpertsShape, names: Names, gating: Gating | None, sources: int) -> ExpertProduct:
        weights = expert_weights.load(self._checkpoint, names, self._products)
        biases = expert_weights.biases(self._checkpoint, names, self._products) if shape.biases else None
        return ExpertProduct(weights, biases, gating, sources)

    def _router(self, shape: ExpertsShape) -> RouterColumns:
        """The router, in the activations' dtype if that represents it exactly: products are exact in float32 then."""
        router = projections.router(self._checkpoint, shape, self._products.device.place)
        weight = router.weight if router.shared is None else torch.cat((router.weight, router.shared))
        narrow = weight.to(self._products.dtype)
        exact = torch.equal(narrow.float(), weight)
        return RouterColumns(narrow if exact else weight, router.bias, router.correction, shape.routing)
