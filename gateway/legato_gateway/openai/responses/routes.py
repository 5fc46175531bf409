"""The paths of the Responses API: creates responses and, if they are stored, continues, reads and deletes them."""

from functools import partial
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from msgspec import UNSET, Raw, UnsetType
from msgspec.json import encode
from starlette.responses import Response

from legato_gateway.errors import BadRequest, NotFound, Unsupported
from legato_gateway.openai.responses import input_items, items
from legato_gateway.openai.responses.body import InputTokensBody, ResponsesBody
from legato_gateway.openai.responses.output import Fields
from legato_gateway.openai.responses.prepare import CheckedResponse, count, prepare
from legato_gateway.openai.responses.store import ResponseStore, StoredResponse, Turn
from legato_gateway.serving import openapi
from legato_gateway.serving.context import ServingContext
from legato_gateway.serving.generation_response import GenerationResponse
from legato_gateway.serving.handlers import prepared
from legato_gateway.serving.prepared_request import Asked, PreparedRequest


def router(serving: ServingContext, store: ResponseStore | None) -> APIRouter:
    """Returns the routes under `/v1`."""
    routes = APIRouter(prefix="/v1", responses=openapi.errors())
    shown: dict[str, Any] = {"openapi_extra": openapi.takes(ResponsesBody), "responses": openapi.generated()}

    @routes.post("/responses", response_model=None, **shown)
    async def create_response(request: Request) -> GenerationResponse:
        talk = _StoredTalk(store)
        checked = await prepared(serving, request, prepare, talk.look_up)
        return GenerationResponse(talk.prepared(checked, serving), serving.relay, serving.streams)

    @routes.post("/responses/input_tokens", openapi_extra=openapi.takes(InputTokensBody))
    async def input_tokens(request: Request) -> dict[str, Any]:
        """The number of tokens of a response's prompt."""
        tokens = await prepared(serving, request, count, _StoredTalk(store).look_up)
        return {"object": "response.input_tokens", "input_tokens": tokens}

    @routes.get("/responses/{id}", response_model=None)
    async def response(request: Request, id: str) -> Response:
        """A stored response."""
        stored = _stored(store, serving, request, id)
        for name, value in request.query_params.items():
            if name != "include_obfuscation" and (name, value) != ("stream", "false"):
                raise Unsupported(f"{name[:40]} is not supported by this server", param=name[:40])
        return Response(stored.json, media_type="application/json")

    @routes.get("/responses/{id}/input_items", response_model=None, openapi_extra=input_items.SHOWN)
    async def response_input_items(request: Request, id: str) -> Response:
        """A page of the input items of a stored response."""
        stored = _stored(store, serving, request, id)
        listed = input_items.page(
            [turn.items for turn in stored.input_turns()], input_items.query(request.query_params)
        )
        return Response(encode(listed), media_type="application/json")

    @routes.delete("/responses/{id}")
    async def delete_response(request: Request, id: str) -> dict[str, Any]:
        """Deletes a stored response."""
        stored = _stored(store, serving, request, id)
        assert store is not None
        store.delete(serving.clients.identify(request.scope).owner, stored.id)
        return {"id": stored.id, "object": "response", "deleted": True}

    @routes.post("/responses/{id}/cancel")
    async def cancel_response(request: Request, id: str) -> None:
        """Always an error: disconnecting cancels, and nothing runs in the background."""
        _stored(store, serving, request, id)
        raise BadRequest(f"the response {id[:80]!r} cannot be cancelled: it is complete")

    return routes


def _stored(store: ResponseStore | None, serving: ServingContext, request: Request, id: str) -> StoredResponse:
    tenant = serving.clients.identify(request.scope).owner
    if store is None:
        raise NotFound("this server stores no responses", param="response_id", code="not_found")
    if (response := store.get(tenant, id)) is None:
        text = f"no response is stored here under {id[:80]!r}, or not any more"
        raise NotFound(text, param="response_id", code="not_found")
    return response


class _Outline(msgspec.Struct):
    previous_response_id: Raw | UnsetType = UNSET


_PREVIOUS = b'"previous_response_id"'
_OUTLINE = msgspec.json.Decoder(_Outline)
_ID = msgspec.json.Decoder(str)


class _StoredTalk:
    """The stored conversation that one request continues, and in which its response is stored."""

    def __init__(self, store: ResponseStore | None) -> None:
        self._store = store
        self._tenant = ""
        self._before: Turn | None = None

    def look_up(self, asked: Asked, raw: bytearray) -> tuple[dict[str, Any], int]:
        """Returns arguments for `prepare` and their bytes. The store is here, not in the process that may run it."""
        if self._store is None:
            return {}, 0
        self._tenant = asked.client.owner
        id = _previous(raw)
        continued = self._store.get(self._tenant, id) if id is not None else None
        if id is None or continued is None:
            return {"stores": True}, 0
        self._before = continued.last
        before = [turn.items for turn in continued.turns()]
        return {"stores": True, "before": before}, sum(map(len, before))

    def prepared(self, checked: CheckedResponse, serving: ServingContext) -> PreparedRequest:
        """Returns the request. Its writer stores the response, if it may be stored."""
        if checked.kept is not None:
            checked.writer.keep = partial(self._keep, checked.kept)
        return PreparedRequest(
            requests=(checked.request,),
            writer=checked.writer,
            stream=checked.stream,
            explain=checked.request.explain,
            id=checked.request.id,
            model=checked.request.model or serving.current_model.model.name,
        )

    def _keep(self, input: bytes, response: Fields) -> None:
        assert self._store is not None
        last = Turn(items.encoded_output(response["output"]), Turn(input, self._before))
        self._store.put(self._tenant, StoredResponse(response["id"], encode(response), last))


def _previous(raw: bytearray) -> str | None:
    """Returns the id of the response that a body continues. `prepare` raises errors of the field.

    Only bodies that contain the field are decoded: 8 MiB take some 10 ms.
    """
    if _PREVIOUS not in raw:
        return None
    try:
        previous = _OUTLINE.decode(raw).previous_response_id
        return None if previous is UNSET else _ID.decode(previous)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
