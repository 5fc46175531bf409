"""The number formats that a worker computes in. They follow from the processor's instruction sets, never from a
measurement: two workers on equal machines must choose alike, because they exchange KV.
"""

import functools
from dataclasses import dataclass, replace
from typing import Literal

import torch

from legato_engine.backends.cuda import products, support
from legato_engine.backends.cuda.device import Device
from legato_engine.backends.cuda.products import CodesProduct
from legato_engine.errors import UnusableFormat
from legato_engine.kernels import paths
from legato_engine.kernels.paths import FLOAT8, AttentionProduct, Path, WeightForm
from legato_engine.kernels.tags import KV_BFLOAT16
from legato_engine.models.config import ModelConfig
from legato_engine.processor import Processor
from legato_engine.weights.checkpoint import Checkpoint
from legato_engine.weights.expected import routed_projections

DTYPES = ("auto", "float32", "bfloat16", "float16")
_KV_NAMES = {"fp8": FLOAT8}  # of settings that differ from torch's names
_TABLES = ("model.embed_tokens", "lm_head")
_EMBEDDINGS = "model.embed_tokens.weight"  # on a GPU, always in 16 bits


@dataclass(frozen=True, slots=True)
class Formats:
    """The formats of a worker: `dtype` of weights and activations, `kv` of the arena. `why` is the reason in words.

    `path` selects kernels of the backend `cpu`, and `chip` kernels of the backend `cuda`. `fallback` is the reason why
    torch's own operators compute: kernels could not be compiled, or do not support the model."""

    name: str
    backend: Literal["cpu", "cuda", "torch"]
    dtype: torch.dtype
    kv: str
    why: str
    fallback: str = ""
    path: Path | None = None
    chip: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.why}"

    def value_bytes(self, checkpoint: Checkpoint, name: str) -> float:
        """Bytes of each value of the weight `name`."""
        codes = self._code_bytes(checkpoint, name)
        if self.path is not None and self.path.weights is WeightForm.TILES:
            return codes + 2
        return codes or self.dtype.itemsize

    @property
    def adapter_bytes(self) -> int:
        """Bytes of each number of an adapter."""
        return 2 if self.path is not None and self.path.adapters is KV_BFLOAT16 else self.dtype.itemsize

    def quantized(self, checkpoint: Checkpoint) -> str:
        """The format of the file's quantized weights and their form in memory, in words; empty if it has none."""
        names = sorted(checkpoint.quantized())
        if not names:
            return ""
        forms: dict[str, list[str]] = {}
        for name in names:
            forms.setdefault(self._form(checkpoint, name), []).append(name)
        parts = (f"{len(named)} {form.format(first=named[0])}" for form, named in forms.items())
        return f"{checkpoint.quantization}: of {len(names)} weights, {', '.join(parts)}"

    def products(self, checkpoint: Checkpoint) -> str:
        """Names of the GPU's products with codes. Workers whose products differ compute different KV."""
        chosen = {self.product(checkpoint, name) for name in checkpoint.quantized()}
        return ", ".join(sorted(product.large_steps.value for product in chosen if product is not None))

    def product(self, checkpoint: Checkpoint, name: str) -> CodesProduct | None:
        """The GPU's product with the codes of a weight; None: it is dequantized when it is loaded."""
        if self.backend != "cuda" or name == _EMBEDDINGS:
            return None
        routed = name.removesuffix(".weight") in _routed(replace(checkpoint.config, rope_scaling=None))
        table = products.EXPERTS if routed else products.TABLE
        return products.choose(checkpoint.grouped_form(name), checkpoint.shape(name), self.dtype, self.chip, table)

    def weights_fallback(self, checkpoint: Checkpoint) -> str:
        """The quantized weights that the GPU dequantizes, or multiplies with activations of 16 bits instead of 8, and
        the reason; empty if there are none."""
        if self.backend != "cuda":
            return ""
        names = sorted(checkpoint.quantized() - {_EMBEDDINGS})
        chosen = {name: self.product(checkpoint, name) for name in names}
        dequantized = [name for name, product in chosen.items() if product is None]
        wide = [name for name, product in chosen.items() if product and _keeps_inputs(checkpoint, name, product)]
        reasons = (
            (dequantized, f"dequantized, because their codes have no product on {self.chip}"),
            (
                wide,
                f"multiplied with activations of 16 bits instead of 8, for which they have no product on {self.chip}",
            ),
        )
        return "; ".join(f"weights {why}: {_first(named)}" for named, why in reasons if named)

    def _form(self, checkpoint: Checkpoint, name: str) -> str:
        """The form of a quantized weight in memory, in words; `{first}` stands for the first weight with that form."""
        to = str(self.dtype).removeprefix("torch.")
        if (product := self.product(checkpoint, name)) is not None:
            inputs = ", activations of 16 bits" if _keeps_inputs(checkpoint, name, product) else ""
            return f"kept as codes{inputs} (more than {product.most_rows} rows: {product.large_steps.value})"
        if self.path is not None and self.path.weights is WeightForm.TILES:
            codes = "kept as codes and " if self._code_bytes(checkpoint, name) else ""
            return f"{codes}dequantized to bfloat16"
        if self._code_bytes(checkpoint, name):
            return "kept as codes"
        why = f", without a kernel on {self.chip}: {{first}}"
        return f"dequantized to {to}{why if self.backend == 'cuda' and name != _EMBEDDINGS else ''}"

    def _code_bytes(self, checkpoint: Checkpoint, name: str) -> float:
        """Bytes of each value of the codes in memory, including scales; 0 if the weight is only dequantized."""
        if self.product(checkpoint, name) is not None and (form := checkpoint.grouped_form(name)) is not None:
            return form.bits / 8
        bits, path = checkpoint.packed_bits(name), self.path
        if not bits or path is None:
            return 0
        code_bits = 4 if bits < 8 else 8  # `bits` includes scales
        return bits / 8 if path.keeps_codes(code_bits, name.startswith(_TABLES)) else 0


