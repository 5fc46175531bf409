"""Triton's interpreter, with what it works out anew for every operation kept: two thirds of the time are left.

What is computed does not change: numpy computes it as before.
"""

import functools
import inspect
import math
from typing import Any

from triton.language import core
from triton.runtime import interpreter

_np_dtype = interpreter._get_np_dtype
_init_block = core.block_type.__init__
_np_dtypes: dict[str, Any] = {}  # by the name of Triton's type
_blocks: dict[tuple[Any, ...], tuple[Any, ...]] = {}  # what a type of blocks knows, by its parts


def use() -> None:
    """In this process, from now on."""
    interpreter._patch_builtin = _patch_builtin
    interpreter._get_np_dtype = _get_np_dtype
    core.tensor.__init__ = _init_tensor
    core.block_type.__init__ = _init_block_type


@functools.cache
def _builtins(package: Any) -> list[tuple[str, Any]]:
    """All members are listed for them at each call of a kernel or of a function in one."""
    return [(name, member) for name, member in inspect.getmembers(package) if core.is_builtin(member)]


def _patch_builtin(package: Any, builder: Any, scope: Any) -> None:
    for name, member in _builtins(package):
        if getattr(package, name) is member:  # else it is replaced already: a kernel calls this function
            interpreter._patch_attr(package, name, member, builder, scope)


def _get_np_dtype(kind: Any) -> Any:
    """It would make a table of all types to look one up."""
    if (found := _np_dtypes.get(kind.name)) is None:
        found = _np_dtypes[kind.name] = _np_dtype(kind)
    return found


@functools.cache
def _shaped(shape: tuple[int, ...]) -> tuple[Any, Any]:
    return core.constexpr(math.prod(shape)), core.tuple([core.constexpr(size) for size in shape])


def _init_tensor(self: Any, handle: Any, kind: Any) -> None:
    """Tensors of one shape share what tells it, which nothing changes."""
    self.handle, self.type, self.dtype = handle, kind, kind.scalar
    self.numel, self.shape = _shaped(kind.shape if kind.is_block() else ())


def _init_block_type(self: Any, element_ty: Any, shape: Any) -> None:
    key = element_ty.name, *(size.value if isinstance(size, core.constexpr) else size for size in shape)
    if key not in _blocks:
        _init_block(self, element_ty, shape)
        _blocks[key] = self.shape, self.numel, self.name
    self.element_ty, (self.shape, self.numel, self.name) = element_ty, _blocks[key]
