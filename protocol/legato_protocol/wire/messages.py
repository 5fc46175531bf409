"""Base types of messages between processes, and their decoding.

Messages are arrays: within a protocol version, a later release may append fields, which an older reader skips.
"""

from typing import Annotated, TypeVar, get_args

import msgspec

MAX_FRAME_BYTES = 16 << 20

# Numbers of a frame are used in calculations, so a frame with an impossible number is rejected.
Count = Annotated[int, msgspec.Meta(ge=0)]
Size = Annotated[int, msgspec.Meta(ge=1)]
Token = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
Measure = Annotated[float, msgspec.Meta(ge=0, le=1e15)]  # neither NaN nor infinite


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A frame."""


class Value(msgspec.Struct, frozen=True, array_like=True):
    """A part of frames."""


class BadFrame(ValueError):
    """Bytes that are not a frame of this version: malformed, oversized or impossible. The text says which."""


class UnknownKind(BadFrame):
    """A well-formed frame of a kind that this version does not know; it comes from a newer peer and is skipped."""


_T = TypeVar("_T")


def decode_with(decoder: "msgspec.msgpack.Decoder[_T]", data: bytes) -> _T:
    """Decodes one message. Raises UnknownKind, or BadFrame for anything that is not a message."""
    if len(data) > MAX_FRAME_BYTES:
        raise BadFrame(f"frame of {len(data)} bytes; at most {MAX_FRAME_BYTES} are allowed")
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        kind = _kind(data)
        if kind and kind not in _kinds(decoder.type):
            raise UnknownKind(f"this version has no frame of the kind {kind[:32]!r}") from None
        raise BadFrame(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadFrame(str(error)) from None


def _kind(data: bytes) -> str:
    """Returns the kind, the first element of the array in `data`; empty if it has none."""
    try:
        match msgspec.msgpack.decode(data):
            case [str() as kind, *_]:
                return kind
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError):  # the last: a map's key is a map
        pass
    return ""


def _kinds(messages: object) -> frozenset[str]:
    """Returns the kinds of a message type, or of all members of a union."""
    return frozenset(str(each.__struct_config__.tag) for each in get_args(messages) or (messages,))
