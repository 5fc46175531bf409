"""The paths of OpenAI's API."""

from fastapi import APIRouter

from legato_gateway.errors import Unsupported
from legato_gateway.openai.chat import prepare as chat
from legato_gateway.openai.completions import prepare as completions
from legato_gateway.openai.schemas import ChatBody, CompletionBody
from legato_gateway.serving import openapi
from legato_gateway.serving.context import ServingContext
from legato_gateway.serving.handlers import add_generation


def router(serving: ServingContext) -> APIRouter:
    """Returns the routes under `/v1`."""
    routes = APIRouter(prefix="/v1", responses=openapi.errors())
    add_generation(routes, serving, "/chat/completions", chat.prepare, ChatBody)
    add_generation(routes, serving, "/completions", completions.prepare, CompletionBody)

    @routes.post("/embeddings", response_model=None)
    async def embeddings() -> None:
        """Always an error: this server has no embedding model."""
        raise Unsupported("embeddings are not supported by this server; it serves text generation only")

    return routes
