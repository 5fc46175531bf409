"""A Hugging Face folder with quantized weights. A weight is quantized if its dtype in the file says so, whatever
`quantization_config` lists."""

from collections.abc import Set as AbstractSet

from legato_engine.errors import CorruptModel
from legato_engine.weights.expected import expected_shapes
from legato_engine.weights.huggingface import DTYPES, HuggingFaceFolder
from legato_engine.weights.quantization import expert_blocks
from legato_engine.weights.quantization.checkpoint import QuantizedCheckpoint
from legato_engine.weights.quantization.formats import Layout, Quantization
from legato_engine.weights.quantization.layouts import CLASSES
from legato_engine.weights.quantization.stored import StoredWeight
from legato_engine.weights.quantization.weight import QuantizedWeight

_CODES = ("qweight", "weight_packed")  # tensors with these names always hold codes
# Scales of activations: never read, because kernels compute scales of their own.
_UNUSED = {"input_scale", "input_zero_point", "activation_scale", "output_scale"}


def read(folder: HuggingFaceFolder, quantization: Quantization) -> QuantizedCheckpoint:
    """Returns `folder` as a checkpoint. Reads headers only. Raises ModelError."""
    modules = (_module(folder, name) for name in sorted(folder.names()))
    stored = {f"{module}.weight": _weight(folder, module, quantization) for module in modules if module is not None}
    parts = {
        f"{name.removesuffix('.weight')}.{suffix}" for name, weight in stored.items() for suffix in weight.suffixes
    }
    weights: dict[str, QuantizedWeight] = {**stored}
    for module in expert_blocks.modules(folder):
        given = quantization.format_of(*folder.layer_names(module))
        if given is not None and given.layout is Layout.EXPERT_BLOCKS:
            weights |= expert_blocks.weights(folder, module, given)
            parts |= {f"{module}{suffix}" for suffix in (expert_blocks.BLOCKS, expert_blocks.SCALES)}
    floats = {name for name in folder.names() - parts if name.rpartition(".")[2] not in _UNUSED}
    floats -= _empty_biases(folder, weights.keys(), floats)
    for name in floats:
        folder.check(name)
    return QuantizedCheckpoint(folder, quantization, weights, floats)


def _empty_biases(folder: HuggingFaceFolder, quantized: AbstractSet[str], floats: AbstractSet[str]) -> set[str]:
    """Names of all-zero biases that the architecture lacks: early versions of AutoGPTQ wrote one for each layer."""
    names = {f"{name.removesuffix('.weight')}.bias" for name in quantized} & floats
    return {name for name in names - expected_shapes(folder.config).keys() if not folder.tensor(name).any()}


def _weight(folder: HuggingFaceFolder, module: str, quantization: Quantization) -> StoredWeight:
    given = quantization.format_of(*folder.layer_names(module))
    if given is None:
        raise CorruptModel(f"{folder.path}: {module} is quantized, although quantization_config excludes it")
    return CLASSES[given.layout](folder, module, given)


def _module(folder: HuggingFaceFolder, name: str) -> str | None:
    """The layer whose codes the tensor holds, or None."""
    module, _, suffix = name.rpartition(".")
    return module if suffix in _CODES or (suffix == "weight" and folder.dtype(name) not in DTYPES) else None
