"""From the bytes of a request to a checked body: sizes while reading, then UTF-8, JSON, types. All faults are 4xx."""

import re
from typing import Any, TypeVar

from pydantic import ValidationError
from starlette.requests import Request

from legato_gateway.errors import BadRequest, BodyTooLarge
from legato_gateway.openai.schemas import Body

_B = TypeVar("_B", bound=Body)
_FIELD = re.compile(r"[a-z_]+")
_TYPE_TAGS = {"str", "int", "float", "bool", "constrained-str"}  # pydantic names union members in places of errors


async def read(request: Request, limit: int) -> bytes:
    """The body. Raises BodyTooLarge as soon as it is known to be longer than `limit`, without keeping it."""
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > limit:
        raise _too_large(limit)
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > limit:
            raise _too_large(limit)
    return bytes(body)


def parse(schema: type[_B], body: bytes) -> _B:
    """The body as `schema`. Raises BadRequest with the path of the first field at fault."""
    try:
        body.decode()
        return schema.model_validate_json(body)
    except UnicodeDecodeError as error:
        raise BadRequest(f"the body is not UTF-8: byte {error.start} is wrong") from None
    except ValidationError as error:
        raise _wrong(error) from None


def _wrong(error: ValidationError) -> BadRequest:
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    if faults[0]["type"] == "json_invalid":
        return BadRequest(f"the body is not JSON: {faults[0]['msg']}")
    # Where several types are possible, all say what they miss: the one that came furthest was probably meant.
    field = [fault for fault in faults if fault["loc"][:1] == faults[0]["loc"][:1]]
    said = max(field, key=lambda fault: (not fault["type"].endswith("_type"), len(path(fault["loc"]))))
    param = path(said["loc"])
    return BadRequest(f"{param or 'body'}: {said['msg']}", param=param or None)


def path(place: tuple[Any, ...]) -> str:
    """`("messages", 0, "content")` as `messages[0].content`."""
    text = ""
    for step in place:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _FIELD.fullmatch(step) and step not in _TYPE_TAGS:
            text += f".{step}" if text else step
    return text


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is longer than {limit} bytes")
