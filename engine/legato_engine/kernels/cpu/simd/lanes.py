"""Further operations for kernels in float32: codes to floats, powers of two, sums across registers. Any processor has
them.

A register of `vector` is 16 lanes of 32 bits; processors with narrower ones take two or four.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from legato_engine.kernels.cpu.simd.vector import REGISTER

_I8, _I32, _FLOAT = ir.IntType(8), ir.IntType(32), ir.FloatType()
_FLOATS, _LANES = ir.VectorType(_FLOAT, 16), ir.VectorType(_I32, 16)

BIAS = 12582912.0  # 1.5 · 2^23: floats near it are whole numbers, which stand in their lowest bits

# 2^x for x in -½ … ½, highest power first: a polynomial of least relative error (2e-9), fitted in float64.
_POWER = (1.5345811e-4, 1.33999312e-3, 9.618488961e-3, 5.5503287770e-2, 2.4022646895e-1, 6.93147205738e-1, 1.0)


def _everywhere(builder: Any, value: Any) -> Any:
    narrow = builder.trunc(value, _I32)
    first = builder.insert_element(ir.Constant(_LANES, ir.Undefined), narrow, ir.Constant(_I32, 0))
    mask = ir.Constant(ir.VectorType(_I32, 16), [0] * 16)
    return builder.shuffle_vector(first, ir.Constant(_LANES, ir.Undefined), mask)


def _splat(builder: Any, value: Any) -> Any:
    first = builder.insert_element(ir.Constant(_FLOATS, ir.Undefined), value, ir.Constant(_I32, 0))
    return builder.shuffle_vector(first, ir.Constant(_FLOATS, ir.Undefined), ir.Constant(_LANES, [0] * 16))


def _floats(builder: Any, values: Any) -> list[Any]:
    return [builder.bitcast(value, _FLOATS) for value in values]


def _larger(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def _folded(builder: Any, a: Any, b: Any, low: list[int], high: list[int]) -> Any:
    """The lanes `low` of a and b (16 … are lanes of b) plus their lanes `high`."""
    masks = (ir.Constant(ir.VectorType(_I32, 16), lanes) for lanes in (low, high))
    return builder.fadd(*(builder.shuffle_vector(a, b, mask) for mask in masks))


def _reduced(builder: Any, how: str, words: Any) -> Any:
    """One int32 of 16."""
    kind, name = ir.FunctionType(_I32, [_LANES]), f"llvm.vector.reduce.{how}.v16i32"
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [words])


@intrinsic
def masked_floats(_context: Any, words: Any, mask: Any) -> Any:
    """16 words, and `mask`, as floats."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        kept = builder.and_(values[0], _everywhere(builder, values[1]))
        return builder.bitcast(builder.sitofp(kept, _FLOATS), _LANES)

    return REGISTER(REGISTER, types.int64), emit


@intrinsic
def top_floats(_context: Any, words: Any) -> Any:
    """The highest 4 bits of 16 words as floats 0 … 15."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        shifted = builder.lshr(values[0], ir.Constant(_LANES, [28] * 16))
        return builder.bitcast(builder.sitofp(shifted, _FLOATS), _LANES)

    return REGISTER(REGISTER), emit


@intrinsic
def nibble_floats(_context: Any, words: Any, shift: Any) -> Any:
    """4 bits of 16 words, from bit `shift` on, as floats 0 … 15."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        shifted = builder.lshr(values[0], _everywhere(builder, values[1]))
        kept = builder.and_(shifted, ir.Constant(_LANES, [15] * 16))
        return builder.bitcast(builder.sitofp(kept, _FLOATS), _LANES)

    return REGISTER(REGISTER, types.int64), emit


@intrinsic
def load_bytes(_context: Any, address: Any) -> Any:
    """16 signed bytes as floats."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        pointer = builder.inttoptr(values[0], ir.PointerType(ir.VectorType(_I8, 16)))
        wide = builder.sext(builder.load(pointer, align=1), _LANES)
        return builder.bitcast(builder.sitofp(wide, _FLOATS), _LANES)

    return REGISTER(types.int64), emit


@intrinsic
def multiply(_context: Any, a: Any, b: Any) -> Any:
    """a · b of 16 floats."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.bitcast(builder.fmul(*_floats(builder, values)), _LANES)

    return REGISTER(REGISTER, REGISTER), emit


