"""Codes, scales and zero points of a quantized weight, by groups of inputs."""

import torch

from legato_engine.weights.grouped import ZERO, Grouped
from legato_engine.weights.packed import Scales
from legato_engine.weights.quantization.formats import Element

_MIDDLE = 128  # of 8-bit codes that are not negative in the file
_LARGEST = {Element.FLOAT8: 448, Element.INT8: 255, Element.INT4: 15}  # distance of a code from its zero point
_NAN = 0x7F  # the bits of e4m3's NaN, without the sign


def grouped(
    element: Element, codes: torch.Tensor, group: int, scale: torch.Tensor, zeros: torch.Tensor | None,
    columns: torch.Tensor | None,
) -> Grouped:  # fmt: skip
    """codes [out, in], scale and zeros float32 [out, groups], `columns` int64 [in] the group of each input, all of one
    size. Raises ValueError, which says what value is not finite."""
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
    """16 bits if they represent all scales. Products of FP8 need float32."""
    if element is Element.FLOAT8:
        return torch.float32
    halves = (torch.float16, torch.bfloat16)
    return next((dtype for dtype in halves if torch.equal(scale.to(dtype).float(), scale)), torch.float32)


def symmetric(element: Element, zeros: torch.Tensor | None) -> bool:
    """True if `grouped` has no zero points: all are in the middle of the codes."""
    return zeros is None or any(bool((zeros == middle).all()) for middle in _middles(element))


def _middles(element: Element) -> tuple[int, ...]:
    return (0, _MIDDLE) if element is Element.INT8 else (ZERO[element],)


def regular(columns: torch.Tensor, group: int) -> bool:
    """True if each group has `group` inputs, in any order."""
    return bool((columns.bincount() == group).all())
