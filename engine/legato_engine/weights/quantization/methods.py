"""Methods of `quantization_config` whose layers have one format: fp8, modelopt, mxfp4, gptq and awq.

Keys as transformers, AutoFP8, Model Optimizer, GPTQModel and AutoAWQ write them. The lists of layers that are not
quantized (`modules_to_not_convert`, `ignored_layers`, `lm_head`) are not read, because each tool matches names in its
own way: a layer with a floating-point `weight` in the file is not quantized.
"""

from legato_engine.errors import CorruptModel
from legato_engine.weights.quantization.fields import Fields
from legato_engine.weights.quantization.formats import (
    CHANNEL,
    EVERY,
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

_BLOCK = 128  # of fp8, unless weight_block_size says otherwise
_GROUP = 128


def fp8(fields: Fields) -> Quantization:
    """DeepSeek's blocks, or a scale per tensor or output. Without `weight_block_size`, tools differ in the default: the
    scales in the file decide."""
    fields.choice("fmt", ("e4m3", "float8_e4m3fn"), "e4m3")
    activations = Activations(fields.choice("activation_scheme", ("dynamic", "static"), "dynamic"))
    size = fields.values.get("weight_block_size")
    tiles = (TENSOR, CHANNEL, Tile(_BLOCK, _BLOCK)) if size is None else (_block(size, fields.where),)
    return Quantization(
        "fp8", (LayerRule(EVERY, Format(Layout.DENSE, Element.FLOAT8, tiles, activations=activations)),)
    )


def modelopt(fields: Fields) -> Quantization:
    """NVIDIA's Model Optimizer: a scale per tensor for static activations, or per output for dynamic ones."""
    algorithm = fields.choice("quant_algo", ("FP8", "FP8_PER_CHANNEL_PER_TOKEN"))
    tile, activations = (TENSOR, Activations.STATIC) if algorithm == "FP8" else (CHANNEL, Activations.DYNAMIC)
    given = Format(Layout.DENSE, Element.FLOAT8, (tile,), activations=activations)
    return Quantization("modelopt", (LayerRule(EVERY, given),))


def _block(size: object, where: str) -> Tile:
    if isinstance(size, list) and len(size) == 2:
        outputs, inputs = size
        if type(outputs) is int and type(inputs) is int and outputs > 0 and inputs > 0:
            return Tile(outputs, inputs)
    raise CorruptModel(f"{where}: weight_block_size is {size!r}; two whole numbers above 0 are needed")


def mxfp4(fields: Fields) -> Quantization:
    """Experts of gpt-oss; no other layer is quantized."""
    given = Format(Layout.EXPERT_BLOCKS, Element.FLOAT4, (group(FP4_GROUP),))
    return Quantization("mxfp4", (LayerRule(EVERY, given),))


def gptq(fields: Fields) -> Quantization:
    """`dynamic` changes single layers; a `-:` before its pattern leaves them unquantized."""
    layout = _gptq_layout(fields)
    rules = list[LayerRule]()
    if (dynamic := fields.part("dynamic")) is not None:
        for pattern in dynamic.values:
            target = dynamic.target(f"re:{pattern.removeprefix('-:').removeprefix('+:')}")
            if pattern.startswith("-:"):
                rules.append(LayerRule(target, None))
            else:
                change = dynamic.part(pattern)
                changed = Fields({**fields.values, **(change.values if change else {})}, f"{dynamic.where}: {pattern}")
                rules.append(LayerRule(target, _gptq_format(changed, layout)))
    return Quantization("gptq", (*rules, LayerRule(EVERY, _gptq_format(fields, layout))))


def _gptq_layout(fields: Fields) -> Layout:
    fields.without("is_marlin_format")
    fields.without("adapter")  # a low-rank correction of the weights
    fields.choice("pack_dtype", ("int32",), "int32")
    key = "format" if fields.values.get("checkpoint_format") is None else "checkpoint_format"
    return Layout(fields.choice(key, (Layout.GPTQ.value, Layout.GPTQ_V2.value), Layout.GPTQ.value))


def _gptq_format(fields: Fields, layout: Layout) -> Format:
    """Zero points are read from the file, which has them in any case."""
    symmetric = fields.flag("sym", default=True)
    element = INTEGERS[fields.choice("bits", tuple(INTEGERS))]
    tile = group(fields.size("group_size", _GROUP))
    act_order = fields.flag("desc_act", default=False) and tile != CHANNEL
    return Format(layout, element, (tile,), not symmetric, act_order=act_order)


def awq(fields: Fields) -> Quantization:
    """The format is `version` for AutoAWQ, and `format` for transformers 5; `backend` is the kernel. The file has zero
    points in any case."""
    key = "format" if fields.values.get("version") is None else "version"
    fields.choice(key, ("gemm", "GEMM"), "gemm")
    fields.flag("zero_point", default=True)
    element = INTEGERS[fields.choice("bits", (4,), 4)]
    tile = group(fields.size("group_size", _GROUP))
    return Quantization("awq", (LayerRule(EVERY, Format(Layout.AWQ, element, (tile,), True)),))