def choose(
    dtype: str, processor: Processor, gpu: Device | None, config: ModelConfig, block_size: int, fallback: str = "",
    kv_dtype: str = "Auto",
) -> Formats:  # fmt: skip
    """The formats for settings of DTYPES and of KV_DTYPES in any case, on `gpu` or else the processor; `fallback` says
    why a GPU has no kernels. Raises ValueError for another setting, UnusableFormat if nothing computes the formats."""
    kv = _KV_NAMES.get(kv_dtype.lower(), kv_dtype.lower())
    return _with_kv(_choose(dtype.lower(), processor, gpu, config, block_size, fallback, kv), kv, kv_dtype)


def _choose(
    name: str, processor: Processor, gpu: Device | None, config: ModelConfig, block_size: int, fallback: str, kv: str
) -> Formats:
    if name not in DTYPES:
        raise ValueError(f"dtype {name!r} is not supported; supported: {', '.join(DTYPES)}")
    if gpu is not None:
        return _on_gpu(name, gpu, config, block_size, fallback)
    if name == "auto":
        path, why = paths.choose(processor, config, block_size, FLOAT8 if kv == FLOAT8 else None)
        if path is not None:
            return Formats(path.name, "cpu", torch.float32, path.kv[0], why, path=path)
        return _by_torch("float32", f"weights, activations and KV in float32 ({processor})", why)
    why = f"weights, activations and KV in {name}, as asked for"
    if name != "float32":
        return _by_torch(name, why)
    if mismatch := paths.FLOAT32.mismatch(config, block_size):
        return _by_torch(name, why, mismatch)
    return Formats(name, "cpu", torch.float32, name, why, path=paths.FLOAT32)


def _by_torch(dtype: str, why: str, fallback: str = "") -> Formats:
    because = f", by torch's own operators, which are slower: {fallback}" if fallback else ""
    return Formats(dtype, "torch", getattr(torch, dtype), dtype, f"{why}{because}", fallback)


