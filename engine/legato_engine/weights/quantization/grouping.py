"""Codes, scales and zero points of a quantized weight, by groups of inputs."""

import torch

from legato_engine.weights.grouped import ZERO, Grouped
from legato_engine.weights.packed import Scales
from legato_engine.weights.quantization.formats import Element

_MIDDLE = 128  # the zero point of symmetric 8-bit codes that the file stores as unsigned
_LARGEST = {Element.FLOAT8: 448, Element.INT8: 255, Element.INT4: 15}  # distance between a code and its zero point
_NAN = 0x7F  # the bits of e4m3's NaN, without the sign


def grouped(
    element: Element, codes: torch.Tensor, group: int, scale: torch.Tensor, zeros: torch.Tensor | None,
    columns: torch.Tensor | None,
) -> Grouped:  # fmt: skip
    """Groups codes [out, in] with scale and zeros, float32 [out, groups]. `columns`, int64 [in], has the group of each
    input; all groups have the same size. Raises ValueError if a code or weight is not finite."""
    if element is Element.FLOAT8 and ((codes.view(torch.uint8) & _NAN) == _NAN).any():
        raise ValueError("a code is NaN")
    if not (scale.abs().max() * _LARGEST[element]).isfinite():
        raise ValueError("a weight is infinite")
    zero = 0 if zeros is None else ZERO[element]
    zeros = None if zeros is None else zeros.to(torch.int16)
    if element is Element.INT8 and codes.dtype == torch.uint8:
        codes = (codes ^ _MIDDLE).view(torch.int8)
        zeros = None if zeros is None else zeros - _MIDDLE
    if zeros is not None and (zeros == ZERO[element]).all():
        zeros = None
    order = None
    if columns is not None:
        order = columns.argsort(stable=True)
        codes = codes[:, order]
    return Grouped(
        element, codes.contiguous(), group, Scales(scale.to(scale_dtype(element, scale))), zero,
        None if zeros is None else zeros.to(torch.int8), order=None if order is None else order.int(),
    )  # fmt: skip


def scale_dtype(element: Element, scale: torch.Tensor) -> torch.dtype:
    """A 16-bit dtype that represents all scales exactly, else float32, which products with FP8 always need."""
    if element is Element.FLOAT8:
        return torch.float32
    halves = (torch.float16, torch.bfloat16)
    return next((dtype for dtype in halves if torch.equal(scale.to(dtype).float(), scale)), torch.float32)


def symmetric(element: Element, zeros: torch.Tensor | None) -> bool:
    """True if `grouped` needs no zero points, because all are the element's `ZERO`."""
    return zeros is None or any(bool((zeros == middle).all()) for middle in _middles(element))


def _middles(element: Element) -> tuple[int, ...]:
    return (0, _MIDDLE) if element is Element.INT8 else (ZERO[element],)


def has_equal_groups(columns: torch.Tensor, group: int) -> bool:
    """True if each group has `group` inputs, in any order."""
    return bool((columns.bincount() == group).all())
