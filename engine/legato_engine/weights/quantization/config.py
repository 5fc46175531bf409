"""Reads `quantization_config` of a config.json into formats. No tensors, no torch."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from legato_engine.errors import UnsupportedFormat
from legato_engine.weights.config_file import CONFIG, read_json
from legato_engine.weights.quantization import compressed_tensors, methods
from legato_engine.weights.quantization.fields import Fields, at_top
from legato_engine.weights.quantization.formats import Quantization

_KEYS = ("quantization_config", "compression_config")  # the latter in early files of compressed-tensors
_EARLY_MODELOPT = "hf_quant_config.json"
_METHODS: Mapping[str, Callable[[Fields], Quantization]] = {
    "fp8": methods.fp8,
    "modelopt": methods.modelopt,
    "mxfp4": methods.mxfp4,
    compressed_tensors.METHOD: compressed_tensors.read,
    "gptq": methods.gptq,
    "awq": methods.awq,
}


def from_folder(path: Path, raw: Mapping[str, Any]) -> Quantization | None:
    """The quantization that a folder declares in its config.json, `raw`, or in the file of an early Model Optimizer;
    None if it declares none. Raises UnsupportedFormat or CorruptModel."""
    early = path / _EARLY_MODELOPT
    if (declared := read(raw, f"{path}/{CONFIG}")) is not None or not early.exists():
        return declared
    fields = at_top(read_json(early).get("quantization"), f"{early}: quantization")
    return None if fields.values.get("quant_algo") is None else methods.modelopt(fields)


def read(raw: Mapping[str, Any], source: str) -> Quantization | None:
    """The quantization that a `config.json` declares; None if it declares none. Raises UnsupportedFormat or
    CorruptModel, which name `source` and the key."""
    key = next((key for key in _KEYS if raw.get(key)), None)
    if key is None:
        return None
    fields = at_top(raw[key], f"{source}: {key}")
    method = fields.values.get("quant_method")
    if not isinstance(method, str) or method not in _METHODS:
        supported = f"{', '.join(_METHODS)}, plain safetensors, or a GGUF file"
        raise UnsupportedFormat(f"{fields.where}: quantization {method!r} is not supported; supported: {supported}")
    return _METHODS[method](fields)
