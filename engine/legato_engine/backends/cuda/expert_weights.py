"""Loads the weights of a mixture's experts as kernels take them: one projection of all experts together."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import torch

from legato_engine.backends.cuda import products
from legato_engine.backends.cuda.linear import ProductMemory, packed
from legato_engine.errors import UnusableFormat
from legato_engine.kernels.gpu.experts.weights import CodeExperts, DenseExperts, ExpertWeights, interleaved
from legato_engine.kernels.gpu.linear.codes import CodeMatrix, GroupScales
from legato_engine.weights.checkpoint import Checkpoint
from legato_engine.weights.grouped import ZERO, Grouped, concatenate
from legato_engine.weights.packed import Scales
from legato_engine.weights.quantization.formats import Element

Names = Sequence[tuple[str, ...]]  # by expert: gate and up, or down, without `.weight`
_Fields = tuple[torch.Tensor | None, ...]


def load(checkpoint: Checkpoint, names: Names, memory: ProductMemory) -> ExpertWeights:
    """The projections `names` of each expert; two are interleaved. Codes are kept if the table of products has a row
    for them. Raises UnusableFormat if experts have codes of several forms."""
    name = f"{names[0][0]}.weight"
    form, shape = checkpoint.grouped_form(name), checkpoint.shape(name)
    product = products.choose(form, shape, memory.dtype, memory.device.chip, products.EXPERTS)
    if product is None:
        return _dense(checkpoint, names, memory)
    with suppress(UnusableFormat):
        return CodeExperts(_codes(checkpoint, names, memory, lambda weight: weight), product.fp8)
    return CodeExperts(_codes(checkpoint, names, memory, _widened), product.fp8)


def biases(checkpoint: Checkpoint, names: Names, memory: ProductMemory) -> torch.Tensor:
    """[experts, outputs], in the order of `load`."""
    rows = [interleaved([checkpoint.vector(f"{name}.bias") for name in each]) for each in names]
    return torch.stack(rows).to(memory.device.place, memory.dtype)


def _dense(checkpoint: Checkpoint, names: Names, memory: ProductMemory) -> DenseExperts:
    outputs, inputs = checkpoint.shape(f"{names[0][0]}.weight")
    place, count = memory.device.place, len(names[0])
    weights = torch.empty(len(names), outputs * count, inputs, dtype=memory.dtype, device=place)
    part = torch.empty(outputs, inputs, dtype=memory.dtype, device=place)
    for expert, projections in zip(weights, names, strict=True):
        for index, name in enumerate(projections):
            checkpoint.read(f"{name}.weight", part)
            expert[index::count] = part
    return DenseExperts(weights)


def _codes(
    checkpoint: Checkpoint, names: Names, memory: ProductMemory, change: Callable[[Grouped], Grouped]
) -> CodeMatrix:
    """The codes of all experts, with scales as `change` returns them."""
    place = memory.device.place
    first = _expert(checkpoint, names[0], place, change)
    matrix = packed(first, place)
    stacks = [None if field is None else field.new_empty(len(names), *field.shape) for field in _fields(matrix)]
    for number, projections in enumerate(names):
        weight = _expert(checkpoint, projections, place, change)
        _check_alike(first, weight, projections[0])
        for stack, field in zip(stacks, _fields(packed(weight, place)), strict=True):
            if stack is not None and field is not None:
                stack[number] = field
    return _with_fields(matrix, stacks)


def _expert(
    checkpoint: Checkpoint, names: tuple[str, ...], place: torch.device, change: Callable[[Grouped], Grouped]
) -> Grouped:
    """The codes of an expert's projections, with interleaved outputs."""
    parts = []
    for name in names:
        codes = checkpoint.grouped(f"{name}.weight", place)
        if codes is None:
            raise UnusableFormat(f"{name}.weight is not quantized as other experts are; all must be alike")
        parts.append(change(codes))
        _check_alike(parts[0], parts[-1], name)
        if not _same_order(parts[0].order, parts[-1].order):
            raise UnusableFormat(f"{name}.weight has its inputs in another order than {names[0]}.weight")
    if len(parts) == 1:
        return parts[0]
    return _interleaved(concatenate([replace(part, order=None) for part in parts]), parts[0].order)


def _check_alike(one: Grouped, other: Grouped, name: str) -> None:
    if replace(one, order=None).form != replace(other, order=None).form or (one.order is None) != (other.order is None):
        raise UnusableFormat(f"{name}.weight is quantized differently from another expert's; all must be alike")


def _same_order(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    return one is other or (one is not None and other is not None and torch.equal(one, other))


def _interleaved(weight: Grouped, order: torch.Tensor | None) -> Grouped:
    """Interleaves the two halves of outputs."""

    def rows(values: torch.Tensor) -> torch.Tensor:
        return interleaved(values.chunk(2))

    def scales(given: Scales) -> Scales:
        return Scales(rows(given.values), None if given.factors is None else rows(given.factors))

    return replace(
        weight, codes=rows(weight.codes), scale=scales(weight.scale),
        zeros=None if weight.zeros is None else rows(weight.zeros),
        minimum=None if weight.minimum is None else scales(weight.minimum), order=order,
    )  # fmt: skip


def _widened(weight: Grouped) -> Grouped:
    """The weight with scales in float32 and with zero points. Files that store both by group have either only where the
    numbers need it."""
    if weight.element not in (Element.INT4, Element.INT8) or weight.scale.factors is not None or weight.minimum:
        return weight
    values = weight.scale.values
    zeros = (
        torch.full(values.shape, weight.zero, dtype=torch.int8, device=values.device)
        if weight.zeros is None
        else weight.zeros
    )
    return replace(weight, scale=Scales(values.float()), zero=ZERO[weight.element], zeros=zeros)


def _fields(matrix: CodeMatrix) -> _Fields:
    scale, minimum = matrix.scale, matrix.minimum
    minima = (None, None) if minimum is None else (minimum.values, minimum.factors)
    return matrix.codes, matrix.order, scale.values, scale.factors, matrix.zeros, *minima


def _with_fields(matrix: CodeMatrix, stacks: Sequence[torch.Tensor | None]) -> CodeMatrix:
    """The matrix with the fields of all experts, of which those by group follow one another."""
    codes, order, *by_group = stacks
    assert codes is not None
    values, factors, zeros, least, least_factors = (None if each is None else each.flatten(0, 1) for each in by_group)
    assert values is not None
    minimum = None if least is None else GroupScales(least, least_factors)
    return replace(matrix, codes=codes, order=order, scale=GroupScales(values, factors), zeros=zeros, minimum=minimum)
