"""Folders of tiny quantized models, rounded to nearest and packed as the tools of each format write them.

The packing was compared once, bit for bit, with that of compressed-tensors 0.20.1, AutoGPTQ 0.7.1, GPTQModel 7.7.0 and
AutoAWQ 0.2.9. Values of fp8 in blocks are those of transformers 5.24, and values of compressed-tensors those after its
rounding to the scales' dtype.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import tiny_files as files
import torch
from gguf import GGMLQuantizationType as Type
from huggingface_oracle import fused_experts
from safetensors.torch import save_file
from tiny_families import CONFIGS, FAMILIES

from legato_engine.models.config import from_huggingface
from legato_engine.weights.expected import expected_shapes

Tensors = dict[str, torch.Tensor]
FP4 = "mxfp4-pack-quantized"
FLOAT8, LARGEST = torch.float8_e4m3fn, 448.0
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
UP = "model.layers.1.mlp.up_proj"  # the layer that `put` and `edit` change


class Stored(NamedTuple):
    """The tensors of a weight by their suffixes, and its values in float32."""

    tensors: Tensors
    values: torch.Tensor


@dataclass(frozen=True)
class Kind:
    """A `quantization_config`, and the function that packs a weight [out, in] accordingly."""

    config: Mapping[str, Any]
    pack: Callable[[torch.Tensor], Stored]


def write(
    path: Path,
    kind: Kind,
    *,
    keep: Callable[[str], bool] = lambda name: False,
    change: Callable[[Tensors], None] = lambda tensors: None,
    architecture: str = "LlamaForCausalLM",
    config: Mapping[str, Any] | None = None,
    spread: float = 0.08,
) -> Tensors:
    """Writes a folder whose linear layers are quantized, and returns the values of all weights.

    The output head, and layers that `keep` names, are not quantized. `change` edits the tensors before they are saved,
    `config` the `quantization_config`."""
    path.mkdir(exist_ok=True)
    model = files.CONFIG | {"architectures": [architecture]}
    (path / "config.json").write_text(json.dumps(model | {"quantization_config": {**kind.config, **(config or {})}}))
    tensors: Tensors = {}
    values: Tensors = {}
    for name, (weight, stored) in _weights(kind.pack, architecture, spread).items():
        module = name.removesuffix(".weight")
        if stored is None or keep(module):
            tensors[name], values[name] = weight.clone(), weight
        else:
            tensors |= {f"{module}.{part}": tensor.clone() for part, tensor in stored.tensors.items()}
            values[name] = stored.values
    change(tensors)
    save_file(tensors, path / "model.safetensors")
    return values


@lru_cache(maxsize=32)
def _weights(
    pack: Callable[[torch.Tensor], Stored], architecture: str, spread: float
) -> dict[str, tuple[torch.Tensor, Stored | None]]:
    """All weights by name, those of linear layers also packed: tests write the same folder many times."""
    draw = torch.Generator().manual_seed(3)
    found: dict[str, tuple[torch.Tensor, Stored | None]] = {}
    for name, shape in expected_shapes(
        from_huggingface(files.CONFIG | {"architectures": [architecture]}, "here")
    ).items():
        weight = torch.randn(shape, generator=draw) * (spread if len(shape) == 2 else 0.1) + (len(shape) == 1)
        stored = pack(weight) if name.endswith("_proj.weight") else None
        if stored:
            stored = Stored({part: tensor.contiguous() for part, tensor in stored.tensors.items()}, stored.values)
        found[name] = weight, stored
    return found


def write_gpt_oss(path: Path, change: Callable[[Tensors], None] = lambda tensors: None) -> Tensors:
    """Writes a folder of gpt-oss with experts in MXFP4, and returns the values of all weights."""
    path.mkdir(exist_ok=True)
    mxfp4_config = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    (path / "config.json").write_text(json.dumps(CONFIGS["gpt-oss"] | {"quantization_config": mxfp4_config}))
    draw, values = torch.Generator().manual_seed(3), dict[str, torch.Tensor]()
    for name, shape in expected_shapes(FAMILIES["gpt-oss"]).items():
        values[name] = (torch.randn(shape, generator=draw) * 0.2).bfloat16().float()
        if ".experts." in name and name.endswith(".weight"):
            values[name] = mxfp4(values[name]).values
    tensors = fused_experts(dict(values))
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        stored = [mxfp4(expert.t().contiguous()).tensors for expert in tensors.pop(name)]
        scales = torch.stack([each["weight_scale"] for each in stored])
        blocks = torch.stack([each["weight_packed"] for each in stored]).view(*scales.shape, 16)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path / "model.safetensors")
    return values


def put(part: str, tensor: torch.Tensor) -> Callable[[Tensors], None]:
    """A `change` of `write`: adds or replaces a tensor of the layer `UP`."""
    return lambda tensors: tensors.update({f"{UP}.{part}": tensor})


def edit(part: str, value: float, place: int = 0) -> Callable[[Tensors], None]:
    """A `change` of `write`: sets one number of a tensor of the layer `UP`."""

    def change(tensors: Tensors) -> None:
        tensors[f"{UP}.{part}"].view(-1)[place] = value

    return change


def words(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Codes [rows, columns] as int32 [rows, columns · bits / 32], the lowest bits first."""
    count = 32 // bits
    joined = (codes.long().view(len(codes), -1, count) << torch.arange(0, 32, bits)).sum(-1)
    return torch.where(joined < 1 << 31, joined, joined - (1 << 32)).int()


