"""The paths of OpenAI's API."""

from typing import Any

from fastapi import APIRouter, Request

from legato_gateway.errors import Unsupported
from legato_gateway.openai import chat, completions
from legato_gateway.openai.schemas import ChatBody, CompletionBody
from legato_gateway.serving import openapi
from legato_gateway.serving.context import ServingContext
from legato_gateway.serving.handlers import add_generation
from legato_gateway.serving.model_serving import ServedModel


def router(serving: ServingContext) -> APIRouter:
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


def _add_models(routes: APIRouter, serving: ServingContext) -> None:
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
