"""Counters that threads share, and how a thread waits for one."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic


@intrinsic
def fetch_add(_context: Any, address: Any, number: Any) -> Any:
    """Adds to the int64 at `address` and returns what was there before. What a thread wrote before is seen by whoever
    adds after it."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        pointer = builder.inttoptr(values[0], ir.PointerType(ir.IntType(64)))
        return builder.atomic_rmw("add", pointer, values[1], "acq_rel")

    return types.int64(types.int64, types.int64), emit


@intrinsic
def read(_context: Any, address: Any) -> Any:
    """The int64 at `address`. What a thread wrote before it added is seen by whoever reads after it."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(values[0], ir.PointerType(ir.IntType(64))), "acquire", 8)

    return types.int64(types.int64), emit


@intrinsic
def pause(_context: Any) -> Any:
    """Tells the processor that this thread only waits."""

    def emit(context: Any, builder: Any, _signature: Any, _values: Any) -> Any:
        builder.call(ir.InlineAsm(ir.FunctionType(ir.VoidType(), []), "pause", "~{memory}", side_effect=True), [])
        return context.get_dummy_value()

    return types.void(), emit


_sleep = types.ExternalFunction("usleep", types.int32(types.uint32))
_PAUSES, _MICROSECONDS = 2000, np.uint32(20)  # so many pauses are some tens of microseconds


@njit(cache=True)
def wait_until_zero(address):
    """For threads that count down the int64 at `address` in a moment. If they do not, other work may have their
    processor, and this thread does not keep it from them.
    """
    pauses = 0
    while read(address) != 0:
        if pauses < _PAUSES:
            pauses += 1
            pause()
        else:
            _sleep(_MICROSECONDS)
