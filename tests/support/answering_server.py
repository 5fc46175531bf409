"""A server whose every answer a test gives, and a client of the operator that asks it."""

import contextlib

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer


@contextlib.asynccontextmanager
async def asking(client, answer, **settings):
    """`client` (HttpWorkers, HttpGateways), and the address of a server that answers so."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(application) as server, aiohttp.ClientSession() as session:
        yield client(session, **settings), f"{server.host}:{server.port}"
