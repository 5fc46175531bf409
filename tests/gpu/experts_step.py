"""A mixture of experts with random weights, computed by the layer of the backend for GPUs, and by its reference."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import NamedTuple

import made_codes
import plain_model
import torch
from places import TOLERANCE, Place
from torch.nn.functional import linear

from legato_engine.backends.cuda.device import Cuda, Interpreted
from legato_engine.backends.cuda.experts import Mixtures
from legato_engine.backends.cuda.linear import ProductMemory
from legato_engine.backends.cuda.workspace import Room, Workspace
from legato_engine.kernels.reference import experts as reference
from legato_engine.kernels.routing import ExpertRouting, Gating
from legato_engine.layers.experts import ExpertNames, ExpertsShape
from legato_engine.weights.grouped import Grouped, GroupedForm

NAMES = ExpertNames("router", "{}.gate", "{}.up", "{}.down")


class MadeExperts:
    """Random weights of a mixture, in a form of `made_codes.FORMS`, or in floating point without a form."""

    def __init__(self, shape: ExpertsShape, dtype: torch.dtype, form: str = "") -> None:
        self._form, self._dtype = form, dtype
        hidden, inner, count = shape.hidden, shape.inner, shape.routing.count
        self._sizes = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
        self.tensors = {"router.weight": self._random(count, hidden, size=2.0)}
        self.codes: dict[str, Grouped] = {}
        if shape.router_bias:
            self.tensors["router.bias"] = torch.randn(count)
        for number in range(count):
            for name, sizes in self._sizes.items():
                self._add(f"{number}.{name}", *sizes, biased=shape.biases)

    def _random(self, *shape: int, size: float = 1.0) -> torch.Tensor:
        return (torch.randn(shape) * (size / shape[-1] ** 0.5)).to(self._dtype)

    def _add(self, name: str, outputs: int, inputs: int, biased: bool) -> None:
        if self._form:
            self.codes[f"{name}.weight"] = codes = made_codes.made(self._form, outputs, inputs)
            if codes.order is not None:  # experts have an order for both projections of an input
                torch.manual_seed(int(name.split(".")[0]))
                self.codes[f"{name}.weight"] = replace(codes, order=torch.randperm(inputs).int())
        else:
            self.tensors[f"{name}.weight"] = self._random(outputs, inputs)
        if biased:
            self.tensors[f"{name}.bias"] = (4 * torch.randn(outputs)).to(self._dtype)  # some are beyond a clamp

    def shape(self, name: str) -> tuple[int, ...]:
        return self._sizes[name.split(".")[1]]

    def grouped_form(self, name: str) -> GroupedForm | None:
        return made_codes.form_of(self._form, self.shape(name)[1]) if self._form else None

    def grouped(self, name: str, _place: torch.device | None = None) -> Grouped | None:
        return self.codes.get(name)

    def read(self, name: str, out: torch.Tensor) -> None:
        out.copy_(self.tensors[name])

    def vector(self, name: str) -> torch.Tensor:
        return self.tensors[name].float()

    def expert(self, number: int, x: torch.Tensor, gating: Gating, groups: tuple[int, int] | None) -> torch.Tensor:
        """An expert's results in float32. The inputs of gate and up, and those of down, are rounded to FP8 in `groups`
        of neighbours; None: they are not."""
        gate, up, down = (self._linear(f"{number}.{name}") for name in self._sizes)
        given = x if groups is None else rounded(x, groups[0])
        inner = reference.gated(torch.cat((gate(given), up(given)), 1), gating)
        return down(inner if groups is None else rounded(inner.to(self._dtype).float(), groups[1]))

    def _linear(self, name: str) -> Callable[[torch.Tensor], torch.Tensor]:
        weight, bias = self._floats(f"{name}.weight"), self.tensors.get(f"{name}.bias")
        return lambda x: linear(x, weight, None if bias is None else bias.float())

    def _floats(self, name: str) -> torch.Tensor:
        return self.codes[name].floats() if name in self.codes else self.tensors[name].float()


def rounded(x: torch.Tensor, group: int) -> torch.Tensor:
    """Rows with the values that are left in FP8, with a scale for each `group` of neighbours."""
    parts = []
    for part in x.split(group, 1):
        scale = part.abs().amax(1, keepdim=True).clamp(min=1e-30) / 448
        parts.append((part / scale).to(torch.float8_e4m3fn).float() * scale)
    return torch.cat(parts, 1)


class MixtureStep(NamedTuple):
    """Tokens of a step, of which only the first `present` exist."""

    tokens: int
    present: int


def check(
    place: Place, dtype: torch.dtype, shape: ExpertsShape, step: MixtureStep, form: str = "", only: int | None = None,
    change: Callable[[dict[str, Grouped]], None] = lambda codes: None,
) -> torch.Tensor:  # fmt: skip
    """Compares a step's results with the reference, and returns them. All tokens choose the expert `only` first, and
    `change` changes codes by name."""
    torch.manual_seed(0)
    weights = MadeExperts(shape, dtype, form)
    change(weights.codes)
    x = torch.randn(step.tokens, shape.hidden).to(dtype)
    if only is not None:
        weights.tensors["router.weight"] *= 0
        weights.tensors["router.bias"] = torch.arange(shape.routing.count).eq(only).float()
    layer = MadeLayer(place, dtype, shape, weights, step)
    found = layer(x.to(place.device)).cpu()
    layer.check_blocks(step.tokens)

    given = x[: step.present].float()
    logits = given @ weights.vector("router.weight").T
    logits += weights.vector("router.bias") if shape.router_bias else 0
    chosen = reference.route(logits, None, shape.routing)
    expected = plain_model.mixture(
        given, chosen, lambda number, x: weights.expert(number, x, shape.gating, layer.groups)
    )
    away = (found[: step.present] - expected).norm(dim=1) / expected.norm(dim=1)
    # Numbers between two of FP8 may be rounded to either. One of the inputs that is not rounded makes more than this.
    most = TOLERANCE[dtype] if layer.groups is None else 0.025
    assert bool((away <= most).all()), f"off by {away.tolist()}"  # NaN is not
    assert not found[step.present :].any()
    return found


class MadeLayer:
    """The layer with these weights, for `tokens` of which the first `present` exist."""

    def __init__(
        self, place: Place, dtype: torch.dtype, shape: ExpertsShape, made: MadeExperts, step: MixtureStep
    ) -> None:
        self.device = Interpreted(place.processors, place.chip) if place.small else Cuda(place.device)
        workspace = Workspace(self.device.place)
        products = ProductMemory(dtype, self.device, workspace)
        self._mixture = Mixtures(made, products, workspace).make(shape, None)  # type: ignore[arg-type]
        workspace.make_room(Room(step.tokens, step.tokens, 1, 16))
        self._starts = place.ints([*range(step.present), step.present])
        self._pairs = step.present * shape.routing.active
        weights = self._mixture.gate_up.weights, self._mixture.down.weights
        quantizes = weights[1].float8 and self._mixture.memory.rows(step.tokens) > 32
        # Inputs of products that share a scale in FP8, if they are quantized.
        self.groups = (weights[0].group, weights[1].group) if quantizes else None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The results, which the next call overwrites."""
        return self._mixture(SimpleNamespace(starts=self._starts), x)  # type: ignore[arg-type]

    def results(self, tokens: int) -> torch.Tensor:
        """The results of the last call or replay."""
        return self._mixture.out.take(tokens)

    def check_blocks(self, tokens: int) -> None:
        """Checks that padding is in no block of the last step."""
        memory = self._mixture.memory
        config = memory.multiplying(memory.rows(tokens), self._mixture.down.weights)
        assert memory.blocks(tokens, config.tiles["TILE_M"]).table[:, 2].sum() == self._pairs


def shape_of(
    experts: tuple[int, int], hidden: int = 64, inner: int = 96, gating: Gating = Gating.SILU, biases: bool = False
) -> ExpertsShape:
    """A shape with the numbers of all `experts` and of active ones."""
    return ExpertsShape(hidden, inner, ExpertRouting(*experts), NAMES, gating, biases, biases)
