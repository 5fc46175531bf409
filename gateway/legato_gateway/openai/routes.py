"""The paths of OpenAI's API. Bodies are read here, not by FastAPI: their size is limited while they arrive."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import msgspec
from fastapi import APIRouter, Request

from legato_gateway.errors import DeadlineExceeded, LateBody, Unsupported
from legato_gateway.openai import bodies, chat, completions, openapi
from legato_gateway.openai.generation_response import GenerationResponse, PreparedRequest
from legato_gateway.openai.params import Asked
from legato_gateway.openai.schemas import ChatBody, CompletionBody
from legato_gateway.openai.serving import ModelServing, OpenAIServing, ServedModel

Prepare = Callable[[ModelServing, Asked, bytearray], PreparedRequest]
_T = TypeVar("_T")


def router(serving: OpenAIServing) -> APIRouter:
    """Routes under `/v1`."""
    routes = APIRouter(prefix="/v1", responses=openapi.errors())
    add_generation(routes, serving, "/chat/completions", chat.prepare, ChatBody)
    add_generation(routes, serving, "/completions", completions.prepare, CompletionBody)
    _add_models(routes, serving)

    @routes.post("/embeddings", response_model=None)
    async def embeddings() -> None:
        """Always an error: this server has no embedding model."""
        raise Unsupported("embeddings are not supported by this server; it serves text generation only")

    return routes


def add_generation(
    routes: APIRouter, serving: OpenAIServing, path: str, prepare: Prepare, schema: type[msgspec.Struct]
) -> None:
    """A path whose body is answered by the model: `prepare` makes of it a request and the writer of its answer."""

    shown: dict[str, Any] = {"openapi_extra": openapi.takes(schema), "responses": openapi.generated()}

    @routes.post(path, response_model=None, name=path.strip("/").replace("/", "_"), **shown)
    async def generate(request: Request) -> GenerationResponse:
        return GenerationResponse(await prepared(serving, request, prepare), serving.relay, serving.streams)


async def prepared(
    serving: OpenAIServing,
    request: Request,
    prepare: Callable[[ModelServing, Asked, bytearray], _T],
    look_up: Callable[[Asked, bytearray], tuple[dict[str, Any], int]] | None = None,
) -> _T:
    """What `prepare` makes of a request, off the event loop, with what `look_up` has found for it before: by name, and
    how many bytes of it there are to read. Raises what the client is told."""
    client = serving.clients.of(request.scope)
    deadline = serving.deadline(request.headers)
    bodies.check_type(request)
    with serving.pending_bodies.body() as held:
        async with deadline.limit(LateBody("the body did not arrive before the deadline")):
            raw = await bodies.read(request, serving.max_body_bytes, held, serving.body_turns)
        async with deadline.limit(DeadlineExceeded("the prompt was not tokenized before the deadline")):
            asked = Asked(client, request.headers, deadline)
            found, more = look_up(asked, raw) if look_up else ({}, 0)
            return await serving.preparation.run(partial(prepare, serving.of_model, asked, **found), raw, more)


def _add_models(routes: APIRouter, serving: OpenAIServing) -> None:
    @routes.get("/models")
    async def models(request: Request) -> dict[str, Any]:
        """The model that is served, and its adapters."""
        serving.clients.of(request.scope)
        return {"object": "list", "data": [_model_fields(model) for model in serving.of_model.models]}

    @routes.get("/models/{name:path}")
    async def model(request: Request, name: str) -> dict[str, Any]:
        """The model of this name."""
        serving.clients.of(request.scope)
        return _model_fields(serving.of_model.check_model(name))


def _model_fields(model: ServedModel) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "legato",
        "root": model.parent or model.name,
        "parent": model.parent or None,
        "max_model_len": model.context,
        "default_sampling_params": model.defaults.given(),
    }
