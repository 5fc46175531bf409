"""The `quantization_config` of compressed-tensors: groups of layers, each with a format of its own."""

import re

from legato_engine.errors import CorruptModel, UnsupportedFormat
from legato_engine.weights.quantization.fields import Fields
from legato_engine.weights.quantization.formats import (
    CHANNEL,
    FP4_GROUP,
    INTEGERS,
    TENSOR,
    Activations,
    Element,
    Format,
    LayerRule,
    Layout,
    Quantization,
    Tile,
    group,
)

METHOD = "compressed-tensors"
_NAIVE = "naive-quantized"  # an older name of float-quantized and int-quantized
_FP4 = "mxfp4-pack-quantized"
_FORMATS = ("float-quantized", "int-quantized", "pack-quantized", _FP4, _NAIVE)
_MIXED = "mixed-precision"  # each group names its format
_BLOCK = 128


def read(fields: Fields) -> Quantization:
    """Layers of `ignore` are not quantized. Otherwise a name comes before a pattern, and a pattern before a class.

    Of `kv_cache_scheme` only the presence is read: workers choose the format of KV, and `kv_scales` has the scales."""
    fields.without("transform_config")
    if (sparsity := fields.part("sparsity_config")) is not None:
        sparsity.choice("format", ("dense",), "dense")
    groups = fields.part("config_groups")
    if groups is None or not groups.values:
        if fields.part("kv_cache_scheme") is not None:
            return Quantization(METHOD, ())
        raise CorruptModel(f"{fields.where}: config_groups is missing; at least one group is needed")
    rules, names = list[LayerRule](), list[str]()
    for part in groups.parts():
        name, given = _format(part, fields)
        names.append(name)
        rules += [LayerRule(part.target(target), given) for target in part.texts("targets")]
    ignored = [LayerRule(fields.target(target), None) for target in fields.texts("ignore")]
    method = f"{METHOD} {', '.join(dict.fromkeys(names))}"
    return Quantization(method, (*ignored, *sorted(rules, key=_precedence)))


def _precedence(rule: LayerRule) -> int:
    if rule.target.startswith("re:"):
        return 1
    return 2 if rule.target in ("Linear", "Embedding") else 0


def _format(part: Fields, fields: Fields) -> tuple[str, Format]:
    """The name and the format of a group."""
    named = part if part.values.get("format") or fields.values.get("format") == _MIXED else fields
    name = named.choice("format", _FORMATS)
    weights = part.part("weights")
    if weights is None:
        raise UnsupportedFormat(f"{part.where}: weights is missing: only quantized weights are supported")
    weights.choice("dynamic", (False,), default=False)
    if name == _NAIVE:
        name = f"{weights.choice('type', ('float', 'int'), 'int')}-quantized"
    activations = _activations(part, (4, 8) if name == _FP4 else (8,))
    tile, zero_points = _tile(weights), not weights.flag("symmetric", default=True)
    if name == "float-quantized":
        weights.choice("type", ("float",))
        weights.choice("num_bits", (8,))
        weights.choice("symmetric", (True,), default=True)
        return name, Format(Layout.DENSE, Element.FLOAT8, (tile,), activations=activations)
    if name == _FP4:
        weights.choice("type", ("float",))
        weights.choice("num_bits", (4,))
        weights.choice("symmetric", (True,), default=True)
        weights.choice("group_size", (FP4_GROUP,))
        return name, Format(Layout.FP4_PACKED, Element.FLOAT4, (tile,), activations=activations)
    weights.choice("type", ("int",), "int")
    packed = name == "pack-quantized"
    element = INTEGERS[weights.choice("num_bits", tuple(INTEGERS) if packed else (8,))]
    return name, Format(Layout.PACKED if packed else Layout.DENSE, element, (tile,), zero_points, activations)


def _activations(part: Fields, bits: tuple[int, ...]) -> Activations:
    if (inputs := part.part("input_activations")) is None:
        return Activations.NONE
    inputs.choice("num_bits", bits)
    dynamic = inputs.values.get("dynamic")  # true, false, or "local" with a static scale of scales
    return Activations.DYNAMIC if dynamic is True else Activations.STATIC


def _tile(weights: Fields) -> Tile:
    default = "tensor" if weights.values.get("group_size") is None else "group"
    strategy = weights.choice("strategy", ("tensor", "channel", "group", "block"), default)
    if strategy == "group":
        return group(weights.size("group_size"))
    if strategy == "block":
        size = weights.values.get("block_structure") or [_BLOCK, _BLOCK]
        if isinstance(size, str) and re.fullmatch(r"[0-9]+x[0-9]+", size):
            size = [int(part) for part in size.split("x")]
        if not isinstance(size, list) or len(size) != 2 or not all(type(each) is int and each > 0 for each in size):
            raise CorruptModel(f"{weights.where}: block_structure is {size!r}; two whole numbers above 0 are needed")
        return Tile(*size)
    return TENSOR if strategy == "tensor" else CHANNEL
