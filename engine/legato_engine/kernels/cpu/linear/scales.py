"""Scales and minima of codes: float16, or int8 times a float16 factor for each 256 inputs, as in K-quants."""

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import overload

from legato_engine.kernels.cpu.simd.lanes import load_bytes, prefetch, times
from legato_engine.kernels.cpu.simd.vector import add, address, load_halves, multiply_add, zero
from legato_engine.kernels.tags import SCALES_FLOAT16, SCALES_INT8

_AHEAD = 4096  # bytes of codes


def _form(_values: Any) -> Any:
    """The tag of an array of scales. Numba has no float16, so these arrays are their bits in uint16."""


@overload(_form)
def _form_of(_values):
    if _values.dtype == types.uint16:
        return lambda _values: SCALES_FLOAT16
    return lambda _values: SCALES_INT8


def _scales(_form: Any, _values: Any, _factors: Any, _group: Any, _factor: Any) -> Any:
    """16 of a group; `_form` is a tag, `_factor` the number of the group's factor."""


@overload(_scales)
def _scales_by_form(_form, _values, _factors, _group, _factor):
    return _halves if _form == SCALES_FLOAT16.type else _products


def _halves(_form, _values, _factors, _group, _factor):
    return load_halves(_values + _group * 32)


def _products(_form, _values, _factors, _group, _factor):
    return multiply_add(load_bytes(_values + _group * 16), load_halves(_factors + _factor * 32), zero())


@njit(cache=True)
def of_panel(scales, panel):
    """The part of `scales` (values, factors, minima, factors) for a panel, as addresses: numba would count references
    to arrays in every group. The first is the tag of their form; the last is the binary logarithm of the groups that
    share a factor.
    """
    values, factors, minima, least_factors = scales
    size, power = values.itemsize * 16, 0
    while factors.shape[1] << power < values.shape[1]:
        power += 1
    return (
        _form(values),
        address(values) + panel * values.shape[1] * size,
        address(factors) + panel * factors.shape[1] * 32,
        address(minima) + panel * minima.shape[1] * size,
        address(least_factors) + panel * least_factors.shape[1] * 32,
        power,
    )


@njit(cache=True)
def scale_of(scales, group):
    """Scales of the 16 outputs of a panel for a group of inputs; `scales` are from `of_panel`."""
    form, values, factors, _, _, power = scales
    return _scales(form, values, factors, group, group >> power)


@njit(cache=True)
def minimum_of(scales, group):
    """Minima of the 16 outputs of a panel for a group of inputs."""
    form, _, _, minima, factors, power = scales
    return _scales(form, minima, factors, group, group >> power)


@njit(cache=True)
def scale_and_minimum(scales, group, four, summed):
    """The scale and the value of code 0 of 16 outputs with unsigned codes."""
    weight_scale = scale_of(scales, group)
    minimum = minimum_of(scales, group) if summed else zero()
    return weight_scale, minimum if four else add(times(weight_scale, np.float32(-128)), minimum)


@njit(cache=True)
def ask_ahead(codes, four, scales, group):
    """Prefetches codes far ahead, and the scales of `group`. One row reads weights only once, and the processor does
    not prefetch them early enough by itself.
    """
    for line in range(0, 256 if four else 512, 64):
        prefetch(codes + _AHEAD + line)
    _, values, _, minima, _, _ = scales
    prefetch(values + group * 32)
    prefetch(minima + group * 32)
