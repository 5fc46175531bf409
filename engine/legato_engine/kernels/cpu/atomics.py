"""Counters that threads share, and how a thread waits for one."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic


@intrinsic
def fetch_add(_context: Any, address: Any, number: Any) -> Any:
    """Adds to the int64 at `address` and returns its old value. Writes before an addition are visible to threads that
    add after it."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        pointer = builder.inttoptr(values[0], ir.PointerType(ir.IntType(64)))
        return builder.atomic_rmw("add", pointer, values[1], "acq_rel")

    return types.int64(types.int64, types.int64), emit


@intrinsic
def read(_context: Any, address: Any) -> Any:
    """The int64 at `address`. Writes before an addition are visible to threads that read its result."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(values[0], ir.PointerType(ir.IntType(64))), "acquire", 8)

    return types.int64(types.int64), emit


@intrinsic
def pause(_context: Any) -> Any:
    """Hints to the processor that this thread only waits."""

    def emit(context: Any, builder: Any, _signature: Any, _values: Any) -> Any:
        builder.call(ir.InlineAsm(ir.FunctionType(ir.VoidType(), []), "pause", "~{memory}", side_effect=True), [])
        return context.get_dummy_value()

    return types.void(), emit


_sleep = types.ExternalFunction("usleep", types.int32(types.uint32))
_PAUSES, _MICROSECONDS = 2000, np.uint32(20)  # the pauses take some tens of microseconds


@njit(cache=True)
def wait_until_zero(address):
    """Waits for threads that soon count the int64 at `address` down to 0: at first busily, then asleep, because other
    work may have the processors of these threads.
    """
    pauses = 0
    while read(address) != 0:
        if pauses < _PAUSES:
            pauses += 1
            pause()
        else:
            _sleep(_MICROSECONDS)


@njit(cache=True)
def wait_until_at_least(address, number):
    """Waits for other processes that count the int64 at `address` up, as `wait_until_zero`."""
    pauses = 0
    while read(address) < number:
        if pauses < _PAUSES:
            pauses += 1
            pause()
        else:
            _sleep(_MICROSECONDS)
