"""Experts in MXFP4 as gpt-oss has them: a tensor of blocks and one of exponents for all experts of a layer.

`…experts.gate_up_proj_blocks` is uint8 [experts, 2 · inner, groups, 16], outputs of gates and ups alternating, and
`_scales` uint8 [experts, 2 · inner, groups]; `down_proj` alike. Biases are floating point (`fused_experts`).
"""

from collections.abc import Iterator

import torch

from legato_engine.errors import MissingTensor, UnsupportedFormat, WrongShape
from legato_engine.weights import fused_experts
from legato_engine.weights.cut import StoredPart
from legato_engine.weights.fused_experts import ExpertPart
from legato_engine.weights.huggingface import HuggingFaceFolder
from legato_engine.weights.quantization.formats import FP4_GROUP as GROUP
from legato_engine.weights.quantization.formats import Format
from legato_engine.weights.quantization.fp4 import Fp4Weight

BLOCKS, SCALES = _SUFFIXES = ("_blocks", "_scales")
_BYTES = GROUP // 2  # of a block


class ExpertBlocks(Fp4Weight):
    """The weight of one projection of one expert."""

    def __init__(self, folder: HuggingFaceFolder, module: str, part: ExpertPart, given: Format) -> None:
        """Takes the tensors of `module`, which are checked."""
        self._folder = folder
        self._module = module
        self._part = part
        self._format = given
        (self._tile,) = given.tiles
        _, outputs, groups, _ = folder.shape(module + BLOCKS)
        self.shape = len(range(*part.rows.indices(outputs))), groups * GROUP

    def _stored(self, part: StoredPart, place: torch.device | None = None) -> torch.Tensor:
        name, expert = self._module + BLOCKS, self._part.expert
        blocks = self._folder.entry(name, expert) if place is None else self._folder.read_entry(name, place, expert)
        codes = blocks[self._part.rows][slice(*part.outputs)].flatten(1)
        return codes[:, part.inputs[0] // 2 : part.inputs[1] // 2]

    def _exponents(self) -> torch.Tensor:
        return self._folder.entry(self._module + SCALES, self._part.expert)[self._part.rows]

    def _name(self, suffix: str | None = None) -> str:
        name = self._module + (SCALES if suffix else BLOCKS)
        return f"{self._folder.path}: tensor {name}, expert {self._part.expert}"


def modules(folder: HuggingFaceFolder) -> list[str]:
    """Modules of `folder` with experts in blocks, such as `model.layers.0.mlp.experts.down_proj`."""
    names = (name.removesuffix(BLOCKS).removesuffix(SCALES) for name in folder.names() if name.endswith(_SUFFIXES))
    return sorted({name for name in names if name.endswith((fused_experts.GATE_UP, fused_experts.DOWN))})


def weights(folder: HuggingFaceFolder, module: str, given: Format) -> Iterator[tuple[str, ExpertBlocks]]:
    """The weights in the tensors of a module, by the names that they would have as tensors. Raises ModelError."""
    experts = _checked(folder, module)
    for name, part in fused_experts.parts_of(module, experts, "weight"):
        yield name, ExpertBlocks(folder, module, part, given)


def _checked(folder: HuggingFaceFolder, module: str) -> int:
    """The number of experts."""
    blocks, scales = module + BLOCKS, module + SCALES
    for name in (blocks, scales):
        if name not in folder.names():
            raise MissingTensor(f"{folder.path}: tensor {name} is missing; MXFP4 needs it")
        if (dtype := folder.dtype(name)) != "U8":
            raise UnsupportedFormat(f"{folder.path}: tensor {name} has type {dtype}; supported: U8")
    shape = folder.shape(blocks)
    if len(shape) != 4 or shape[3] != _BYTES or 0 in shape:
        needed = f"experts, outputs, groups and {_BYTES} bytes are needed"
        raise WrongShape(f"{folder.path}: tensor {blocks} has shape {list(shape)}; {needed}")
    if folder.shape(scales) != shape[:3]:
        given = list(folder.shape(scales))
        raise WrongShape(f"{folder.path}: tensor {scales} has shape {given}; the blocks need {list(shape[:3])}")
    return shape[0]
