"""The products of quantized weights that GPUs compute from their codes, one row each, best first.

`choose` returns the first row that takes a weight. Nothing is measured: two workers on equal machines must choose
alike, because they exchange KV. A weight that no row takes is dequantized when it is loaded.

To add a kernel, add a row here, a branch to `linear.CodesPart` or to `experts`, and the output of `table` to README.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import torch

from legato_engine.kernels.gpu.chips import has_float8
from legato_engine.kernels.gpu.linear.codes import LEAST_UNIT, CodeKind, unit_of
from legato_engine.weights.grouped import GroupedForm
from legato_engine.weights.quantization.formats import Element

KINDS = {
    Element.INT4: CodeKind.INT4,
    Element.INT8: CodeKind.INT8,
    Element.FLOAT8: CodeKind.FLOAT8,
    Element.FLOAT4: CodeKind.FLOAT4,
}


class LargeSteps(Enum):
    """The computation of steps with more rows than `CodesProduct.most_rows`."""

    SCALED_MM = "FP8 activations, by torch._scaled_mm"
    FP8 = "FP8 activations, by Triton"
    DEQUANTIZED = "weights dequantized to 16 bits in parts, by cuBLAS"
    REGISTERS = "weights dequantized to 16 bits in registers, by Triton"


@dataclass(frozen=True, slots=True)
class CodesProduct:
    """A way to multiply with codes, and its requirements. Steps of up to `most_rows`, of experts for each expert on
    average, multiply codes with activations of 16 bits, and larger ones as `large_steps` says. `unit` is the fewest
    neighbouring inputs that share a scale."""

    elements: tuple[Element, ...]
    most_rows: int
    large_steps: LargeSteps
    unit: int = LEAST_UNIT
    fp8: bool = False  # needs a chip that multiplies FP8, and a checkpoint made for activations of 8 bits
    whole: bool = False  # needs a scale for all inputs of an output, and sizes that are multiples of 16
    dtypes: tuple[torch.dtype, ...] = (torch.bfloat16, torch.float16, torch.float32)

    def takes(self, form: GroupedForm, outputs: int, inputs: int, dtype: torch.dtype, chip: str) -> bool:
        return (
            form.element in self.elements
            and dtype in self.dtypes
            and unit_of(KINDS[form.element], inputs, form.group) >= self.unit
            and (not self.fp8 or (form.rounds_inputs and has_float8(chip)))
            and (not self.whole or (form.group >= inputs and not inputs % 16 and not outputs % 16))
        )


_FP8 = (Element.FLOAT8,)
TABLE = (
    CodesProduct(_FP8, 32, LargeSteps.SCALED_MM, fp8=True, whole=True, dtypes=(torch.bfloat16,)),
    CodesProduct(_FP8, 32, LargeSteps.FP8, unit=32, fp8=True),
    CodesProduct((Element.INT4, Element.INT8, Element.FLOAT8, Element.FLOAT4), 128, LargeSteps.DEQUANTIZED),
)
EXPERTS = (
    CodesProduct(_FP8, 32, LargeSteps.FP8, unit=32, fp8=True),
    CodesProduct((Element.INT4, Element.INT8, Element.FLOAT8, Element.FLOAT4), 32, LargeSteps.REGISTERS),
)


def choose(
    form: GroupedForm | None, shape: tuple[int, ...], dtype: torch.dtype, chip: str,
    table: tuple[CodesProduct, ...] = TABLE,
) -> CodesProduct | None:  # fmt: skip
    """The best product of `table` for a weight [outputs, inputs] on a chip such as `sm_90`; None: it has to be
    dequantized."""
    if form is None or len(shape) != 2:
        return None
    return next((product for product in table if product.takes(form, *shape, dtype, chip)), None)


def table(rows: tuple[CodesProduct, ...] = TABLE) -> Iterator[str]:
    """The rows as a table in Markdown, for README.md."""
    yield "| weights | chips | codes with 16-bit activations up to | larger steps |"
    yield "| --- | --- | --- | --- |"
    for row in rows:
        weights = ", ".join(element.value for element in row.elements)
        if row.fp8:
            scales = "a scale per output" if row.whole else f"any{' other' if len(rows) > 2 else ''} scales"
            weights += f" for 8-bit activations, {scales}"
        chips = "from sm_89 on" if row.fp8 else "all"
        yield f"| {weights} | {chips} | {row.most_rows} rows | {row.large_steps.value} |"
