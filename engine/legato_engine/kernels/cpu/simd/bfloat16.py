"""Operations on registers of bfloat16 for numba: rounding, pairing, reordering, and the weights of a softmax.

They compile for any processor. A rounded number may be stored as a float, whose lower half is zero.
"""

from typing import Any

from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic

from legato_engine.kernels.cpu.simd.lanes import BIAS
from legato_engine.kernels.cpu.simd.vector import REGISTER

_FLOATS, _WORDS = ir.VectorType(ir.FloatType(), 16), ir.VectorType(ir.IntType(32), 16)
_HALVES = ir.VectorType(ir.IntType(16), 32)

# 2^x for x in -½ … ½, highest power first: the polynomial of least relative error (1e-4, a fortieth of the error of
# rounding to bfloat16) among those that are 1 at 0.
_POWER = (5.500893117e-2, 2.4221096e-1, 6.932829271e-1, 1.0)


def _all(word: int) -> ir.Constant:
    return ir.Constant(_WORDS, [word] * 16)


@intrinsic
def narrowed(_context: Any, value: Any) -> Any:
    """Rounds 16 floats to bfloat16, ties to even, stored as floats. NaN stays NaN."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        even = builder.and_(builder.lshr(values[0], _all(16)), _all(1))
        rounded = builder.add(values[0], builder.add(even, _all(0x7FFF)))
        magnitude = builder.and_(values[0], _all(0x7FFFFFFF))
        is_nan = builder.icmp_unsigned(">", magnitude, _all(0x7F800000))
        return builder.and_(builder.select(is_nan, builder.or_(values[0], _all(0x400000)), rounded), _all(0xFFFF0000))

    return REGISTER(REGISTER), emit


@intrinsic
def weight(_context: Any, x: Any) -> Any:
    """2 to the x for 16 floats x of at most 0, rounded to bfloat16, stored as floats.

    The result is 0 for x of -127 or less. NaN stays NaN if its lower half is zero, as in any product of bfloat16.
    """

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        def constant(value: float) -> Any:
            return ir.Constant(_FLOATS, [value] * 16)

        x, least = builder.bitcast(values[0], _FLOATS), constant(-127.0)
        x = builder.select(builder.fcmp_ordered(">", least, x), least, x)
        # The method of `lanes.power_of_two`.
        whole = builder.fadd(x, constant(BIAS + 127))
        rest = builder.fsub(x, builder.fsub(whole, constant(BIAS + 127)))
        kind = ir.FunctionType(_FLOATS, [_FLOATS] * 3)
        fused = cgutils.get_or_insert_function(builder.module, kind, "llvm.fma.v16f32")
        sum_ = constant(_POWER[0])
        for coefficient in _POWER[1:]:
            sum_ = builder.call(fused, [sum_, rest, constant(coefficient)])
        exponent = builder.bitcast(builder.shl(builder.bitcast(whole, _WORDS), _all(23)), _FLOATS)
        power = builder.bitcast(builder.fmul(sum_, exponent), _WORDS)
        return builder.and_(builder.add(power, _all(0x8000)), _all(0xFFFF0000))  # ties away from 0

    return REGISTER(REGISTER), emit


@intrinsic
def paired(_context: Any, first: Any, second: Any) -> Any:
    """Two registers of rounded floats in one: `first` in the lower halves."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.or_(builder.lshr(values[0], _all(16)), values[1])

    return REGISTER(REGISTER, REGISTER), emit


@intrinsic
def even_pairs(_context: Any, first: Any, second: Any) -> Any:
    """Pairs of the lower halves of two registers of 16 words; the halves of `first` stay lower halves."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.or_(builder.and_(values[0], _all(0xFFFF)), builder.shl(values[1], _all(16)))

    return REGISTER(REGISTER, REGISTER), emit


@intrinsic
def odd_pairs(_context: Any, first: Any, second: Any) -> Any:
    """Pairs of the upper halves of two registers of 16 words; the halves of `second` stay upper halves."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.or_(builder.lshr(values[0], _all(16)), builder.and_(values[1], _all(0xFFFF0000)))

    return REGISTER(REGISTER, REGISTER), emit


@intrinsic
def neighbours(_context: Any, rounded: Any) -> Any:
    """Pairs of neighbouring rounded floats. Each even word has its float and the next one; odd words are not used."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        odd = ir.Constant(_WORDS, [lane | 1 for lane in range(16)])
        return builder.or_(builder.lshr(values[0], _all(16)), builder.shuffle_vector(values[0], values[0], odd))

    return REGISTER(REGISTER), emit


def _shuffled(name: str, kind: Any, order: list[int]) -> Any:
    """Returns an intrinsic that selects the elements `order` of two concatenated registers of `kind`."""

    def typing(_context: Any, a: Any, b: Any) -> Any:
        def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
            mask = ir.Constant(ir.VectorType(ir.IntType(32), len(order)), order)
            both = (builder.bitcast(value, kind) for value in values)
            return builder.bitcast(builder.shuffle_vector(*both, mask), _WORDS)

        return REGISTER(REGISTER, REGISTER), emit

    typing.__name__ = name
    return intrinsic(typing)


# Packs two registers of rounded floats into one of 32 bfloat16, in order.
packed = _shuffled("packed", _HALVES, [*range(1, 64, 2)])

# Interleave two registers of 32 bfloat16: `early_pairs` the first 4 of each 8, `late_pairs` the last 4. Each is one
# instruction; an order across all 32 would take more.
_FIRST = [quarter + i + which * 32 for quarter in range(0, 32, 8) for i in range(4) for which in range(2)]
early_pairs = _shuffled("early_pairs", _HALVES, _FIRST)
late_pairs = _shuffled("late_pairs", _HALVES, [place + 4 for place in _FIRST])

# Restore the order of results that were computed from `early_pairs` and `late_pairs`: numbers 0 … 15 and 16 … 31.
_IN_ORDER = [quarter + i + which * 16 for quarter in range(0, 16, 4) for which in range(2) for i in range(4)]
first_in_order = _shuffled("first_in_order", _WORDS, _IN_ORDER[:16])
last_in_order = _shuffled("last_in_order", _WORDS, _IN_ORDER[16:])
