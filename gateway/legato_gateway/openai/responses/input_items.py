"""`GET /v1/responses/{id}/input_items`: the input items of a stored response, page by page."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from starlette.datastructures import QueryParams

from legato_gateway.errors import BadRequest, Unsupported
from legato_gateway.openai.responses import items
from legato_gateway.openai.responses.body import INCLUDABLE, LOGPROBS
from legato_gateway.openai.responses.items import Content, ItemPart, StoredItem
from legato_gateway.openai.responses.output import Fields

MOST: Final = 100  # items per page; this and the next two are OpenAI's
LIMIT: Final = 20
ORDERS: Final = ("desc", "asc")


def _shown(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "schema": schema}


SHOWN: Final[dict[str, Any]] = {  # in `/openapi.json`
    "parameters": [
        _shown("after", {"type": "string"}),
        _shown("include", {"type": "array", "items": {"type": "string"}}),
        _shown("limit", {"type": "integer", "minimum": 1, "maximum": MOST, "default": LIMIT}),
        _shown("order", {"type": "string", "enum": list(ORDERS), "default": ORDERS[0]}),
    ]
}


@dataclass(frozen=True, slots=True)
class ItemQuery:
    """A query for `limit` items after the one with the id `after`, in descending or ascending order."""

    after: str | None = None
    limit: int = LIMIT
    order: str = ORDERS[0]


def query(params: QueryParams) -> ItemQuery:
    """Parses the query of a URL. Raises BadRequest, Unsupported with the parameter."""
    for name, value in params.multi_items():
        if name in ("include", "include[]"):  # the official client writes lists with brackets
            _check_included(value)
        elif name not in ("after", "limit", "order"):
            raise Unsupported(f"{name[:40]} is not supported by this server", param=name[:40])
    order = params.get("order", ORDERS[0])
    if order not in ORDERS:
        raise BadRequest(f"not a valid order: {order[:40]!r} ({', '.join(ORDERS)})", param="order")
    return ItemQuery(params.get("after"), _limit(params.get("limit", str(LIMIT))), order)


def page(turns: Sequence[bytes], asked: ItemQuery) -> Fields:
    """Returns a list in OpenAI's format. Raises BadRequest if no item has the id `after`.

    `turns` are the turns that the response answers, as JSON, first to last; only the needed ones are decoded.
    """
    ordered = _ordered(turns, asked.order)
    if asked.after is not None and not any(item.id == asked.after for item in ordered):
        raise BadRequest(f"after: no input item of this response has the id {asked.after[:80]!r}", param="after")
    data = list(islice(ordered, asked.limit + 1))
    more = len(data) > asked.limit
    shown = [_item(item) for item in data[: asked.limit]]
    first, last = (shown[0]["id"], shown[-1]["id"]) if shown else (None, None)
    return {"object": "list", "data": shown, "first_id": first, "last_id": last, "has_more": more}


def _check_included(value: str) -> None:
    if value == LOGPROBS:  # with them, a conversation would take many times the memory
        raise Unsupported(f"include: {value} is not supported by this server in lists of input items", param="include")
    if value not in INCLUDABLE:
        raise BadRequest(f"not a valid include: {value[:60]!r} ({', '.join(INCLUDABLE)})", param="include")


def _limit(value: str) -> int:
    number = int(value) if value.isascii() and value.isdigit() and len(value) <= len(str(MOST)) else 0
    if not 1 <= number <= MOST:
        raise BadRequest(f"not a valid limit: {value[:40]!r} (1 to {MOST})", param="limit")
    return number


def _ordered(turns: Sequence[bytes], order: str) -> Iterator[StoredItem]:
    backwards = order == "desc"
    for turn in reversed(turns) if backwards else turns:
        listed = items.decoded((turn,))
        yield from reversed(listed) if backwards else listed


def _item(item: StoredItem) -> Fields:
    kind = item.type or "message"
    known: Fields = {"type": kind, "id": item.id, "status": item.status}
    match kind:
        case "message" | "agent_message":
            parts = _parts(item.content, "output_text" if item.role == "assistant" else "input_text")
            return known | {"type": "message", "role": item.role or "user", "content": parts}
        case "function_call" | "custom_tool_call":
            said = {"input": item.input} if kind == "custom_tool_call" else {"arguments": item.arguments}
            inside = {"namespace": item.namespace} if item.namespace is not None else {}
            return known | {"call_id": item.call_id, "name": item.name, **said, **inside}
        case "function_call_output" | "custom_tool_call_output":
            output = item.output if isinstance(item.output, str) else _parts(item.output)
            return known | {"call_id": item.call_id, "output": output}
        case _:
            return known | {"summary": [], "content": _parts(item.content, "reasoning_text")}


def _parts(content: Content | None, kind: str = "input_text") -> list[Fields]:
    """Returns parts of one kind, whatever they were called. Only the model refuses."""
    given = (ItemPart("text", content),) if isinstance(content, str) else content or ()
    return [_part(part, kind) for part in given]


def _part(part: ItemPart, kind: str) -> Fields:
    refuses = part.type == "refusal"
    if refuses and kind == "output_text":
        return {"type": "refusal", "refusal": part.refusal}
    said: Fields = {"type": kind, "text": part.refusal if refuses else part.text}
    return said | {"annotations": []} if kind == "output_text" else said
