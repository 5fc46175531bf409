"""`legato state`: what gateways answer on their control ports, to who has the service's token."""

import contextlib
import json
from functools import partial

import certificates
import pytest
from aiohttp import web
from answering_server import serving

from legato_cli import state
from legato_cli.ui import sources
from legato_cli.ui.target import GatewayTarget, NoTarget, UITarget
from legato_operator.observing.observed import PeerTLS
from legato_protocol.tls_files import server_context

pytestmark = pytest.mark.anyio


@contextlib.asynccontextmanager
async def gateways(*states, token="secret", context=None, tls=None):
    """Control ports that answer with these states; with TLS if there is a `context`."""

    async def answer(known, request):
        if (request.path, request.headers.get("authorization")) != ("/state", "Bearer secret"):
            return web.json_response({"error": "token"}, status=401)
        return web.json_response(known)

    async with contextlib.AsyncExitStack() as stack:
        addresses = [await stack.enter_async_context(serving(partial(answer, each), context)) for each in states]
        yield UITarget(tuple(GatewayTarget(f"g{i}", at, tls) for i, at in enumerate(addresses)), token, {})


async def _read(target):
    class Source:
        async def find(self):
            return target

    return await state.read(contextlib.nullcontext(Source()))


async def test_each_gateway_is_asked_with_the_token_and_named():
    async with gateways({"workers": [1]}, {"workers": [2]}) as target:
        assert await _read(target) == [{"gateway": "g0", "workers": [1]}, {"gateway": "g1", "workers": [2]}]


async def test_a_gateway_with_tls_proves_who_it_is_before_it_is_shown_the_token(tmp_path):
    files = certificates.make(tmp_path / "tls", names="subjectAltName=DNS:s-workers.n.svc")
    context, authority = server_context(files.certificate, files.key), files.authority.read_text()
    async with gateways({"a": 1}, context=context, tls=PeerTLS(authority, "s-workers.n.svc")) as target:
        assert await _read(target) == [{"gateway": "g0", "a": 1}]
    async with gateways({"a": 1}, context=context, tls=PeerTLS(authority, "x-workers.n.svc")) as target:
        with pytest.raises(NoTarget, match=r"gateway g0 does not tell its state: .*certificate"):
            await _read(target)


async def test_a_gateway_that_does_not_answer_is_named():
    async with gateways({}, token="other") as target:
        with pytest.raises(NoTarget, match="gateway g0 does not tell its state: 401"):
            await _read(target)
    with pytest.raises(NoTarget, match=r"gateway g0 does not tell its state: .*connect"):
        await _read(target)


async def test_without_a_ready_gateway_there_is_no_state():
    with pytest.raises(NoTarget, match="no gateway of this service is ready"):
        await _read(UITarget((), "secret", {}))


def test_states_are_printed_one_after_another(monkeypatch, legato):
    async def read(_source):
        return [{"gateway": "g0"}, {"gateway": "g1"}]

    monkeypatch.setattr(state, "read", read)
    monkeypatch.setattr(sources, "source", lambda *_: None)
    code, out, _ = legato("state")
    assert code == 0
    assert json.loads("[" + out.replace("}\n{", "},{") + "]") == [{"gateway": "g0"}, {"gateway": "g1"}]
