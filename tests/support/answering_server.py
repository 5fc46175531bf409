"""A server whose every answer a test gives, and a client of the operator that asks it."""

import contextlib

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer


@contextlib.asynccontextmanager
async def serving(answer, context=None):
    """Address of a server that answers so, with TLS if there is a `context`; a client that leaves ends its answer."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    server = TestServer(application, scheme="https" if context else "http")
    await server.start_server(ssl=context, shutdown_timeout=0.1)
    try:
        yield f"{server.host}:{server.port}"
    finally:
        await server.close()


@contextlib.asynccontextmanager
async def asking(client, answer, context=None, **settings):
    """`client` (HttpWorkers, HttpGateways), and the address of a server that answers so, with TLS if given.

    Without a `timeout` among the settings, the client waits for a minute: 2 s may pass on a busy machine.
    """
    async with aiohttp.ClientSession() as session, serving(answer, context) as address:
        yield client(session, **{"timeout": 60.0, **settings}), address
