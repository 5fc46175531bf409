"""Instructions of AMX, AVX512-BF16 and AVX-512 VNNI as functions that any processor computes, for `emulated_kernels`.

What a processor would refuse is noted, and so is what is no mistake to it but surely one of a kernel: products of a
tile that nothing was put into. Each thread has tiles of its own. Numbers too small to be normal are not taken for 0.
"""

from functools import cache
from types import ModuleType
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from llvmlite.binding import add_symbol
from numba import carray, cfunc, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from legato_engine.kernels.cpu.simd import vector
from legato_engine.kernels.cpu.simd.scalar import fused, widened
from legato_engine.kernels.cpu.simd.vector import REGISTER, multiply_add, pointer

FAULTS = (
    "tiles are not configured", "no such shape of a tile", "nothing was put into the tile", "shapes do not fit",
    "configured again", "released though not configured",
)  # fmt: skip
NOT_CONFIGURED, BAD_SHAPE, EMPTY, UNFIT, AGAIN, NOT_HELD = range(len(FAULTS))
ROWS, BYTES, FILLED, CONFIGURED = 0, 8, 16, 24  # where a thread's state has them

_THREADS = numba.config.NUMBA_NUM_THREADS
_tiles, _state = np.zeros((_THREADS, 8, 1024), np.uint8), np.zeros((_THREADS, 32), np.int64)
_faults = np.zeros((_THREADS, len(FAULTS)), np.int64)
_AT_TILES, _AT_STATE, _AT_FAULTS = (int(array.ctypes.data) for array in (_tiles, _state, _faults))
_functions: dict[Any, str] = {}  # and their signatures
_compiled: list[Any] = []  # kept, as kernels have their addresses


def faults() -> list[str]:
    """Mistakes of kernels since the last call, and tiles that are still held."""
    found = [what for what, times in zip(FAULTS, _faults.sum(0), strict=True) if times]
    held = ["not released"] if _state[:, CONFIGURED].any() else []
    _faults[:], _state[:, CONFIGURED] = 0, 0
    return found + held


def _symbol(function: Any) -> str:
    return f"legato_emulated{function.__name__}"


def _called(signature: str) -> Any:
    """Compiled once by `compile_tiles`, and called by name: within each kernel, all of this would take minutes to
    compile, and a cached kernel finds the function of its own process.
    """

    def noted(function: Any) -> Any:
        _functions[function] = signature
        return function

    return noted


@cache
def compile_tiles() -> None:
    """Needed before kernels with tiles are compiled or loaded. Takes seconds, which other tests need not wait for."""
    for function, signature in _functions.items():
        _compiled.append(cfunc(signature)(function))
        add_symbol(_symbol(function), _compiled[-1].address)


@njit
def _fault(which):
    carray(pointer(_AT_FAULTS), (_THREADS, len(FAULTS)), np.int64)[numba.get_thread_id(), which] += 1


@njit
def _own_state():
    return carray(pointer(_AT_STATE + numba.get_thread_id() * 256), 32, np.int64)


@njit
def _own_tile(tile):
    return _AT_TILES + (numba.get_thread_id() * 8 + tile) * 1024


@njit
def _copy(source, to, width):
    given, copied = carray(pointer(source), 64, np.uint8), carray(pointer(to), 64, np.uint8)
    for i in range(width):
        copied[i] = given[i]


@njit
def _clear(tile):
    words = carray(pointer(_own_tile(tile)), 128, np.int64)
    for i in range(128):
        words[i] = 0


@_called("void(int64)")
def _configure(at):
    given, state = carray(pointer(at), 64, np.uint8), _own_state()
    if state[CONFIGURED]:
        _fault(AGAIN)
    if given[0] != 1:
        _fault(BAD_SHAPE)
    for tile in range(8):
        rows, width = np.int64(given[48 + tile]), given[16 + 2 * tile] + 256 * np.int64(given[17 + 2 * tile])
        if rows > 16 or width > 64 or (rows == 0) != (width == 0):
            _fault(BAD_SHAPE)
            rows = width = 0
        state[ROWS + tile], state[BYTES + tile], state[FILLED + tile] = rows, width, 0
        _clear(tile)
    state[CONFIGURED] = 1


@_called("void()")
def _release():
    state = _own_state()
    if not state[CONFIGURED]:
        _fault(NOT_HELD)
    for i in range(CONFIGURED + 1):
        state[i] = 0


@njit
def _usable(tile):
    """The state, after a look at whether the tile may be used at all."""
    state = _own_state()
    if not state[CONFIGURED]:
        _fault(NOT_CONFIGURED)
    elif not state[ROWS + tile]:
        _fault(BAD_SHAPE)
    return state


@_called("void(int64, int64, int64)")
def _fill(tile, at, stride):
    """All of the tile, from memory, or with 0 where the address is 0."""
    state = _usable(tile)
    _clear(tile)
    state[FILLED + tile] = 1
    for row in range(state[ROWS + tile] if at else 0):
        _copy(at + row * stride, _own_tile(tile) + row * 64, state[BYTES + tile])


