"""The paths of Anthropic's API."""

from fastapi import APIRouter, Request

from legato_gateway.anthropic import errors, messages
from legato_gateway.anthropic.schemas import CountTokensBody, MessagesBody
from legato_gateway.serving import openapi
from legato_gateway.serving.context import ServingContext
from legato_gateway.serving.handlers import add_generation, prepared


def router(serving: ServingContext) -> APIRouter:
    """Returns the routes under `/v1/messages`."""
    routes = APIRouter(prefix="/v1", responses=openapi.errors(errors.SCHEMA))
    add_generation(routes, serving, "/messages", messages.prepare, MessagesBody)

    @routes.post("/messages/count_tokens", openapi_extra=openapi.takes(CountTokensBody))
    async def count_tokens(request: Request) -> dict[str, int]:
        """The number of tokens of a message's prompt."""
        return {"input_tokens": await prepared(serving, request, messages.count)}

    return routes
