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
