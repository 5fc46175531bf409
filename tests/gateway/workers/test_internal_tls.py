"""Workers with TLS: a gateway shows the service's token to none that cannot prove who it is."""

import asyncio
from unittest.mock import Mock

from websockets.asyncio.server import serve

from legato_gateway.discovery.addresses import WorkerAddress
from legato_gateway.workers.links import opener
from legato_gateway.workers.silence import StreamLimits
from legato_protocol.security.followed_tokens import ServiceTokens
from legato_protocol.security.tls_files import InternalTLS, server_context
from legato_protocol.wire import stream

NAME = "s-workers.demo.svc"
LIMITS = StreamLimits(backoff_first=0.001, backoff_most=0.01)


async def _outcome(lab, trust, *, served=None, tls=True, strict=False):
    """Returns "greeted", or why not, and the number of connections to the worker, which saw a token with each."""
    (worker,) = lab.unified(1)
    seen, outcome = [], asyncio.get_running_loop().create_future()

    def end(result):
        if not outcome.done():
            outcome.set_result(result)

    async def talk(connection):
        seen.append(connection.request.headers["authorization"])
        await connection.recv()
        await connection.send(stream.encode(worker._hello()))
        await connection.wait_closed()

    listener = Mock()
    listener.greeted.side_effect = lambda *_: end("greeted")
    listener.disconnected.side_effect = lambda _, reason: end(reason)
    async with asyncio.timeout(90), serve(talk, "127.0.0.1", 0, ssl=served) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        address = WorkerAddress("u0", f"127.0.0.1:{port}", tls)
        opened = opener("g", ServiceTokens("secret"), LIMITS, trust, strict)(address, listener)
        opened.start(lambda fault: None, lambda stream: None)
        await outcome
        await opened.close()
        return outcome.result(), len(seen)


def _internal(folder, files, name=NAME):
    folder.mkdir()
    files.install(folder)
    return InternalTLS(folder, name)


async def test_a_worker_is_known_by_the_authority_and_the_one_name_whatever_its_address(lab, files, others, tmp_path):
    served, own = server_context(files.certificate, files.key), _internal(tmp_path / "own", files)
    assert (await _outcome(lab, own, served=served))[0] == "greeted"
    assert (await _outcome(lab, own, served=served, tls=False, strict=True))[0] == "greeted"
    for trust in (
        _internal(tmp_path / "others", others),
        _internal(tmp_path / "name", files, "x-workers.demo.svc"),
        None,  # of this machine
    ):
        reason, connections = await _outcome(lab, trust, served=served)
        assert "certificate verify failed" in reason
        assert connections == 0


async def test_strict_speaks_to_no_worker_without_tls_and_permissive_does(lab, files, tmp_path):
    own = _internal(tmp_path / "own", files)
    assert (await _outcome(lab, own, tls=False))[0] == "greeted"
    for given in ({"tls": False, "strict": True}, {"tls": True}):
        outcome, connections = await _outcome(lab, own, **given)
        assert (outcome != "greeted", connections) == (True, 0)