# ── scales and codes ──


def expand(grid: torch.Tensor, shape: tuple[int, int], tile: tuple[int, int]) -> torch.Tensor:
    """A value per tile, repeated for each weight."""
    rows, columns = map(min, tile, shape)
    return grid.repeat_interleave(rows, 0)[: shape[0]].repeat_interleave(columns, 1)[:, : shape[1]]


def largest(weight: torch.Tensor, tile: tuple[int, int]) -> torch.Tensor:
    """The largest magnitude of each tile of `weight`."""
    rows, columns = map(min, tile, weight.shape)
    pad = (0, -weight.shape[1] % columns, 0, -weight.shape[0] % rows)
    padded = torch.nn.functional.pad(weight.abs(), pad)
    return padded.unfold(0, rows, rows).unfold(1, columns, columns).amax((2, 3))


def float8(weight: torch.Tensor, tile: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """FP8 codes, float32 scales by tile, and values."""
    scale = largest(weight, tile) / LARGEST
    scales = expand(scale, weight.shape, tile)
    codes = (weight / scales).to(FLOAT8)
    return codes, scale, codes.float() * scales


class Integers(NamedTuple):
    codes: torch.Tensor  # 0 … 2^bits - 1, [out, in]
    scale: torch.Tensor  # [out, groups]
    zero: torch.Tensor  # [out, groups]: the code of 0
    values: torch.Tensor


def integers(
    weight: torch.Tensor,
    bits: int,
    group: int,
    *,
    symmetric: bool,
    order: torch.Tensor | None = None,
    dtype: torch.dtype = torch.float16,
) -> Integers:
    """Rounds to nearest. `order` has the group of each input, by default of neighbouring ones."""
    outputs, inputs = weight.shape
    order = torch.arange(inputs) // group if order is None else order
    groups = weight[:, order.argsort(stable=True)].view(outputs, -1, group)
    top, middle = (1 << bits) - 1, 1 << (bits - 1)
    if symmetric:
        scale = (groups.abs().amax(2) / (middle - 1)).to(dtype)
        zero = torch.full_like(scale, middle, dtype=torch.int64)
    else:
        low, high = groups.amin(2).clamp(max=0), groups.amax(2).clamp(min=0)
        scale = ((high - low) / top).to(dtype)
        zero = (-low / scale.float()).round().clamp(0, top).long()
    spread_scale, spread_zero = scale.float()[:, order], zero[:, order]
    codes = (weight / spread_scale + spread_zero).round().clamp(0, top).long()
    return Integers(codes, scale, zero, (codes - spread_zero) * spread_scale)


# ── fp8 and compressed-tensors ──


def dense(tile: tuple[int, int] | None, scale_name: str = "weight_scale") -> Callable[[torch.Tensor], Stored]:
    def pack(weight: torch.Tensor) -> Stored:
        codes, scale, values = float8(weight, tile or (weight.shape[0], weight.shape[1]))
        scales = {scale_name: scale if tile else scale.view(1), "input_scale": torch.ones(1)}
        return Stored({"weight": codes} | scales, values)

    return pack


def int8(weight: torch.Tensor) -> Stored:
    rounded = integers(weight, 8, weight.shape[1], symmetric=True)
    return Stored({"weight": (rounded.codes - 128).to(torch.int8), "weight_scale": rounded.scale}, rounded.values)


def packed(
    bits: int, group: int, *, symmetric: bool = True, dtype: torch.dtype = torch.float16, act_order: bool = False
) -> Callable[[torch.Tensor], Stored]:
    def pack(weight: torch.Tensor) -> Stored:
        size = weight.shape[1] if group == -1 else group
        order = shuffled(weight.shape[1], size) if act_order else None
        rounded = integers(weight, bits, size, symmetric=symmetric, order=order, dtype=dtype)
        tensors = {
            "weight_packed": words(rounded.codes, bits),
            "weight_scale": rounded.scale,
            "weight_shape": torch.tensor(weight.shape),
        }
        if not symmetric:
            tensors["weight_zero_point"] = words(rounded.zero.T, bits).T
        if order is not None:
            tensors["weight_g_idx"] = order.int()
        return Stored(tensors, rounded.values)

    return pack


def shuffled(inputs: int, group: int) -> torch.Tensor:
    """The group of each input, as with `desc_act`."""
    return (torch.arange(inputs) // group)[torch.randperm(inputs, generator=torch.Generator().manual_seed(5))]


def mxfp4(weight: torch.Tensor) -> Stored:
    """As the gguf library rounds, whose blocks of 32 have other places for codes."""
    blocks = gguf.quants.quantize(weight.numpy(), Type.MXFP4)
    values = torch.from_numpy(gguf.quants.dequantize(blocks, Type.MXFP4))
    exponents, halves = torch.from_numpy(blocks).view(len(weight), -1, 17).split((1, 16), 2)
    codes = torch.cat((halves & 15, halves >> 4), 2).flatten(1)
    tensors = {"weight_packed": codes[:, ::2] | codes[:, 1::2] << 4, "weight_scale": exponents.flatten(1)}
    return Stored(tensors, values)


# ── gptq and awq ──


def gptq(
    bits: int, group: int, *, symmetric: bool = True, act_order: bool = False, version: int = 1
) -> Callable[[torch.Tensor], Stored]:
    def pack(weight: torch.Tensor) -> Stored:
        inputs = weight.shape[1]
        size = inputs if group == -1 else group
        order = shuffled(inputs, size) if act_order else torch.arange(inputs) // size
        rounded = integers(weight, bits, size, symmetric=symmetric, order=order)
        zero = rounded.zero - 1 & (1 << bits) - 1 if version == 1 else rounded.zero
        tensors = {
            "qweight": words(rounded.codes, bits).T,
            "qzeros": words(zero.T, bits),
            "scales": rounded.scale.T,
            "g_idx": order.int(),
        }
        return Stored(tensors, rounded.values)

    return pack


def awq(group: int) -> Callable[[torch.Tensor], Stored]:
    def reordered(codes: torch.Tensor) -> torch.Tensor:
        return codes.view(len(codes), -1, 8)[:, :, AWQ_ORDER].flatten(1)

    def pack(weight: torch.Tensor) -> Stored:
        rounded = integers(weight, 4, group, symmetric=False)
        tensors = {
            "qweight": words(reordered(rounded.codes.T.contiguous()), 4),
            "qzeros": words(reordered(rounded.zero.T.contiguous()), 4),
            "scales": rounded.scale.T,
        }
        return Stored(tensors, rounded.values)

    return pack


def compressed(
    format: str, strategy: str, *, bits: int = 8, group: int | None = None, **weights: Any
) -> dict[str, Any]:
    """A `quantization_config` of compressed-tensors with one group of layers."""
    activations = None
    if format not in ("pack-quantized", FP4):
        activations = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True, "symmetric": True}
    kind = "float" if format in ("float-quantized", FP4) else "int"
    given = {"num_bits": bits, "type": kind, "strategy": strategy, "group_size": group, "symmetric": True}
    layers = {"targets": ["Linear"], "weights": given | weights, "input_activations": activations}
    return {
        "quant_method": "compressed-tensors",
        "format": format,
        "config_groups": {"group_0": layers},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "quantization_status": "compressed",
    }


def gptq_config(bits: int, group: int, **changes: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": True, "desc_act": False} | changes


FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
BLOCKS = {"weight_block_size": [128, 128]}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
KINDS = {
    "fp8, blocks": Kind(FP8 | BLOCKS, dense((128, 128), "weight_scale_inv")),
    "fp8, blocks that do not divide": Kind(
        FP8 | {"weight_block_size": [96, 160]}, dense((96, 160), "weight_scale_inv")
    ),
    "fp8, tensor, static": Kind(FP8 | {"activation_scheme": "static"}, dense(None)),
    "fp8, channel": Kind(FP8, dense((1, 1 << 20))),
    "float-quantized, tensor": Kind(compressed("float-quantized", "tensor"), dense(None)),
    "float-quantized, channel": Kind(compressed("float-quantized", "channel"), dense((1, 1 << 20))),
    "float-quantized, block": Kind(
        compressed("float-quantized", "block", block_structure=[128, 128]), dense((128, 128))
    ),
    "int-quantized": Kind(compressed("int-quantized", "channel"), int8),
    "pack-quantized W4A16": Kind(compressed("pack-quantized", "group", bits=4, group=128), packed(4, 128)),
    "pack-quantized W4A16, bfloat16": Kind(
        compressed("pack-quantized", "group", bits=4, group=32), packed(4, 32, dtype=torch.bfloat16)
    ),
    "pack-quantized W4A16, asymmetric": Kind(
        compressed("pack-quantized", "group", bits=4, group=64, symmetric=False), packed(4, 64, symmetric=False)
    ),
    "pack-quantized W4A16, channel": Kind(compressed("pack-quantized", "channel", bits=4), packed(4, -1)),
    "pack-quantized W4A16, act order": Kind(
        compressed("pack-quantized", "group", bits=4, group=128, actorder="group"), packed(4, 128, act_order=True)
    ),
    "pack-quantized W8A16": Kind(compressed("pack-quantized", "group", bits=8, group=128), packed(8, 128)),
    FP4: Kind(compressed(FP4, "group", bits=4, group=32, scale_dtype="torch.uint8"), mxfp4),
    "gptq": Kind(gptq_config(4, 128), gptq(4, 128)),
    "gptq, asymmetric": Kind(gptq_config(4, 32, sym=False), gptq(4, 32, symmetric=False)),
    "gptq, v2": Kind(
        gptq_config(4, 128, sym=False, checkpoint_format="gptq_v2"), gptq(4, 128, symmetric=False, version=2)
    ),
    "gptq, act order": Kind(gptq_config(4, 128, desc_act=True), gptq(4, 128, act_order=True)),
    "gptq, channel": Kind(gptq_config(4, -1), gptq(4, -1)),
    "gptq, 8 bits": Kind(gptq_config(8, 64), gptq(8, 64)),
    "gptq, 8 bits, asymmetric": Kind(gptq_config(8, 128, sym=False), gptq(8, 128, symmetric=False)),
    "awq": Kind(AWQ, awq(128)),
}
