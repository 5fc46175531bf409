"""The ways in which a processor computes a model, one row each, best first.

`choose` takes the first row of AUTO whose instruction sets the processor has and whose sizes the model fits. Nothing is
measured: two workers on equal machines must choose alike, because they exchange KV.

To add an instruction set:

1. Detect it in `processor`: a field of `Processor` and a name in INSTRUCTION_SETS.
2. Write its kernels in `kernels.cpu.linear` and `kernels.cpu.attention`. A kernel with the arguments of an existing one
   is chosen by a tag, as in `linear.int8_products`; others are called in `backends.cpu` by `codes` and `linear_bf16`
   (linear layers) or `numerics` (attention).
3. Add a row here, and the output of `table` to docs/engine-cpu.md.
4. Increment `runner.runner.NUMERICS` only if an existing path computes other KV than before.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import takewhile
from typing import Any, Protocol

import numpy as np

from legato_engine.kernels.tags import AVX2, KV_BFLOAT16, KV_BFLOAT16_PAIRS, KV_FLOAT8, KV_FLOAT32, VNNI, Tag
from legato_engine.processor import INSTRUCTION_SETS, Processor

_SIZE_MULTIPLE = 32
FLOAT8 = "float8_e4m3fn"  # of KV; e4m3 with a scale for each layer and KV head
_GROUP = 32  # inputs that share a scale, for products of bytes


class WeightForm(Enum):
    """The form of weights in memory."""

    FLOAT32 = "float32"
    CODES = "the file's codes, else float32"
    TILES = "bfloat16 tiles and, for few rows, the file's codes"


class Product(Enum):
    """The operands of a linear layer's products."""

    CODES = "codes × float32"
    INT8 = "codes × 8-bit activations"
    PAIRS = "pairs of bfloat16"
    TILES = "bfloat16 tiles"
    FLOAT32 = "float32"


class AttentionProduct(Enum):
    """The operands of attention's products."""

    FLOAT32 = "float32"
    PAIRS = "pairs of bfloat16"
    TILES = "bfloat16 tiles"


class ModelSizes(Protocol):
    """The sizes of a model that kernels have requirements for."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def inner_sizes(self) -> Mapping[str, int]: ...
    @property
    def head_dim(self) -> int: ...


@dataclass(frozen=True, slots=True)
class LinearKernel:
    """A kernel of linear layers and what it takes: steps of up to `up_to` rows, weights held as codes of `bits` whose
    scales are shared by `group` inputs. Without `bits` it takes any weight, without `up_to` any step.
    """

    product: Product
    bits: tuple[int, ...] = ()
    group: int | None = None
    up_to: int | None = None
    family: Tag | None = None  # of instructions for products of bytes

    def takes(self, rows: int, bits: int | None, group: int | None) -> bool:
        return (
            (self.up_to is None or rows <= self.up_to)
            and (not self.bits or bits in self.bits)
            and (self.group is None or group == self.group)
        )

    def __str__(self) -> str:
        bits = "" if len(self.bits) > 1 else "".join(f"{bits}-bit" for bits in self.bits)  # "codes" covers all sizes
        limit = {None: "", 1: " (1 row)"}.get(self.up_to, f" (up to {self.up_to} rows)")
        return f"{bits} {self.product.value}{limit}".lstrip()


@dataclass(frozen=True, slots=True)
class Path:
    """One way to compute a model: its requirements, then its kernels. `kv` are the formats that attention reads, the
    default first; of `linear`, the first kernel that takes a weight and a step computes it.
    """

    name: str
    instructions: tuple[str, ...]  # fields of `Processor`
    block_multiple: int
    weights: WeightForm
    linear: tuple[LinearKernel, ...]
    attention: AttentionProduct
    kv: tuple[str, ...]

    def kernel(self, rows: int, bits: int | None = None, group: int | None = None) -> LinearKernel:
        """The kernel for a step of `rows` and a weight: `bits` and `group` of its codes, None without codes."""
        return next(kernel for kernel in self.linear if kernel.takes(rows, bits, group))

    @property
    def family(self) -> Tag | None:
        """The instructions for products of bytes, or None if activations are not rounded to 8 bits."""
        return self.linear[0].family

    @property
    def adapters(self) -> Tag:
        """The format of adapters' matrices: bfloat16, unless all weights are float32."""
        return KV_FLOAT32 if self.weights is WeightForm.FLOAT32 else KV_BFLOAT16

    def kv_tag(self, held: "np.dtype[Any]") -> Tag:
        """The tag of an arena that holds float32, bfloat16 as uint16, or e4m3 as uint8."""
        if held == np.float32:
            return KV_FLOAT32
        if held == np.uint8:
            return KV_FLOAT8
        return KV_BFLOAT16_PAIRS if self.attention is AttentionProduct.PAIRS else KV_BFLOAT16

    def keeps_codes(self, bits: int, table: bool) -> bool:
        """True if codes of a weight stay in memory; `table` is an embedding or output head."""
        return self.weights is WeightForm.CODES or (self.weights is WeightForm.TILES and (bits == 4 or table))

    def missing(self, processor: Processor) -> list[str]:
        """The instruction sets that `processor` lacks."""
        return [name for name in self.instructions if not getattr(processor, name)]

    def mismatch(self, sizes: ModelSizes, block_size: int) -> str | None:
        """The first size that is not a multiple of what the kernels take, in words; None if all are."""
        if block_size % self.block_multiple:
            return f"blocks of {block_size} tokens are not a multiple of {self.block_multiple}"
        given = {"hidden_size": sizes.hidden_size, **sizes.inner_sizes, "head_dim": sizes.head_dim}
        for name, size in given.items():
            if size % _SIZE_MULTIPLE:
                return f"{name} {size} is not a multiple of {_SIZE_MULTIPLE}"
        return None

    def __str__(self) -> str:
        return f"linear layers: {self.linear_text}; attention: {self.attention.value}; KV: {self.kv[0]}"

    @property
    def linear_text(self) -> str:
        return ", else ".join(map(str, self.linear))


