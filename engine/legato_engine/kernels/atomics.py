"""Counters that threads share."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic


@intrinsic
def fetch_add(_context: Any, address: Any, number: Any) -> Any:
    """Adds to the int64 at `address` and returns what was there before. What a thread wrote before is seen by whoever
    adds after it."""

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        pointer = builder.inttoptr(values[0], ir.PointerType(ir.IntType(64)))
        return builder.atomic_rmw("add", pointer, values[1], "acq_rel")

    return types.int64(types.int64, types.int64), emit
