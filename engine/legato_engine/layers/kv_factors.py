"""Factors between keys and values and the numbers in an arena."""

from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class KVFactors(NamedTuple, Generic[T]):
    """Factors of keys and values when they are read and when they are written: float32 […, 2, kv_heads]."""

    reading: T
    writing: T
