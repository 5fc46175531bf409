"""A server whose every answer a test gives, and a client of the operator that asks it."""

import contextlib

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer


@contextlib.asynccontextmanager
async def asking(client, answer, context=None, **settings):
    """`client` (HttpWorkers, HttpGateways), and the address of a server that answers so, with TLS if given."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    server = TestServer(application, scheme="https" if context else "http")
    async with aiohttp.ClientSession() as session:
        await server.start_server(ssl=context)
        try:
            yield client(session, **settings), f"{server.host}:{server.port}"
        finally:
            await server.close()