def _on_gpu(name: str, gpu: Device, config: ModelConfig, block_size: int, fallback: str) -> Formats:
    if reason := support.mismatch(config, block_size):
        raise UnusableFormat(f"{reason}; {gpu.chip} computes {support.SUPPORTED}")
    supported = {str(dtype).removeprefix("torch."): dtype for dtype in gpu.dtypes}
    literal = next(iter(supported)) if name == "auto" else name
    if literal not in supported:
        raise UnusableFormat(f"dtype {literal} is not computed by {gpu.chip}; supported: auto, {', '.join(supported)}")
    why = f"weights, activations and KV in {literal} on {gpu.chip}"
    if fallback:
        why = f"{why}, by torch's own operators, which are slower: {fallback}"
        return Formats(f"{literal} by torch", "torch", supported[literal], literal, why, fallback)
    return Formats(literal, "cuda", supported[literal], literal, why, chip=gpu.chip)


def allowed(chosen: Formats, checkpoint: Checkpoint, on_kernel_failure: str) -> Formats:
    """Returns `chosen`. Raises UnusableFormat if slower operators would replace kernels and the policy forbids it, or
    if no kernel multiplies the experts of a layer together."""
    if chosen.backend == "cuda" and (mismatch := _mismatch_of_experts(chosen, checkpoint)):
        raise UnusableFormat(f"{checkpoint.path}: {mismatch}; on {chosen.chip}, experts of a layer must be alike")
    if on_kernel_failure == "Stop" and (fallback := chosen.fallback or chosen.weights_fallback(checkpoint)):
        raise UnusableFormat(f"no compiled kernels: {fallback}; allowed with onKernelFailure Auto or Torch")
    return chosen


def _mismatch_of_experts(chosen: Formats, checkpoint: Checkpoint) -> str:
    """Two experts of a layer with different formats, in words; empty if there are none. Reads no codes."""
    config = checkpoint.config
    for layer in range(config.layers):
        if config.experts is None or layer in config.experts.dense_layers:
            continue
        shape = config.experts.shape(config.architecture, config.hidden_size, layer)
        numbers = range(shape.routing.count)
        for names in ([each for number in numbers for each in shape.gate_up(number)], map(shape.down, numbers)):
            first, *others = (f"{name}.weight" for name in names)
            form = checkpoint.grouped_form(first)
            if form is None or chosen.product(checkpoint, first) is None:
                continue  # all are dequantized
            for name in others:
                if not form.fits(other := checkpoint.grouped_form(name)):
                    return (
                        f"{first} is quantized as {form}, but {name} {f'as {other}' if other else 'is not quantized'}"
                    )
    return ""


@functools.lru_cache(maxsize=1)
def _routed(config: ModelConfig) -> frozenset[str]:
    """`routed_projections`, which are the same for any `rope_scaling`: a mapping, which cannot be a key."""
    return routed_projections(config)


def _keeps_inputs(checkpoint: Checkpoint, name: str, product: CodesProduct) -> bool:
    """True if the product takes activations of 16 bits, although the weight was made for activations of 8 bits."""
    form = checkpoint.grouped_form(name)
    return form is not None and form.rounds_inputs and not product.fp8


def _first(names: list[str]) -> str:
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _with_kv(chosen: Formats, kv: str, setting: str) -> Formats:
    """`chosen` with KV in another format, given as `setting`. Raises UnusableFormat if kernels lack it."""
    if kv in ("auto", chosen.kv):
        return chosen
    supported = chosen.path.kv if chosen.path else (chosen.kv, FLOAT8)
    if kv not in supported:
        names = ", ".join("FP8" if name == FLOAT8 else name for name in supported)
        raise UnusableFormat(f"KV cannot be {setting} with {chosen}; allowed: Auto, {names}")
    exact = chosen.path is not None and chosen.path.attention is AttentionProduct.PAIRS  # only bfloat16 has pairs
    return replace(chosen, kv=kv, why=f"{chosen.why}; KV in {kv}{' and attention in float32' * exact} instead")
