"""Keys and values of an arena as float32 registers, from float32, bfloat16 or e4m3.

32 neighbouring numbers are two registers. Registers of bfloat16 are the even numbers and the odd ones, which takes one
instruction each. Queries have the same order, and so have weighted values until `put_back`. `_kv` is the arena's tag:
KV_FLOAT32, KV_BFLOAT16, KV_BFLOAT16_PAIRS or KV_FLOAT8; memory is given by address. Registers of e4m3 hold the numbers
divided by `float8.READ_SCALE`.
"""

from typing import Any

from llvmlite import ir
from numba import njit
from numba.extending import intrinsic, overload

from legato_engine.kernels.cpu.simd.float8 import load_codes
from legato_engine.kernels.cpu.simd.lanes import times
from legato_engine.kernels.cpu.simd.vector import REGISTER, load, store
from legato_engine.kernels.tags import KV_FLOAT8, KV_FLOAT32

_LANES = ir.VectorType(ir.IntType(32), 16)


@intrinsic
def _lower(_context: Any, words: Any) -> Any:
    """The lower halves of 16 words, which are bfloat16, as floats."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.shl(values[0], ir.Constant(_LANES, [16] * 16))

    return REGISTER(REGISTER), emit


@intrinsic
def _upper(_context: Any, words: Any) -> Any:
    """The upper halves."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.and_(values[0], ir.Constant(_LANES, [0xFFFF0000] * 16))

    return REGISTER(REGISTER), emit


def _picked(name: str, order: list[int]) -> Any:
    """The lanes `order` of two registers, one after the other."""

    def typing(_context: Any, a: Any, b: Any) -> Any:
        def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
            return builder.shuffle_vector(*values, ir.Constant(_LANES, order))

        return REGISTER(REGISTER, REGISTER), emit

    typing.__name__ = name
    return intrinsic(typing)


_even = _picked("_even", [*range(0, 32, 2)])
_odd = _picked("_odd", [*range(1, 32, 2)])
_early = _picked("_early", [lane + which * 16 for lane in range(8) for which in range(2)])
_late = _picked("_late", [lane + which * 16 for lane in range(8, 16) for which in range(2)])


def bytes_of(_kv: Any) -> Any:
    """Bytes of one number."""


def first(_kv: Any, _at: Any) -> Any:
    """The first register of 32 numbers."""


def second(_kv: Any, _at: Any) -> Any:
    """The other one."""


def widen(_kv: Any, _held: Any, _distance: Any, _count: Any, _dim: Any, _room: Any, _numbers: Any) -> Any:
    """Writes to _numbers the addresses of float32 [4, dim], in the order of registers, for the numbers `_distance`
    bytes from the addresses `_held`, of `_count` positions. Other formats are widened into `_room`.
    """


def arrange(_kv: Any, _source: Any, _dim: Any, _by: Any, _target: Any) -> Any:
    """Writes _source float32 [dim] times `_by` in the order of registers."""


def put_back(_kv: Any, _source: Any, _dim: Any, _by: Any, _target: Any) -> Any:
    """Writes _source float32 [dim], in the order of registers, times `_by` in the original order."""


def _in_order(kv: Any) -> bool:
    """True if registers have the order of memory."""
    return kv in (KV_FLOAT32.type, KV_FLOAT8.type)


@overload(bytes_of)
def _bytes_of(_kv):
    if _kv == KV_FLOAT8.type:
        return lambda _kv: 1
    return (lambda _kv: 4) if _in_order(_kv) else lambda _kv: 2


@overload(first)
def _first(_kv, _at):
    if _kv == KV_FLOAT8.type:
        return lambda _kv, _at: load_codes(_at)
    return (lambda _kv, _at: load(_at)) if _in_order(_kv) else lambda _kv, _at: _lower(load(_at))


@overload(second)
def _second(_kv, _at):
    if _kv == KV_FLOAT8.type:
        return lambda _kv, _at: load_codes(_at + 16)
    return (lambda _kv, _at: load(_at + 64)) if _in_order(_kv) else lambda _kv, _at: _upper(load(_at))


@overload(widen)
def _widen(_kv, _held, _distance, _count, _dim, _room, _numbers):
    return _offset if _kv == KV_FLOAT32.type else _widen_all


@overload(arrange)
def _arrange(_kv, _source, _dim, _by, _target):
    if _in_order(_kv):
        return lambda _kv, _source, _dim, _by, _target: _copy(_source, _dim, _by, _target)
    return lambda _kv, _source, _dim, _by, _target: _separate(_source, _dim, _by, _target)


@overload(put_back)
def _put_back(_kv, _source, _dim, _by, _target):
    if _in_order(_kv):
        return lambda _kv, _source, _dim, _by, _target: _copy(_source, _dim, _by, _target)
    return lambda _kv, _source, _dim, _by, _target: _interleave(_source, _dim, _by, _target)


def _offset(_kv, _held, _distance, _count, _dim, _room, _numbers):
    for four in range((_count + 3) // 4):
        _numbers[four] = _held[four] + _distance


def _widen_all(_kv, _held, _distance, _count, _dim, _room, _numbers):
    to = _room
    for four in range((_count + 3) // 4):
        at, _numbers[four] = _held[four] + _distance, to
        for _ in range(0, 4 * _dim, 32):
            store(to, first(_kv, at))
            store(to + 64, second(_kv, at))
            at += 32 * bytes_of(_kv)
            to += 128


@njit(cache=True)
def _copy(source, dim, factor, target):
    for at in range(0, dim * 4, 64):
        store(target + at, times(load(source + at), factor))


@njit(cache=True)
def _separate(source, dim, factor, target):
    for at in range(0, dim * 4, 128):
        a, b = times(load(source + at), factor), times(load(source + at + 64), factor)
        store(target + at, _even(a, b))
        store(target + at + 64, _odd(a, b))


@njit(cache=True)
def _interleave(source, dim, factor, target):
    for at in range(0, dim * 4, 128):
        a, b = times(load(source + at), factor), times(load(source + at + 64), factor)
        store(target + at, _early(a, b))
        store(target + at + 64, _late(a, b))
