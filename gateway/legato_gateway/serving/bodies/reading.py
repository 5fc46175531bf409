"""Reads the bytes of a body: first its declared type, then its size while it arrives."""

from starlette.requests import Request

from legato_gateway.errors import BodyTooLarge, UnsupportedMediaType
from legato_gateway.serving.bodies.budget import PendingBody
from legato_gateway.serving.bodies.slots import BodySlot

_SHOWN = 40  # characters of a wrong type that an error shows


def check_type(request: Request) -> None:
    """Raises UnsupportedMediaType unless the body is declared as JSON: browsers let any web page send the others."""
    said = request.headers.get("content-type", "")
    if said.partition(";")[0].strip().lower() != "application/json":
        raise UnsupportedMediaType(f"not a valid content-type: {said[:_SHOWN]!r} (application/json)")


async def read(request: Request, limit: int, held: PendingBody, slot: BodySlot) -> bytearray:
    """Reads the body. A large one gets a slot after little more than `SMALL` bytes, and has it at the end.

    Raises BodyTooLarge as soon as it is known to be longer than `limit`, without keeping it, and Overloaded if `held`
    has no room for it.
    """
    said = request.headers.get("content-length", "")
    announced = int(said) if said.isdigit() else 0
    if announced > limit:
        raise _too_large(limit)
    body = bytearray()
    pieces = request.stream()
    while True:
        with slot.patient():
            piece = await anext(pieces, None)
        if piece is not None:
            if len(body) + len(piece) > limit:
                raise _too_large(limit)
            held.grow(len(piece))
            body += piece
        await slot.take(len(body), announced)
        if piece is None:
            return body


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is longer than {limit} bytes")
