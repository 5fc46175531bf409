"""Float32 matrices, transposed in registers: one number at a time would take several times as long."""

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

_FLOATS, _HALF, _I32 = ir.VectorType(ir.FloatType(), 16), ir.VectorType(ir.FloatType(), 8), ir.IntType(32)


@intrinsic
def transpose_16(_context: Any, source: Any, stride: Any, target: Any, to_stride: Any) -> Any:
    """16 × 16 numbers from rows that begin `stride` bytes apart, to rows that begin `to_stride` apart."""

    def emit(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        source, stride, target, to_stride = values

        def row(begin: Any, stride: Any, index: int, kind: Any = _FLOATS) -> Any:
            at = builder.add(begin, builder.mul(stride, ir.Constant(ir.IntType(64), index)))
            return builder.inttoptr(at, ir.PointerType(kind))

        def halves(which: int) -> list[Any]:
            begin = builder.add(source, ir.Constant(ir.IntType(64), 32 * which))
            return [builder.load(row(begin, stride, i, _HALF), align=4) for i in range(16)]

        # Rows i and i + distance swap the squares of that size next to the diagonal: of 8, when they are loaded,
        # which leaves less work for the only unit that shuffles.
        order = ir.Constant(ir.VectorType(_I32, 16), [*range(16)])
        rows = [builder.shuffle_vector(both[i], both[i + 8], order) for both in map(halves, range(2)) for i in range(8)]
        for distance in (1, 2, 4):
            low = [j + 16 - distance if j & distance else j for j in range(16)]
            high = [j + 16 if j & distance else j + distance for j in range(16)]
            for i in (i for i in range(16) if not i & distance):
                pair = rows[i], rows[i + distance]
                for index, order in ((i, low), (i + distance, high)):
                    rows[index] = builder.shuffle_vector(*pair, ir.Constant(ir.VectorType(_I32, 16), order))
        for i, value in enumerate(rows):
            builder.store(value, row(target, to_stride, i), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.int64), emit


@njit(cache=True)
def transpose(source, rows, columns, target):
    """float32 [rows, columns] at the address `source`, to [columns, rows] at `target`; both multiples of 16."""
    for row in range(0, rows, 16):
        for column in range(0, columns, 16):
            at, to = source + (row * columns + column) * 4, target + (column * rows + row) * 4
            transpose_16(at, columns * 4, to, rows * 4)
