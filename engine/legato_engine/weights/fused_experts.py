"""Experts of a layer that a Hugging Face folder holds in one tensor each, as transformers writes gpt-oss and Granite.

Granite's `input_linear` is [experts, 2 · inner, hidden], gates first, `output_linear` [experts, hidden, inner].

gpt-oss's `gate_up_proj` is [experts, hidden, 2 · inner] with gates and ups alternating, `down_proj` [experts, inner,
hidden]; their biases lack the second axis. With MXFP4, `gate_up_proj_blocks` is [experts, 2 · inner, groups, 16].
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch

ARCHITECTURES = ("GptOssForCausalLM", "GraniteMoeForCausalLM")
GATE_UP, DOWN = ".experts.gate_up_proj", ".experts.down_proj"
_ROWS = {GATE_UP: {"gate_proj": slice(0, None, 2), "up_proj": slice(1, None, 2)}, DOWN: {"down_proj": slice(None)}}
_INPUT, _OUTPUT = ".input_linear.weight", ".output_linear.weight"  # of Granite


class ExpertPart(NamedTuple):
    """The outputs `rows` of one expert."""

    expert: int
    rows: slice
    transposed: bool = True  # the file has [in, out]

    def of(self, stored: torch.Tensor) -> torch.Tensor:
        """The weight [out, in] of an expert's matrix in the file, or its bias; a view."""
        return stored.t()[self.rows] if self.transposed and stored.ndim == 2 else stored[self.rows]

    def shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of `of` for a tensor of all experts."""
        axes = [*reversed(stored[1:])] if self.transposed else stored[1:]
        return (len(range(*self.rows.indices(axes[0]))), *axes[1:])


def is_fused(name: str) -> bool:
    """True for the name of a tensor in floating point with the weights or biases of all experts."""
    return name.removesuffix("_bias").endswith((GATE_UP, DOWN, _INPUT, _OUTPUT))


def parts(name: str, shape: Sequence[int]) -> Iterator[tuple[str, ExpertPart]]:
    """The weights or biases in the tensor `name`, by the names that they have as tensors of their own."""
    experts = shape[0]
    if name.endswith((_INPUT, _OUTPUT)):
        yield from _granite_parts(name, experts, shape[1] // 2)
        return
    suffix = "bias" if name.endswith("_bias") else "weight"
    yield from parts_of(name.removesuffix("_bias"), experts, suffix)


def parts_of(module: str, experts: int, suffix: str) -> Iterator[tuple[str, ExpertPart]]:
    """The parts of `module`, such as `model.layers.0.mlp.experts.down_proj`."""
    kind = next(kind for kind in _ROWS if module.endswith(kind))
    named: Mapping[str, slice] = _ROWS[kind]
    prefix = module.removesuffix(kind.rpartition(".")[2])
    for expert in range(experts):
        for projection, rows in named.items():
            yield f"{prefix}{expert}.{projection}.{suffix}", ExpertPart(expert, rows)


def _granite_parts(name: str, experts: int, inner: int) -> Iterator[tuple[str, ExpertPart]]:
    rows = {"gate_proj": slice(0, inner), "up_proj": slice(inner, None)}
    if name.endswith(_OUTPUT):
        rows = {"down_proj": slice(None)}
    module = name.removesuffix(_INPUT).removesuffix(_OUTPUT)
    for expert in range(experts):
        for projection, part in rows.items():
            yield f"{module}.experts.{expert}.{projection}.weight", ExpertPart(expert, part, transposed=False)
