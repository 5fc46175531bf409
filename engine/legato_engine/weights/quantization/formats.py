"""Formats of quantized weights as data. No tensors, no torch.

A weight `[out, in]` is `scale * (code - zero)`, where a tile of outputs and inputs shares a scale and a zero point.
"""

import re
from dataclasses import dataclass
from enum import Enum
from math import ceil
from typing import NamedTuple

EVERY = "re:"  # a target that matches all layers
FP4_GROUP = 32  # inputs that share a scale in MXFP4


class Element(Enum):
    """The type of the codes."""

    FLOAT8 = "FP8"
    INT8 = "8-bit integers"
    INT4 = "4-bit integers"
    FLOAT4 = "FP4"  # e2m1

    @property
    def bits(self) -> int:
        return 4 if self in (Element.INT4, Element.FLOAT4) else 8


INTEGERS = {4: Element.INT4, 8: Element.INT8}


class Layout(Enum):
    """The names, order and packing of a weight's tensors in a file."""

    DENSE = "one code per element"  # of fp8, float-quantized and int-quantized
    PACKED = "pack-quantized"
    GPTQ = "gptq"  # stores zero points minus 1
    GPTQ_V2 = "gptq_v2"
    AWQ = "awq"
    FP4_PACKED = "mxfp4-pack-quantized"
    EXPERT_BLOCKS = "mxfp4"  # all experts of a layer in one tensor


class Activations(Enum):
    """The quantization of a layer's input that the checkpoint was made for. Only GPUs that multiply FP8 apply it, with
    scales of their own."""

    NONE = "none"
    STATIC = "static"
    DYNAMIC = "dynamic"


class Tile(NamedTuple):
    """The numbers of outputs and inputs that share a scale; None: all that the weight has."""

    outputs: int | None
    inputs: int | None

    def grid(self, outputs: int, inputs: int) -> tuple[int, int]:
        """Rows and columns of the scales of a weight [outputs, inputs]."""
        return ceil(outputs / (self.outputs or outputs)), ceil(inputs / (self.inputs or inputs))

    def __str__(self) -> str:
        if self.inputs is None:
            return "tensor" if self.outputs is None else "output"
        return f"{self.inputs} inputs" if self.outputs == 1 else f"block of {self.outputs}×{self.inputs}"


TENSOR = Tile(None, None)
CHANNEL = Tile(1, None)


def group(inputs: int) -> Tile:
    """The tile of a group of inputs of one output; -1: of all inputs."""
    return CHANNEL if inputs == -1 else Tile(1, inputs)


@dataclass(frozen=True, slots=True)
class Format:
    """The format of a layer's weight. If there are several tiles, the shape of the scales in the file decides."""

    layout: Layout
    element: Element
    tiles: tuple[Tile, ...]
    zero_points: bool = False
    activations: Activations = Activations.NONE
    act_order: bool = False  # the group of each input has to be in the file

    def __str__(self) -> str:
        zero = " with zero points" if self.zero_points else ""
        tiles = " or ".join(str(tile) for tile in self.tiles)
        made_for = "" if self.activations is Activations.NONE else f", for {self.activations.value} activations"
        return f"{self.element.value}{zero}, a scale per {tiles}{made_for}"


@dataclass(frozen=True, slots=True)
class LayerRule:
    """The format of the layers that `target` selects; None: they are not quantized.

    A target is a layer's name, `re:` and a pattern that matches names from their start, or `Linear` or `Embedding`.
    """

    target: str
    format: Format | None

    def matches(self, module: str) -> bool:
        if self.target.startswith("re:"):
            return re.match(self.target.removeprefix("re:"), module) is not None
        return self.target in (module, "Embedding" if module.endswith("embed_tokens") else "Linear")


@dataclass(frozen=True, slots=True)
class Quantization:
    """The quantization of a checkpoint. The first rule that matches a layer decides."""

    method: str
    rules: tuple[LayerRule, ...]

    def format_of(self, *names: str) -> Format | None:
        """The format of the layer with one of these names, such as `model.layers.0.mlp.up_proj`; None: it is not
        quantized."""
        return next((rule.format for rule in self.rules if any(map(rule.matches, names))), None)

    def __str__(self) -> str:
        formats = dict.fromkeys(str(rule.format) for rule in self.rules if rule.format is not None)
        return f"{self.method} ({'; '.join(formats)})"
