"""Registers of e4m3 numbers (float8_e4m3fn) for numba. They compile for any processor."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from legato_engine.kernels.cpu.simd.vector import REGISTER

READ_SCALE = 256.0  # `load_codes` returns each number divided by it; readers multiply it into their scales

_CODES, _HALVES = ir.VectorType(ir.IntType(8), 16), ir.VectorType(ir.IntType(16), 16)
_HALF_FLOATS, _FLOATS = ir.VectorType(ir.HalfType(), 16), ir.VectorType(ir.FloatType(), 16)
_LANES = ir.VectorType(ir.IntType(32), 16)


@intrinsic
def load_codes(_context: Any, address: Any) -> Any:
    """16 e4m3 numbers as floats, divided by READ_SCALE. NaN stays NaN.

    Their bits, shifted, are float16 with an exponent that is 8 too small. A carry marks the code of NaN.
    """

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        def constant(value: int) -> Any:
            return ir.Constant(_HALVES, [value] * 16)

        codes = builder.load(builder.inttoptr(values[0], ir.PointerType(_CODES)), align=1)
        shifted = builder.and_(builder.shl(builder.sext(codes, _HALVES), constant(7)), constant(0xBFFF))
        is_nan = builder.and_(builder.add(shifted, constant(0x80)), constant(0x4000))
        halves = builder.bitcast(builder.or_(shifted, is_nan), _HALF_FLOATS)
        return builder.bitcast(builder.fpext(halves, _FLOATS), _LANES)

    return REGISTER(types.int64), emit
