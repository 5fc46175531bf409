"""Quantized weights of random codes, in every form that files have."""

from typing import NamedTuple

import torch

from legato_engine.weights.grouped import ZERO, Grouped, GroupedForm
from legato_engine.weights.packed import Scales
from legato_engine.weights.quantization.formats import Element


class Form(NamedTuple):
    """`group` inputs share a scale, None: all; `factor` groups share a float16 factor of an 8-bit scale."""

    element: Element
    group: int | None
    zeros: bool = False
    minimum: bool = False
    order: bool = False
    factor: int = 0


FORMS = {
    "W4A16": Form(Element.INT4, 128),
    "W4A16, channel": Form(Element.INT4, None),
    "AWQ": Form(Element.INT4, 128, zeros=True),
    "GPTQ, act order": Form(Element.INT4, 32, zeros=True, order=True),
    "Q4_K": Form(Element.INT4, 32, minimum=True, factor=8),
    "W8A16": Form(Element.INT8, 64, zeros=True),
    "W8A8": Form(Element.INT8, None),
    "Q6_K": Form(Element.INT8, 16, factor=16),
    "FP8, blocks": Form(Element.FLOAT8, 128),
    "FP8, channel": Form(Element.FLOAT8, None),
    "MXFP4": Form(Element.FLOAT4, 32),
}


_SPREAD = {Element.INT4: 4.6, Element.INT8: 74.0, Element.FLOAT8: 1.0, Element.FLOAT4: 2.9}  # of random codes


def made(name: str, outputs: int, inputs: int, place: torch.device | None = None) -> Grouped:
    """A weight whose products with x of size 1 are about 1 in size. `inputs` is a multiple of the groups."""
    with torch.device(place or "cpu"):
        return _made(name, outputs, inputs)


def form_of(name: str, inputs: int) -> GroupedForm:
    """The form of such weights, made for activations of 8 bits if they are FP8."""
    weight = made(name, 1, inputs)
    return GroupedForm(weight.element, weight.group, weight.bits, weight.element is Element.FLOAT8)


def _made(name: str, outputs: int, inputs: int) -> Grouped:
    form = FORMS[name]
    element, group = form.element, form.group or inputs
    groups, spread = -(-inputs // group), _SPREAD[element]
    if element is Element.FLOAT8:
        codes = torch.randn(outputs, inputs).to(torch.float8_e4m3fn)
    else:
        least, most, dtype = (0, 16, torch.uint8) if element.bits == 4 else (-128, 128, torch.int8)
        codes = torch.randint(least, most, (outputs, inputs), dtype=dtype)
    size = 1 / spread / inputs**0.5

    def scales(size: float) -> Scales:
        values = (torch.rand(outputs, groups) + 0.5) * size
        if element is Element.FLOAT8:
            return Scales(values)
        if element is Element.FLOAT4:  # powers of two
            return Scales((values / 1.5).to(torch.float8_e8m0fnu))
        if not form.factor:
            return Scales(values.half())
        return Scales(
            torch.randint(1, 64, (outputs, groups), dtype=torch.int8), (values[:, :: form.factor] / 32).half()
        )

    return Grouped(
        element, codes, group, scales(size), ZERO.get(element, 0),
        torch.randint(0, 16, (outputs, groups), dtype=torch.int8) if form.zeros else None,
        scales(-8 * size) if form.minimum else None,
        torch.randperm(inputs).int() if form.order else None,
    )  # fmt: skip
