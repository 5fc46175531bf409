"""512-bit registers and matrix tiles for numba: one instruction each, or one for each half, so that kernels read
like the processor's instructions.

Addresses are integers. Only for processors that have the instructions (`processor.detect`); numba compiles for the
machine it runs on. A register has no element type: each function says how it reads the bits.
"""

from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

binding.initialize_native_asmparser()  # numba itself has no need of it; instructions below are assembly

_I16, _I32 = ir.IntType(16), ir.IntType(32)
_FLOATS, _WORDS, _LANES = ir.VectorType(ir.FloatType(), 16), ir.VectorType(_I16, 32), ir.VectorType(_I32, 16)
_HALF_BYTES, _HALF_WORDS, _HALF_LANES = (
    ir.VectorType(ir.IntType(8), 32),
    ir.VectorType(_I16, 16),
    ir.VectorType(_I32, 8),
)


class _RegisterType(types.Type):
    def __init__(self) -> None:
        super().__init__(name="Register512")


REGISTER = _RegisterType()


@register_model(_RegisterType)
class _RegisterModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _LANES)


def _assembly(builder: Any, text: str, constraints: str, result: Any, *values: Any) -> Any:
    """One instruction as text: LLVM's own names for these change between its releases."""
    kind = ir.FunctionType(result, [value.type for value in values])
    return builder.call(ir.InlineAsm(kind, text, constraints, side_effect=isinstance(result, ir.VoidType)), values)


def _splat(builder: Any, value: Any, kind: Any) -> Any:
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(_I32, 0))
    mask = ir.Constant(ir.VectorType(_I32, kind.count), [0] * kind.count)
    return builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), mask)


def _at(builder: Any, address: Any, kind: Any) -> Any:
    return builder.inttoptr(address, ir.PointerType(kind))


@njit(cache=True, inline="always")
def address(array):
    """The address of the first number. `ctypes.data` is unsigned, and numba's sums with it would be float64."""
    return np.int64(array.ctypes.data)


@intrinsic
def pointer(_context: Any, address: Any) -> Any:
    """For numba's `carray`."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), emit


@intrinsic
def load(_context: Any, address: Any) -> Any:
    """64 bytes."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.load(_at(builder, values[0], _LANES), align=4)

    return REGISTER(types.int64), emit


@intrinsic
def load_halves(_context: Any, address: Any) -> Any:
    """16 float16, widened to float32."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        halves = builder.load(_at(builder, values[0], ir.VectorType(ir.HalfType(), 16)), align=2)
        return builder.bitcast(builder.fpext(halves, _FLOATS), _LANES)

    return REGISTER(types.int64), emit


@intrinsic
def store(_context: Any, address: Any, value: Any) -> Any:
    """64 bytes."""

    def emit(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        builder.store(values[1], _at(builder, values[0], _LANES), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, REGISTER), emit


@njit(cache=True)
def store_four(rows, out, stride):
    """Four rows of 64 bytes, `stride` bytes apart; `rows` is a tuple."""
    store(out, rows[0])
    store(out + stride, rows[1])
    store(out + 2 * stride, rows[2])
    store(out + 3 * stride, rows[3])


@njit(cache=True)
def store_eight(rows, out, stride):
    """Eight rows of 64 bytes, `stride` bytes apart; `rows` is a tuple."""
    store_four(rows[:4], out, stride)
    store_four(rows[4:], out + 4 * stride, stride)


@intrinsic
def broadcast(_context: Any, address: Any) -> Any:
    """The 32 bits at `address`, in each of 16 lanes."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return _splat(builder, builder.load(_at(builder, values[0], _I32), align=4), _LANES)

    return REGISTER(types.int64), emit


@intrinsic
def zero(_context: Any) -> Any:
    """All bits zero."""

    def emit(_context: Any, _builder: Any, _signature: Any, _values: Any) -> Any:
        return ir.Constant(_LANES, [0] * 16)

    return REGISTER(), emit


