"""`legato state`: answers of gateways on their control ports, for the service's token."""

import contextlib

import certificates
import pytest
from answering_server import serving
from fake_gateway import FakeGateway

from legato_cli.errors import ServiceUnavailable
from legato_cli.services import state
from legato_cli.ui.target import ControlTarget, UITarget
from legato_operator.observing.observed import PeerTLS
from legato_protocol.security.tls_files import server_context


@contextlib.asynccontextmanager
async def gateways(*known, token="secret", context=None, tls=None):
    """Control ports with this state; with TLS if there is a `context`."""
    async with contextlib.AsyncExitStack() as stack:
        addresses = [await stack.enter_async_context(serving(FakeGateway(each).answer, context)) for each in known]
        yield UITarget(tuple(ControlTarget(f"g{i}", at, tls) for i, at in enumerate(addresses)), token, {})


async def _read(target):
    class Source:
        async def find(self):
            return target

    return await state.read(contextlib.nullcontext(Source()))


async def test_each_gateway_is_asked_with_the_token_and_named():
    async with gateways("a", "b") as target:
        assert await _read(target) == [{"gateway": "g0", "workers": ["a"]}, {"gateway": "g1", "workers": ["b"]}]


async def test_a_gateway_with_tls_proves_its_name_before_it_is_shown_the_token(tmp_path):
    files = certificates.make(tmp_path / "tls", names="subjectAltName=DNS:s-workers.n.svc")
    context, authority = server_context(files.certificate, files.key), files.authority.read_text()
    async with gateways("a", context=context, tls=PeerTLS(authority, "s-workers.n.svc")) as target:
        assert await _read(target) == [{"gateway": "g0", "workers": ["a"]}]
    async with gateways("a", context=context, tls=PeerTLS(authority, "x-workers.n.svc")) as target:
        with pytest.raises(ServiceUnavailable, match=r"gateway g0 does not report its state: .*certificate"):
            await _read(target)


async def test_a_gateway_that_does_not_answer_is_named():
    async with gateways("a", token="other") as target:
        with pytest.raises(ServiceUnavailable, match="gateway g0 does not report its state: 401"):
            await _read(target)
    with pytest.raises(ServiceUnavailable, match=r"gateway g0 does not report its state: .*connect"):
        await _read(target)


async def test_without_a_ready_gateway_there_is_no_state():
    with pytest.raises(ServiceUnavailable, match="no gateway of this service is ready"):
        await _read(UITarget((), "secret", {}))