_FEW_FROM_CODES = LinearKernel(Product.CODES, bits=(4, 8), up_to=32)  # more rows: dequantized once for all
_FLOAT32 = LinearKernel(Product.FLOAT32)

TILES = Path(
    "tiles", ("amx",), 16, WeightForm.TILES,
    (
        LinearKernel(Product.CODES, bits=(4, 8), up_to=2), LinearKernel(Product.PAIRS, up_to=1),
        LinearKernel(Product.TILES),
    ),
    AttentionProduct.TILES, ("bfloat16",),
)  # fmt: skip
_VNNI = LinearKernel(Product.INT8, bits=(4, 8), group=_GROUP, family=VNNI)
INT8_BF16 = Path(
    "int8-bf16", ("vnni", "bf16"), 4, WeightForm.CODES,
    (_VNNI, _FEW_FROM_CODES, _FLOAT32), AttentionProduct.PAIRS, ("bfloat16", "float32", FLOAT8),
)  # fmt: skip
INT8 = Path(
    "int8", ("vnni",), 4, WeightForm.CODES,
    (_VNNI, _FEW_FROM_CODES, _FLOAT32), AttentionProduct.FLOAT32, ("bfloat16", "float32", FLOAT8),
)  # fmt: skip
INT8_AVX2 = Path(
    "int8-avx2", ("avx2",), 4, WeightForm.CODES,
    (LinearKernel(Product.INT8, bits=(4,), group=_GROUP, family=AVX2), _FEW_FROM_CODES, _FLOAT32),
    AttentionProduct.FLOAT32, ("bfloat16", "float32", FLOAT8),
)  # fmt: skip
CODES = Path(
    "codes", (), 4, WeightForm.CODES, (_FEW_FROM_CODES, _FLOAT32), AttentionProduct.FLOAT32,
    ("float32", "bfloat16", FLOAT8),
)  # fmt: skip
AUTO = (TILES, INT8_BF16, INT8, INT8_AVX2, CODES)

# For `dtype: Float32` only.
FLOAT32 = Path(
    "float32", (), 4, WeightForm.FLOAT32, (_FLOAT32,), AttentionProduct.FLOAT32, ("float32", "bfloat16", FLOAT8)
)


def choose(processor: Processor, sizes: ModelSizes, block_size: int, kv: str | None = None) -> tuple[Path | None, str]:
    """Returns the best path for `dtype: Auto` and the reason; without a path, the size that no kernel takes.

    `kv` is the format of KV; None: any."""
    mismatches = dict[str, str]()
    for path in AUTO:
        if path.missing(processor):
            continue
        mismatch = path.mismatch(sizes, block_size)
        if mismatch is None and kv not in (None, *path.kv):
            mismatch = f"its KV is {' or '.join(path.kv)}"
        if mismatch is None:
            faster = "".join(f"; `{name}` would be faster: {reason}" for name, reason in mismatches.items())
            return path, f"{path}{faster} ({processor})"
        mismatches[path.name] = mismatch
    return None, mismatches[AUTO[-1].name]


def faster(processor: Processor) -> list[str]:
    """The paths that `processor` lacks instructions for and that are better than the best one it has them for."""
    lacking = takewhile(lambda path: path.missing(processor), AUTO)
    return [f"{path.name} ({_sets(path.missing(processor))})" for path in lacking]


def table() -> Iterator[str]:
    """The rows of AUTO and FLOAT32 as a table in Markdown, for docs/engine-cpu.md."""
    yield "| path | instruction sets | blockSize a multiple of | weights | linear layers | attention | KV |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for path in (*AUTO, FLOAT32):
        sets = _sets(path.instructions) or "any"
        cells = (
            f"`{path.name}`", sets, path.block_multiple, path.weights.value, path.linear_text, path.attention.value,
            ", ".join(path.kv),
        )  # fmt: skip
        yield f"| {' | '.join(map(str, cells))} |"


def _sets(names: Sequence[str]) -> str:
    return ", ".join(INSTRUCTION_SETS[name] for name in names)
