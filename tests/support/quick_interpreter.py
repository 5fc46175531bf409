"""Triton's interpreter, with what it works out anew for every operation kept: half of the time is left.

What is computed does not change: numpy computes it as before.
"""

import functools
import inspect
import math
from types import SimpleNamespace
from typing import Any

from triton import language
from triton.language import core
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

_np_dtype = interpreter._get_np_dtype
_init_block = core.block_type.__init__
_patch_lang = interpreter._patch_lang
_broadcast = TritonSemantic.broadcast_impl_value
_np_dtypes: dict[str, Any] = {}  # by the name of Triton's type
_shapes: dict[tuple[int, ...], Any] = {}
_blocks: dict[tuple[Any, ...], tuple[Any, ...]] = {}  # what a type of blocks knows, by its parts
_patched: list["_Patches"] = []  # while a kernel runs


def use() -> None:
    """In this process, from now on."""
    interpreter._patch_builtin = _patch_builtin
    interpreter._patch_lang = _patch_lang_once
    interpreter._get_np_dtype = _get_np_dtype
    core.tensor.__init__ = _init_tensor
    core.block_type.__init__ = _init_block_type
    TritonSemantic.broadcast_impl_value = _broadcast_if_needed


class _Patches:
    """Patches of Triton's language, for one kernel and all functions that it calls."""

    def __init__(self) -> None:
        modules = SimpleNamespace(__globals__={"tl": language, "core": core})
        self._scope = _patch_lang(modules)

    def restore(self) -> None:
        self._scope.restore()
        _patched.clear()


def _patch_lang_once(_function: Any) -> _Patches:
    """Patches the language once for a kernel; the functions that it calls do not restore it."""
    if not _patched:
        _patched.append(_Patches())
    return _patched[0]


@functools.cache
def _builtins(package: Any) -> list[tuple[str, Any]]:
    """All members are listed for them at each call of a kernel."""
    return [(name, member) for name, member in inspect.getmembers(package) if core.is_builtin(member)]


def _patch_builtin(package: Any, builder: Any, scope: Any) -> None:
    for name, member in _builtins(package):
        if getattr(package, name) is member:  # else it is replaced already: a class is in both modules
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
    sizes = tuple(size.value if isinstance(size, core.constexpr) else size for size in shape)
    key = element_ty.name, sizes
    if key not in _blocks:
        _init_block(self, element_ty, shape)
        _blocks[key] = _shapes.setdefault(sizes, self.shape), self.numel, self.name
    self.element_ty, (self.shape, self.numel, self.name) = element_ty, _blocks[key]


def _broadcast_if_needed(self: Any, left: Any, right: Any) -> Any:
    """Most operands have one shape, which is compared number by number otherwise."""
    if getattr(left.type, "shape", None) is getattr(right.type, "shape", None):
        return left, right
    return _broadcast(self, left, right)