@intrinsic
def multiply_add(_context: Any, a: Any, b: Any, c: Any) -> Any:
    """a · b + c of 16 floats."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        floats = [builder.bitcast(value, _FLOATS) for value in values]
        kind = ir.FunctionType(_FLOATS, [_FLOATS] * 3)
        fused = cgutils.get_or_insert_function(builder.module, kind, "llvm.fma.v16f32")
        return builder.bitcast(builder.call(fused, floats), _LANES)

    return REGISTER(REGISTER, REGISTER, REGISTER), emit


@intrinsic
def add(_context: Any, a: Any, b: Any) -> Any:
    """a + b of 16 floats."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        floats = [builder.bitcast(value, _FLOATS) for value in values]
        return builder.bitcast(builder.fadd(*floats), _LANES)

    return REGISTER(REGISTER, REGISTER), emit


def _interleave(name: str, first: int) -> Any:
    """Words `first … first + 15` of two registers, interleaved."""

    def typing(_context: Any, a: Any, b: Any) -> Any:
        def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
            order = [which * 32 + first + i for i in range(16) for which in range(2)]
            words = [builder.bitcast(value, _WORDS) for value in values]
            return builder.bitcast(builder.shuffle_vector(*words, ir.Constant(ir.VectorType(_I32, 32), order)), _LANES)

        return REGISTER(REGISTER, REGISTER), emit

    typing.__name__ = name
    return intrinsic(typing)


interleave_low = _interleave("interleave_low", 0)
interleave_high = _interleave("interleave_high", 16)


@intrinsic
def dot_bf16(_context: Any, total: Any, a: Any, b: Any) -> Any:
    """To each of 16 float32 in `total`, adds the products of two neighbouring bfloat16 of `a` and `b`."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return _assembly(builder, "vdpbf16ps $3, $2, $0", "=v,0,v,v", _LANES, *values)

    return REGISTER(REGISTER, REGISTER, REGISTER), emit


@intrinsic
def dot_bytes(_context: Any, total: Any, a: Any, b: Any) -> Any:
    """To each of 16 int32 in `total`, adds the products of four neighbouring bytes: `a`'s unsigned, `b`'s signed."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return _assembly(builder, "vpdpbusd $3, $2, $0", "=v,0,v,v", _LANES, *values)

    return REGISTER(REGISTER, REGISTER, REGISTER), emit


def _halves_of(builder: Any, value: Any, kind: Any) -> list[Any]:
    """A register as two of 256 bits, of `kind`."""
    lanes = ir.VectorType(kind.element, kind.count * 2)
    whole, masks = builder.bitcast(value, lanes), (range(kind.count), range(kind.count, kind.count * 2))
    select = [ir.Constant(ir.VectorType(_I32, kind.count), list(mask)) for mask in masks]
    return [builder.shuffle_vector(whole, ir.Constant(lanes, ir.Undefined), mask) for mask in select]


def _by_halves(builder: Any, name: str, result: Any, *values: Any, kind: Any) -> Any:
    """LLVM's function `name` of 256 bits, for each half of registers."""
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, [kind] * len(values)), name)
    halves = [_halves_of(builder, value, kind) for value in values]
    parts = [builder.call(function, given) for given in zip(*halves, strict=True)]
    both = ir.Constant(ir.VectorType(_I32, result.count * 2), list(range(result.count * 2)))
    return builder.shuffle_vector(*parts, both)


@intrinsic
def dot_pairs(_context: Any, total: Any, a: Any, b: Any) -> Any:
    """To each of 32 int16 in `total`, adds the products of two neighbouring bytes: `a`'s unsigned, `b`'s signed. AVX2
    has this. Their sum must be an int16.
    """

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        total, a, b = values
        products = _by_halves(builder, "llvm.x86.avx2.pmadd.ub.sw", _HALF_WORDS, a, b, kind=_HALF_BYTES)
        return builder.bitcast(builder.add(builder.bitcast(total, _WORDS), products), _LANES)

    return REGISTER(REGISTER, REGISTER, REGISTER), emit


