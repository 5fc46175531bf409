"""A mixture of experts with random weights, computed by the layer of the backend for GPUs, and by its reference."""

from dataclasses import replace
from types import SimpleNamespace
from typing import NamedTuple

import made_codes
import torch
from places import TOLERANCE, Place

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

    def grouped(self, name: str) -> Grouped | None:
        return self.codes.get(name)

    def read(self, name: str, out: torch.Tensor) -> None:
        out.copy_(self.tensors[name])

    def vector(self, name: str) -> torch.Tensor:
        return self.tensors[name].float()

    def expert(self, number: int) -> reference.Expert:
        """An expert's weights in float32."""
        gate, up, down = (self._floats(f"{number}.{name}.weight") for name in self._sizes)
        biases = [self.tensors.get(f"{number}.{name}.bias") for name in self._sizes]
        if biases[0] is None:
            return reference.Expert(torch.cat((gate, up)), down)
        return reference.Expert(torch.cat((gate, up)), down, torch.cat(biases[:2]).float(), biases[2])

    def _floats(self, name: str) -> torch.Tensor:
        return self.codes[name].floats() if name in self.codes else self.tensors[name].float()


class MixtureStep(NamedTuple):
    """Tokens of a step, of which only the first `present` exist."""

    tokens: int
    present: int


def check(
    place: Place, dtype: torch.dtype, shape: ExpertsShape, step: MixtureStep, form: str = "", only: int | None = None
) -> torch.Tensor:
    """Compares a step's results with the reference, and returns them. All tokens choose the expert `only` first."""
    torch.manual_seed(0)
    weights = MadeExperts(shape, dtype, form)
    x = torch.randn(step.tokens, shape.hidden).to(dtype)
    if only is not None:
        weights.tensors["router.weight"] *= 0
        weights.tensors["router.bias"] = torch.arange(shape.routing.count).eq(only).float()
    found = compute(place, dtype, shape, weights, x, step.present)

    given = x[: step.present].float()
    logits = given @ weights.vector("router.weight").T
    logits += weights.vector("router.bias") if shape.router_bias else 0
    chosen = reference.route(logits, None, shape.routing)
    experts = [weights.expert(number) for number in range(shape.routing.count)]
    expected = reference.experts(given, chosen, experts, shape.gating)
    away = (found[: step.present] - expected).norm(dim=1) / expected.norm(dim=1)
    assert bool((away <= TOLERANCE[dtype]).all()), f"off by {away.tolist()}"  # NaN is not
    assert not found[step.present :].any()
    return found


def compute(
    place: Place, dtype: torch.dtype, shape: ExpertsShape, weights: MadeExperts, x: torch.Tensor, present: int
) -> torch.Tensor:
    """The results of tokens x, of which only the first `present` exist. Checks that others are in no block."""
    device = Interpreted(place.processors) if place.small else Cuda(place.device)
    workspace = Workspace(device.place)
    products = ProductMemory(dtype, device, workspace)
    mixture = Mixtures(weights, products, workspace).make(shape, None)  # type: ignore[arg-type]
    workspace.make_room(Room(len(x), len(x), 1, 16))
    starts = place.ints([*range(present), present])
    found = mixture(SimpleNamespace(starts=starts), x.to(device.place)).cpu()  # type: ignore[arg-type]
    rows = mixture.memory.multiplying(len(x), mixture.down.weights.bits).tiles["TILE_M"]
    assert mixture.memory.blocks(len(x), rows).table[:, 2].sum() == present * shape.routing.active
    return found


def shape_of(
    experts: tuple[int, int], hidden: int = 64, inner: int = 96, gating: Gating = Gating.SILU, biases: bool = False
) -> ExpertsShape:
    """A shape with the numbers of all `experts` and of active ones."""
    return ExpertsShape(hidden, inner, ExpertRouting(*experts), NAMES, gating, biases, biases)
