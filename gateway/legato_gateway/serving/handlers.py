"""Handles requests of all APIs. FastAPI does not read bodies: their size is limited while they arrive."""

import logging
import os
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import msgspec
from fastapi import APIRouter, Request

from legato_gateway.errors import DeadlineExceeded, LateBody
from legato_gateway.serving import ignored, openapi
from legato_gateway.serving.bodies import reading
from legato_gateway.serving.context import ServingContext
from legato_gateway.serving.disconnect import unless_left
from legato_gateway.serving.generation_response import GenerationResponse
from legato_gateway.serving.model_serving import ModelServing
from legato_gateway.serving.prepared_request import Asked, Prepare
from legato_gateway.tokenizer.block_cache import CacheCounts

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_LATE = "the body did not arrive before the deadline, or other large ones were received until then"


def add_generation(
    routes: APIRouter, serving: ServingContext, path: str, prepare: Prepare, schema: type[msgspec.Struct]
) -> None:
    """Adds a path whose body the model answers. `prepare` returns the request and the writer of its answer."""

    shown: dict[str, Any] = {"openapi_extra": openapi.takes(schema), "responses": openapi.generated()}

    @routes.post(path, response_model=None, name=path.strip("/").replace("/", "_"), **shown)
    async def generate(request: Request) -> GenerationResponse:
        return GenerationResponse(await prepared(serving, request, prepare), serving.relay, serving.streams)


async def prepared(
    serving: ServingContext,
    request: Request,
    prepare: Callable[[ModelServing, Asked, bytearray], _T],
    look_up: Callable[[Asked, bytearray], tuple[dict[str, Any], int]] | None = None,
) -> _T:
    """Reads a request and calls `prepare` off the event loop. Raises the client's errors.

    `look_up` returns keyword arguments for `prepare`, and the bytes in them that it will read.
    """
    client = serving.clients.identify(request.scope)
    deadline = serving.deadline(request.headers)
    reading.check_type(request)
    with serving.pending_bodies.body() as held, serving.body_slots.body() as slot:
        async with deadline.limit(LateBody(_LATE)):
            raw = await reading.read(request, serving.max_body_bytes, held, slot)
        async with deadline.limit(DeadlineExceeded("the prompt was not tokenized before the deadline")):
            asked = Asked(client, request.headers, deadline)
            looked_up, more = look_up(asked, raw) if look_up else ({}, 0)
            model = serving.current_model.bounded(client.max_output).salted(client.cache_salt(""))
            checked = partial(ignored.collected, partial(prepare, model, asked, **looked_up))
            work = serving.preparation.run(partial(_counted, model, checked), raw, more)
            (made, names), process, counts = await (unless_left(request.receive, work) if slot.held else work)
            serving.token_cache.update(process, counts)
            if names:
                ignored.keep(request.scope, names)
                _log.debug("answered without %s", ", ".join(names))
            return made


def _counted(model: ModelServing, prepare: Callable[[bytearray], _T], body: bytearray) -> tuple[_T, int, CacheCounts]:
    """Calls `prepare`, and returns its result, the process, and the use of its cache of token ids."""
    made = prepare(body)
    return made, os.getpid(), model.tokens.cache_counts