@intrinsic
def subtract(_context: Any, a: Any, b: Any) -> Any:
    """a - b of 16 floats."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.bitcast(builder.fsub(*_floats(builder, values)), _LANES)

    return REGISTER(REGISTER, REGISTER), emit


@intrinsic
def maximum(_context: Any, a: Any, b: Any) -> Any:
    """The larger of 16 floats each; b's where a is NaN."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.bitcast(_larger(builder, *_floats(builder, values)), _LANES)

    return REGISTER(REGISTER, REGISTER), emit


@intrinsic
def power_of_two(_context: Any, x: Any) -> Any:
    """2 to the x of 16 floats of at most 0, 0 below -127; NaN stays."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        def constant(value: float) -> Any:
            return ir.Constant(_FLOATS, [value] * 16)

        (x,) = _floats(builder, values)
        x = _larger(builder, constant(-127.0), x)
        # Numbers added to BIAS are rounded to integers. With 127 more, the lowest bits are the exponent, and 0 for
        # -127.
        rounded = builder.fadd(x, constant(BIAS + 127))
        rest = builder.fsub(x, builder.fsub(rounded, constant(BIAS + 127)))
        fused = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_FLOATS, [_FLOATS] * 3), "llvm.fma.v16f32"
        )
        sum_ = constant(_POWER[0])
        for coefficient in _POWER[1:]:
            sum_ = builder.call(fused, [sum_, rest, constant(coefficient)])
        exponent = builder.shl(builder.bitcast(rounded, _LANES), ir.Constant(_LANES, [23] * 16))
        return builder.bitcast(builder.fmul(sum_, builder.bitcast(exponent, _FLOATS)), _LANES)

    return REGISTER(REGISTER), emit


@intrinsic
def sums_of_quarters(_context: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """In each quarter of a register, the sums of that quarter of a, b, c and d."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        a, b, c, d = _floats(builder, values)
        low = [begin + i for begin in (0, 4, 8, 12) for i in (0, 16, 1, 17)]
        high = [lane + 2 for lane in low]
        ab, cd = _folded(builder, a, b, low, high), _folded(builder, c, d, low, high)
        low = [begin + i for begin in (0, 4, 8, 12) for i in (0, 1, 16, 17)]
        high = [lane + 2 for lane in low]
        return builder.bitcast(_folded(builder, ab, cd, low, high), _LANES)

    return REGISTER(REGISTER, REGISTER, REGISTER, REGISTER), emit