@_called("void(int64, int64, int64)")
def _keep(tile, at, stride):
    state = _usable(tile)
    if not state[FILLED + tile]:
        _fault(EMPTY)
    for row in range(state[ROWS + tile]):
        _copy(_own_tile(tile) + row * 64, at + row * stride, state[BYTES + tile])


@_called("void(int64, int64, int64)")
def _multiply(sums, rows, columns):
    """As Intel's manual has TDPBF16PS: even and odd products are added up apart, then both to the sum."""
    state = _usable(sums)
    _usable(rows)
    _usable(columns)
    if not (state[FILLED + sums] and state[FILLED + rows] and state[FILLED + columns]):
        _fault(EMPTY)
    pairs = state[BYTES + rows] // 4
    if (
        pairs != state[ROWS + columns]
        or state[ROWS + sums] != state[ROWS + rows]
        or state[BYTES + sums] != state[BYTES + columns]
    ):
        _fault(UNFIT)
        return
    to, columns_of = carray(pointer(_own_tile(sums)), (16, 16), np.float32), state[BYTES + sums] // 4
    a = carray(pointer(_own_tile(rows)), (16, 32), np.uint16)
    b = carray(pointer(_own_tile(columns)), (16, 32), np.uint16)
    added = np.zeros((2, 16, 16), np.float32)
    for half in range(2):
        for pair in range(pairs):
            by = np.empty(16, np.float32)
            for column in range(columns_of):
                by[column] = widened(b[pair, 2 * column + half])
            for row in range(state[ROWS + sums]):
                factor = widened(a[row, 2 * pair + half])
                for column in range(columns_of):
                    added[half, row, column] = fused(factor, by[column], added[half, row, column])
    for row in range(state[ROWS + sums]):
        for column in range(columns_of):
            to[row, column] += added[0, row, column] + added[1, row, column]


def _half(name: str, upper: bool) -> Any:
    """One bfloat16 of each word, as a float."""

    def typing(_context: Any, words: Any) -> Any:
        def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
            kind = values[0].type
            if upper:
                return builder.and_(values[0], ir.Constant(kind, [0xFFFF0000] * 16))
            return builder.shl(values[0], ir.Constant(kind, [16] * 16))

        return REGISTER(REGISTER), emit

    typing.__name__ = name
    return intrinsic(typing)


_lower, _upper = _half("_lower", False), _half("_upper", True)


@njit
def _dot_bf16(total, a, b):
    return multiply_add(_lower(a), _lower(b), multiply_add(_upper(a), _upper(b), total))


@intrinsic
def _dot_bytes(_context: Any, total: Any, a: Any, b: Any) -> Any:
    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        def everywhere(value: int) -> Any:
            return ir.Constant(values[0].type, [value] * 16)

        total, a, b = values
        for bit in (0, 8, 16, 24):
            unsigned = builder.and_(builder.lshr(a, everywhere(bit)), everywhere(255))
            signed = builder.ashr(builder.shl(b, everywhere(24 - bit)), everywhere(24))
            total = builder.add(total, builder.mul(unsigned, signed))
        return total

    return REGISTER(REGISTER, REGISTER, REGISTER), emit


def _call(function: Any, *numbers: int, given: int = 0) -> Any:
    """Calls it with these numbers, and with as many as are given."""

    def emit(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        all_ = [ir.Constant(ir.IntType(64), number) for number in numbers] + list(values)
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * len(all_))
        builder.call(cgutils.get_or_insert_function(builder.module, kind, _symbol(function)), all_)
        return context.get_dummy_value()

    def typing(_context: Any) -> Any:
        return types.void(), emit

    def typing_one(_context: Any, _at: Any) -> Any:
        return types.void(types.int64), emit

    def typing_two(_context: Any, _at: Any, _stride: Any) -> Any:
        return types.void(types.int64, types.int64), emit

    return intrinsic((typing, typing_one, typing_two)[given])


def _emulated_vector() -> ModuleType:
    """`vector`, with all of its instructions of AMX, AVX512-BF16 and VNNI replaced."""
    module = ModuleType(vector.__name__)
    vars(module).update(vars(vector))
    module.dot_bf16, module.dot_bytes = _dot_bf16, _dot_bytes
    module.tile_configure, module.tile_release = _call(_configure, given=1), _call(_release)
    for name in (name for name in vars(vector) if name.startswith("tile_") and name[-1].isdigit()):
        what, tile = name.removeprefix("tile_")[:-2], int(name[-1])
        made = {
            "zero": _call(_fill, tile, 0, 0),
            "load": _call(_fill, tile, given=2),
            "store": _call(_keep, tile, given=2),
            "dot": _call(_multiply, tile, 4 + tile // 2, 6 + tile % 2),
        }
        setattr(module, name, made[what])
    return module


INSTRUCTIONS = _emulated_vector()
