"""Tags: arguments that choose an implementation when a kernel is compiled, and cost nothing when it runs.

A kernel is compiled once for each tag that it is given. An `overload` compares its argument's type with `TAG.type`.
"""

from typing import Any

from numba import types
from numba.core.imputils import lower_constant
from numba.extending import NativeValue, models, register_model, typeof_impl, unbox


class _TagType(types.Type):
    def __init__(self, name: str) -> None:
        super().__init__(name=f"Tag({name})")


register_model(_TagType)(models.OpaqueModel)


class Tag:
    """A value whose only property is its type."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.type = _TagType(name)

    def __repr__(self) -> str:
        return self.name


@typeof_impl.register(Tag)
def _type_of(tag: Tag, _context: Any) -> _TagType:
    return tag.type


@unbox(_TagType)
def _unbox(_type: _TagType, _tag: Any, context: Any) -> NativeValue:
    return NativeValue(context.context.get_dummy_value())


@lower_constant(_TagType)
def _constant(context: Any, _builder: Any, _type: _TagType, _tag: Tag) -> Any:
    return context.get_dummy_value()


# Instructions for products of bytes: AVX-512 VNNI, or AVX2, for codes of 4 bits only.
VNNI, AVX2 = Tag("VNNI"), Tag("AVX2")

# Scales and minima of codes: float16, or int8 times a float16 factor for each 256 inputs, as in K-quants.
SCALES_FLOAT16, SCALES_INT8 = Tag("SCALES_FLOAT16"), Tag("SCALES_INT8")

# Keys and values in an arena: float32; bfloat16, multiplied as floats; bfloat16, multiplied in pairs (AVX512-BF16);
# e4m3, multiplied as floats.
KV_FLOAT32, KV_BFLOAT16, KV_BFLOAT16_PAIRS = Tag("KV_FLOAT32"), Tag("KV_BFLOAT16"), Tag("KV_BFLOAT16_PAIRS")
KV_FLOAT8 = Tag("KV_FLOAT8")