@intrinsic
def sum_pairs(_context: Any, words: Any) -> Any:
    """The sums of two neighbouring int16, as 16 int32."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        ones = ir.Constant(_WORDS, [1] * 32)
        return _by_halves(builder, "llvm.x86.avx2.pmadd.wd", _HALF_LANES, values[0], ones, kind=_HALF_WORDS)

    return REGISTER(REGISTER), emit


@intrinsic
def tile_configure(_context: Any, address: Any) -> Any:
    """Shapes of this thread's tiles, from 64 bytes."""

    def emit(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        _assembly(builder, "ldtilecfg ($0)", "r,~{memory}", ir.VoidType(), *values)
        return context.get_dummy_value()

    return types.void(types.int64), emit


@intrinsic
def tile_release(_context: Any) -> Any:
    """Ends this thread's use of tiles."""

    def emit(context: Any, builder: Any, _signature: Any, _values: Any) -> Any:
        _assembly(builder, "tilerelease", "", ir.VoidType())
        return context.get_dummy_value()

    return types.void(), emit


def _tile_memory(name: str, text: str) -> Any:
    """An instruction between one tile and rows of 64 bytes that begin `stride` bytes apart."""

    def typing(_context: Any, address: Any, stride: Any) -> Any:
        def emit(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
            _assembly(builder, text, "r,r,~{memory}", ir.VoidType(), *values)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), emit

    typing.__name__ = name
    return intrinsic(typing)


def _tile_alone(name: str, text: str) -> Any:
    """An instruction on tiles only."""

    def typing(_context: Any) -> Any:
        def emit(context: Any, builder: Any, _signature: Any, _values: Any) -> Any:
            _assembly(builder, text, "", ir.VoidType())
            return context.get_dummy_value()

        return types.void(), emit

    typing.__name__ = name
    return intrinsic(typing)


# Tiles 0 … 3 are sums (two by two), 4 and 5 what has their rows, 6 and 7 what has their columns, in pairs.
tile_zero_0 = _tile_alone("tile_zero_0", "tilezero %tmm0")
tile_zero_1 = _tile_alone("tile_zero_1", "tilezero %tmm1")
tile_zero_2 = _tile_alone("tile_zero_2", "tilezero %tmm2")
tile_zero_3 = _tile_alone("tile_zero_3", "tilezero %tmm3")
tile_load_0 = _tile_memory("tile_load_0", "tileloadd ($0,$1,1), %tmm0")
tile_load_1 = _tile_memory("tile_load_1", "tileloadd ($0,$1,1), %tmm1")
tile_load_2 = _tile_memory("tile_load_2", "tileloadd ($0,$1,1), %tmm2")
tile_load_3 = _tile_memory("tile_load_3", "tileloadd ($0,$1,1), %tmm3")
tile_load_4 = _tile_memory("tile_load_4", "tileloadd ($0,$1,1), %tmm4")
tile_load_5 = _tile_memory("tile_load_5", "tileloadd ($0,$1,1), %tmm5")
tile_load_6 = _tile_memory("tile_load_6", "tileloadd ($0,$1,1), %tmm6")
tile_load_7 = _tile_memory("tile_load_7", "tileloadd ($0,$1,1), %tmm7")
tile_store_0 = _tile_memory("tile_store_0", "tilestored %tmm0, ($0,$1,1)")
tile_store_1 = _tile_memory("tile_store_1", "tilestored %tmm1, ($0,$1,1)")
tile_store_2 = _tile_memory("tile_store_2", "tilestored %tmm2, ($0,$1,1)")
tile_store_3 = _tile_memory("tile_store_3", "tilestored %tmm3, ($0,$1,1)")
tile_dot_0 = _tile_alone("tile_dot_0", "tdpbf16ps %tmm6, %tmm4, %tmm0")
tile_dot_1 = _tile_alone("tile_dot_1", "tdpbf16ps %tmm7, %tmm4, %tmm1")
tile_dot_2 = _tile_alone("tile_dot_2", "tdpbf16ps %tmm6, %tmm5, %tmm2")
tile_dot_3 = _tile_alone("tile_dot_3", "tdpbf16ps %tmm7, %tmm5, %tmm3")
