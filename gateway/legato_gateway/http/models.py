"""Routes of the served models, in OpenAI's format or, with the header that Anthropic's SDKs send, in Anthropic's."""

from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request

from legato_gateway.anthropic.errors import HEADER_VERSION
from legato_gateway.serving import openapi
from legato_gateway.serving.context import ServingContext
from legato_gateway.serving.model_serving import ServedModel


def router(serving: ServingContext) -> APIRouter:
    """Returns the routes under `/v1/models`."""
    routes = APIRouter(prefix="/v1", responses=openapi.errors())

    @routes.get("/models")
    async def models(request: Request) -> dict[str, Any]:
        """The served model, and its adapters."""
        serving.clients.identify(request.scope)
        served = serving.current_model.models
        data = [_fields(request, model) for model in served]
        if HEADER_VERSION in request.headers:
            return {"data": data, "first_id": served[0].name, "last_id": served[-1].name, "has_more": False}
        return {"object": "list", "data": data}

    @routes.get("/models/{name:path}")
    async def model(request: Request, name: str) -> dict[str, Any]:
        """The model of this name."""
        serving.clients.identify(request.scope)
        return _fields(request, serving.current_model.check_model(name))

    return routes


def _fields(request: Request, model: ServedModel) -> dict[str, Any]:
    if HEADER_VERSION in request.headers:
        created = datetime.fromtimestamp(model.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {"type": "model", "id": model.name, "display_name": model.name, "created_at": created}
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