@intrinsic
def sum_of_quarters(_context: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """The sum of the quarters of a, then of b, of c and of d."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        a, b, c, d = _floats(builder, values)
        low, high = [*range(8), *range(16, 24)], [*range(8, 16), *range(24, 32)]
        ab, cd = _folded(builder, a, b, low, high), _folded(builder, c, d, low, high)
        low = [begin + i for begin in (0, 8, 16, 24) for i in range(4)]
        high = [lane + 4 for lane in low]
        return builder.bitcast(_folded(builder, ab, cd, low, high), _LANES)

    return REGISTER(REGISTER, REGISTER, REGISTER, REGISTER), emit


def _within_quarters(name: str, combine: Any) -> Any:
    """Each lane becomes what the four lanes of its quarter come to."""

    def typing(_context: Any, a: Any) -> Any:
        def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
            (a,) = _floats(builder, values)
            for distance in (1, 2):
                order = ir.Constant(ir.VectorType(_I32, 16), [lane ^ distance for lane in range(16)])
                a = combine(builder, a, builder.shuffle_vector(a, a, order))
            return builder.bitcast(a, _LANES)

        return REGISTER(REGISTER), emit

    typing.__name__ = name
    return intrinsic(typing)


sum_in_quarters = _within_quarters("sum_in_quarters", lambda builder, a, b: builder.fadd(a, b))
maximum_in_quarters = _within_quarters("maximum_in_quarters", _larger)


@intrinsic
def across(_context: Any, value: Any) -> Any:
    """The sum of 16 floats: halves are added, then halves of the sum, and so on."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        (a,) = _floats(builder, values)
        for distance in (8, 4, 2, 1):
            order = ir.Constant(_LANES, [(lane + distance) % 16 for lane in range(16)])
            a = builder.fadd(a, builder.shuffle_vector(a, a, order))
        return builder.extract_element(a, ir.Constant(_I32, 0))

    return types.float32(REGISTER), emit


def _prefetch(name: str, write: int, cache: int) -> Any:
    """Asks for the 64 bytes at an address, which are used soon."""

    def typing(_context: Any, address: Any) -> Any:
        def emit(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
            pointer = builder.inttoptr(values[0], ir.PointerType(_I8))
            kind = ir.FunctionType(ir.VoidType(), [pointer.type, _I32, _I32, _I32])
            ask = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
            builder.call(ask, [pointer, *(ir.Constant(_I32, value) for value in (write, 4 - cache, 1))])  # 1: data
            return context.get_dummy_value()

        return types.void(types.int64), emit

    typing.__name__ = name
    return intrinsic(typing)


prefetch = _prefetch("prefetch", 0, 2)  # into the second cache: it waits for more at a time
prefetch_to_write = _prefetch("prefetch_to_write", 1, 1)


@intrinsic
def nibbles(_context: Any, words: Any, shift: Any) -> Any:
    """The lower (`shift` 0) or upper (4) 4 bits of 64 bytes, each as a byte."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        shifted = builder.lshr(values[0], _everywhere(builder, values[1]))
        return builder.and_(shifted, ir.Constant(_LANES, [0x0F0F0F0F] * 16))

    return REGISTER(REGISTER, types.int64), emit


@intrinsic
def floats_of(_context: Any, words: Any) -> Any:
    """16 int32 as floats."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.bitcast(builder.sitofp(values[0], _FLOATS), _LANES)

    return REGISTER(REGISTER), emit


@intrinsic
def biased(_context: Any) -> Any:
    """16 times BIAS. An int32 below 2^22, added to its bits, is added to the float, too."""

    def emit(_context: Any, builder: Any, _signature: Any, _values: Any) -> Any:
        return builder.bitcast(ir.Constant(_FLOATS, [BIAS] * 16), _LANES)

    return REGISTER(), emit


@intrinsic
def load_quads(_context: Any, address: Any) -> Any:
    """64 signed bytes, 16 for each of four inputs, plus 128: the four of an output in a word."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        kind = ir.VectorType(_I8, 64)
        bytes_ = builder.load(builder.inttoptr(values[0], ir.PointerType(kind)), align=1)
        order = [given * 16 + output for output in range(16) for given in range(4)]
        shuffled = builder.shuffle_vector(bytes_, bytes_, ir.Constant(ir.VectorType(_I32, 64), order))
        return builder.bitcast(builder.xor(shuffled, ir.Constant(kind, [0x80] * 64)), _LANES)

    return REGISTER(types.int64), emit


@intrinsic
def evens_first(_context: Any, words: Any) -> Any:
    """Each 8 words with the even ones before the odd ones."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        order = [half + i for half in (0, 8) for i in (0, 2, 4, 6, 1, 3, 5, 7)]
        return builder.shuffle_vector(values[0], values[0], ir.Constant(_LANES, order))

    return REGISTER(REGISTER), emit


@intrinsic
def times(_context: Any, value: Any, factor: Any) -> Any:
    """16 floats times `factor`."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.bitcast(builder.fmul(builder.bitcast(values[0], _FLOATS), _splat(builder, values[1])), _LANES)

    return REGISTER(REGISTER, types.float32), emit


@intrinsic
def largest(_context: Any, a: Any, b: Any) -> Any:
    """The largest absolute value of 32 floats. A NaN is larger than all numbers."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        # Without their signs, floats are in the order of their bits.
        bits = [builder.and_(value, ir.Constant(_LANES, [0x7FFFFFFF] * 16)) for value in values]
        both = builder.select(builder.icmp_signed(">", *bits), *bits)
        return builder.bitcast(_reduced(builder, "smax", both), _FLOAT)

    return types.float32(REGISTER, REGISTER), emit


@intrinsic
def sum_of(_context: Any, a: Any, b: Any) -> Any:
    """The sum of 32 int32."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return _reduced(builder, "add", builder.add(*values))

    return types.int32(REGISTER, REGISTER), emit


@intrinsic
def put_float(_context: Any, address: Any, value: Any) -> Any:
    """One float32."""

    def emit(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        builder.store(values[1], builder.inttoptr(values[0], ir.PointerType(_FLOAT)), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.float32), emit


@intrinsic
def rounded(_context: Any, value: Any) -> Any:
    """16 floats as the nearest int32, ties to even."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        kind = ir.FunctionType(_FLOATS, [_FLOATS])
        near = cgutils.get_or_insert_function(builder.module, kind, "llvm.rint.v16f32")
        return builder.fptosi(builder.call(near, [builder.bitcast(values[0], _FLOATS)]), _LANES)

    return REGISTER(REGISTER), emit


@intrinsic
def store_bytes(_context: Any, address: Any, words: Any) -> Any:
    """The low bytes of 16 words, as 16 bytes."""

    def emit(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        kind = ir.VectorType(_I8, 16)
        builder.store(builder.trunc(values[1], kind), builder.inttoptr(values[0], ir.PointerType(kind)), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, REGISTER), emit
