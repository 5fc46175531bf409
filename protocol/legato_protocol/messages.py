"""Messages between processes: what all of them are made of, and how they are read.

They are arrays, so within a version of a protocol a later release may append fields, which an older reader skips.
"""

from typing import Annotated, TypeVar, get_args

import msgspec

MAX_FRAME_BYTES = 16 << 20

# What a worker says is calculated with, so a number that makes no sense is no frame.
Count = Annotated[int, msgspec.Meta(ge=0)]
Size = Annotated[int, msgspec.Meta(ge=1)]
Token = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
Measure = Annotated[float, msgspec.Meta(ge=0, le=1e15)]  # neither NaN nor infinite


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A frame. Encoded as an array, so a later version may append fields and an older reader skips them."""


class Value(msgspec.Struct, frozen=True, array_like=True):
    """A part of frames."""


class BadFrame(ValueError):
    """Bytes that are no frame of this version: malformed, oversized or impossible. The text says which."""


class UnknownKind(BadFrame):
    """A well-formed frame of a kind that this version does not have: of a newer peer, and to be skipped."""


_T = TypeVar("_T")


def decode_with(decoder: "msgspec.msgpack.Decoder[_T]", data: bytes) -> _T:
    """What `decoder`, one of messages, reads in `data`. Raises UnknownKind, or BadFrame where it reads nothing."""
    if len(data) > MAX_FRAME_BYTES:
        raise BadFrame(f"frame of {len(data)} bytes; at most {MAX_FRAME_BYTES} are allowed")
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        kind = _kind(data)
        if kind and kind not in _kinds(decoder.type):
            raise UnknownKind(f"no frame of this version has the kind {kind[:32]!r}") from None
        raise BadFrame(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadFrame(str(error)) from None


def _kind(data: bytes) -> str:
    """What the array in `data` begins with; empty where that is no kind."""
    try:
        match msgspec.msgpack.decode(data):
            case [str() as kind, *_]:
                return kind
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError):  # the last: a map's key is a map
        pass
    return ""


def _kinds(messages: object) -> frozenset[str]:
    """The kinds of a message, or of all of a union of them."""
    return frozenset(str(each.__struct_config__.tag) for each in get_args(messages) or (messages,))
