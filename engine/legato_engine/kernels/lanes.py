"""What `vector` lacks for kernels in float32: codes to floats, sums across a register. Any processor has these.

A register of `vector` is 16 lanes of 32 bits; processors with narrower ones take two or four.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from legato_engine.kernels.vector import REGISTER

_I8, _I32, _FLOAT = ir.IntType(8), ir.IntType(32), ir.FloatType()
_FLOATS, _LANES = ir.VectorType(_FLOAT, 16), ir.VectorType(_I32, 16)


def _everywhere(builder: Any, value: Any) -> Any:
    narrow = builder.trunc(value, _I32)
    first = builder.insert_element(ir.Constant(_LANES, ir.Undefined), narrow, ir.Constant(_I32, 0))
    mask = ir.Constant(ir.VectorType(_I32, 16), [0] * 16)
    return builder.shuffle_vector(first, ir.Constant(_LANES, ir.Undefined), mask)


def _splat(builder: Any, value: Any) -> Any:
    first = builder.insert_element(ir.Constant(_FLOATS, ir.Undefined), value, ir.Constant(_I32, 0))
    return builder.shuffle_vector(first, ir.Constant(_FLOATS, ir.Undefined), ir.Constant(_LANES, [0] * 16))


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
def across(_context: Any, value: Any) -> Any:
    """The sum of 16 floats, as one."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        kind = ir.FunctionType(_FLOAT, [_FLOAT, _FLOATS])
        reduce = cgutils.get_or_insert_function(builder.module, kind, "llvm.vector.reduce.fadd.v16f32")
        start = ir.Constant(_FLOAT, 0.0)
        return builder.call(reduce, [start, builder.bitcast(values[0], _FLOATS)], fastmath=("reassoc",))

    return types.float32(REGISTER), emit


@intrinsic
def prefetch(_context: Any, address: Any) -> Any:
    """Asks for the 64 bytes at `address`, which are read soon."""

    def emit(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        pointer = builder.inttoptr(values[0], ir.PointerType(_I8))
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, _I32, _I32, _I32])
        ask = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        builder.call(ask, [pointer, *(ir.Constant(_I32, value) for value in (0, 3, 1))])  # to read, keep, data
        return context.get_dummy_value()

    return types.void(types.int64), emit


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
def load_quads(_context: Any, address: Any) -> Any:
    """64 signed bytes, 16 for each of four inputs, plus 128: the four of an output in a word."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        kind = ir.VectorType(_I8, 64)
        found = builder.load(builder.inttoptr(values[0], ir.PointerType(kind)), align=1)
        order = [given * 16 + output for output in range(16) for given in range(4)]
        turned = builder.shuffle_vector(found, found, ir.Constant(ir.VectorType(_I32, 64), order))
        return builder.bitcast(builder.xor(turned, ir.Constant(kind, [0x80] * 64)), _LANES)

    return REGISTER(types.int64), emit


@intrinsic
def evens_first(_context: Any, words: Any) -> Any:
    """Of each 8 words, the even ones before the odd ones."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        order = [half + i for half in (0, 8) for i in (0, 2, 4, 6, 1, 3, 5, 7)]
        return builder.shuffle_vector(values[0], values[0], ir.Constant(_LANES, order))

    return REGISTER(REGISTER), emit


@intrinsic
def times(_context: Any, value: Any, by: Any) -> Any:
    """16 floats times `by`."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.bitcast(builder.fmul(builder.bitcast(values[0], _FLOATS), _splat(builder, values[1])), _LANES)

    return REGISTER(REGISTER, types.float32), emit


@intrinsic
def largest(_context: Any, a: Any, b: Any) -> Any:
    """The largest absolute value of 32 floats. A NaN among them may be left out."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        unary, binary = ir.FunctionType(_FLOATS, [_FLOATS]), ir.FunctionType(_FLOATS, [_FLOATS, _FLOATS])
        absolute = cgutils.get_or_insert_function(builder.module, unary, "llvm.fabs.v16f32")
        larger = cgutils.get_or_insert_function(builder.module, binary, "llvm.maxnum.v16f32")
        reduce = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_FLOAT, [_FLOATS]), "llvm.vector.reduce.fmax.v16f32"
        )
        both = [builder.call(absolute, [builder.bitcast(value, _FLOATS)]) for value in values]
        return builder.call(reduce, [builder.call(larger, both, fastmath=("nnan",))], fastmath=("nnan",))

    return types.float32(REGISTER, REGISTER), emit


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
