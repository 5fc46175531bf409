"""Mixtures of experts by Triton's kernels. Grids depend only on the number of tokens, and the host waits for nothing,
so a step with experts can be replayed as a CUDA graph.
"""

from dataclasses import dataclass
from functools import cache

import torch

from legato_engine.backends import projections
from legato_engine.backends.cuda import expert_weights
from legato_engine.backends.cuda.expert_weights import Names
from legato_engine.backends.cuda.float8 import Float8Activations
from legato_engine.backends.cuda.layers import CudaActivation, CudaLinear
from legato_engine.backends.cuda.linear import ProductMemory
from legato_engine.backends.cuda.products import EXPERTS
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
from legato_engine.kernels.gpu.experts.weights import ExpertWeights
from legato_engine.kernels.gpu.float8 import Float8Rows
from legato_engine.kernels.gpu.linear.fp8 import quantize_rows
from legato_engine.kernels.routing import Gating
from legato_engine.layers.experts import ExpertsShape
from legato_engine.weights.checkpoint import Checkpoint

_ROWS = (16, 32, 64, 128)  # of a block of pairs
# Rows of a block that is never multiplied with activations in FP8.
_MOST_WIDE = next(product.most_rows for product in EXPERTS if product.fp8)


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
        few = [_multiplying(_ROWS[0], bits, False, device.chip) for bits in (4, 8, 16, 32)]
        sums = max(parts_needed(device.processors, config) for config in few)
        self._sums = torch.empty(sums, device=device.place)
        self._float8 = products.float8
        self._quantizing = choose("quantize_rows", {}, device.chip)
        self._workspace = workspace
        self.combining = choose("combine_experts", {}, device.chip)

    def scoring(self, tokens: int) -> Configuration:
        """The configuration of the router's product."""
        return _scoring(16 if tokens <= FEW else 64, self.device.chip)

    def rows(self, tokens: int) -> int:
        """The rows of a block: as many as experts have tokens on average."""
        routing = self._shape.routing
        expected = _ROWS[0] if tokens <= TOKENS else tokens * routing.active / routing.count
        return next((rows for rows in _ROWS if rows >= expected), _ROWS[-1])

    def multiplying(self, rows: int, weights: ExpertWeights) -> Configuration:
        """The configuration of a product with blocks of these rows."""
        return _multiplying(rows, weights.bits, _quantizes(rows, weights), self.device.chip)

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

    def given(self, x: torch.Tensor, rows: int, weights: ExpertWeights) -> torch.Tensor | Float8Rows:
        """The activations x as a product with blocks of these rows takes them; the norm before may have quantized
        them."""
        return self._given_to(weights).take(x) if _quantizes(rows, weights) else x

    def given_inner(self, inner: torch.Tensor, rows: int, weights: ExpertWeights) -> torch.Tensor | Float8Rows:
        """As `given`, for activations between the products, [pairs, inner]."""
        if not _quantizes(rows, weights):
            return inner
        codes, scales = (buffer.take(len(inner) // self._shape.routing.active) for buffer in self._rounded(weights))
        rounded = Float8Rows(codes.view(inner.shape), scales.view(-1, len(inner)), weights.group)
        quantize_rows(inner, rounded, self._quantizing)
        return rounded

    def prepare(self, gate_up: ExpertWeights, down: ExpertWeights) -> None:
        """Reserves memory for activations in FP8, if a product takes them."""
        if gate_up.float8:
            self._given_to(gate_up)
        if down.float8:
            self._rounded(down)

    def _given_to(self, weights: ExpertWeights) -> Float8Activations:
        return self._float8.activations(self._shape.hidden, weights.group, _MOST_WIDE)

    def _rounded(self, weights: ExpertWeights) -> tuple[Buffer, Buffer]:
        active, groups = self._shape.routing.active, -(-self._shape.inner // weights.group)
        codes = self._workspace.buffer("FP8 of experts", active * self._shape.inner, torch.float8_e4m3fn)
        return codes, self._workspace.buffer("FP8 scales of experts", active * groups, torch.float32)

    def results(self, tokens: int, splits: int) -> torch.Tensor:
        """[splits, pairs, hidden], in float32 if there are several."""
        pairs, hidden = tokens * self._shape.routing.active, self._shape.hidden
        if splits == 1:
            return self._results.take(tokens).view(1, pairs, hidden)
        return self._sums[: splits * pairs * hidden].view(splits, pairs, hidden)


def _quantizes(rows: int, weights: ExpertWeights) -> bool:
    """True if activations are multiplied in FP8 with blocks of these rows."""
    return weights.float8 and rows > _MOST_WIDE


@cache
def _multiplying(rows: int, bits: int, float8: bool, chip: str) -> Configuration:
    return choose("multiply_experts", {"rows": rows, "bits": bits, "float8": int(float8)}, chip)


@cache
def _scoring(rows: int, chip: str) -> Configuration:
    return choose("score_experts", {"rows": rows}, chip)


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
        rows, gate_up, down = memory.rows(tokens), self.gate_up.weights, self.down.weights
        first, second = memory.multiplying(rows, gate_up), memory.multiplying(rows, down)
        present = PresentTokens(step.starts, len(step.starts) - 1)
        choice, blocks = memory.choice(tokens), memory.blocks(tokens, first.tiles["TILE_M"])
        route(x, self.router, present, memory.scores(tokens), choice, blocks, memory.scoring(tokens))
        inner = memory.inner(tokens)
        multiply(memory.given(x, rows, gate_up), self.gate_up, blocks, inner, first)
        count = 1
        if tokens <= TOKENS:
            count = product_splits(down, len(blocks.table), memory.device.processors, second)
        results = memory.results(tokens, count)
        multiply(memory.given_inner(inner[0], rows, down), self.down, blocks, results, second)
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
        numbers, active, memory = range(shape.routing.count), shape.routing.active, self._memory(shape)
        gate_up = self._product(shape, [shape.gate_up(number) for number in numbers], shape.gating, active)
        down = self._product(shape, [(shape.down(number),) for number in numbers], None, 1)
        memory.prepare(gate_up.weights, down.weights)
        out = self._workspace.buffer("experts", shape.hidden, self._products.dtype)
        return CudaExperts(self._router(shape), gate_up, down, shared, memory, out)

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
        exact = weight.is_meta or torch.equal(narrow.float(), weight)
        return RouterColumns(narrow if exact else weight, router.bias, router.correction, shape.routing)
