"""`legato state`: what gateways tell on their control ports, to who has the service's token."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import certificates
import pytest
from aiohttp import web

from legato_cli import main, state
from legato_cli.ui import sources
from legato_cli.ui.target import GatewayTarget, NoTarget, UITarget
from legato_operator.observing.observed import PeerTLS
from legato_protocol.tls_files import server_context


@contextlib.asynccontextmanager
async def gateways(
    *states: Mapping[str, Any],
    token: str = "secret",
    context: ssl.SSLContext | None = None,
    tls: PeerTLS | None = None,
) -> AsyncIterator[UITarget]:
    """Control ports that tell these states; with TLS if there is a `context`."""
    async with contextlib.AsyncExitStack() as stack:
        found = []
        for number, told in enumerate(states):
            found.append(GatewayTarget(f"g{number}", await stack.enter_async_context(control_port(told, context)), tls))
        yield UITarget(tuple(found), token, {})


@contextlib.asynccontextmanager
async def control_port(told: Mapping[str, Any], context: ssl.SSLContext | None) -> AsyncIterator[str]:
    async def answer(request: web.Request) -> web.Response:
        if request.headers.get("authorization") != "Bearer secret":
            return web.json_response({"error": "token"}, status=401)
        return web.json_response(told)

    app = web.Application()
    app.router.add_get("/state", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    try:
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


class Found:
    def __init__(self, target: UITarget) -> None:
        self._target = target

    async def find(self) -> UITarget:
        return self._target


async def _read(target: UITarget) -> list[dict[str, Any]]:
    return await state.read(contextlib.nullcontext(Found(target)))


def test_each_gateway_is_asked_with_the_token_and_named() -> None:
    async def test() -> None:
        async with gateways({"workers": [1]}, {"workers": [2]}) as target:
            assert await _read(target) == [{"gateway": "g0", "workers": [1]}, {"gateway": "g1", "workers": [2]}]

    asyncio.run(test())


def test_a_gateway_with_tls_proves_who_it_is_before_it_is_shown_the_token(tmp_path: Path) -> None:
    async def test() -> None:
        files = certificates.make(tmp_path / "tls", names="subjectAltName=DNS:s-workers.n.svc")
        context, authority = server_context(files.certificate, files.key), files.authority.read_text()
        async with gateways({"a": 1}, context=context, tls=PeerTLS(authority, "s-workers.n.svc")) as target:
            assert await _read(target) == [{"gateway": "g0", "a": 1}]
        async with gateways({"a": 1}, context=context, tls=PeerTLS(authority, "x-workers.n.svc")) as target:
            with pytest.raises(NoTarget, match=r"gateway g0 does not tell its state: .*certificate"):
                await _read(target)

    asyncio.run(test())


def test_a_gateway_that_does_not_tell_is_named() -> None:
    async def test() -> None:
        async with gateways({}, token="other") as target:
            with pytest.raises(NoTarget, match="gateway g0 does not tell its state: 401"):
                await _read(target)
        with pytest.raises(NoTarget, match=r"gateway g0 does not tell its state: .*connect"):
            await _read(target)

    asyncio.run(test())


def test_without_a_ready_gateway_there_is_no_state() -> None:
    with pytest.raises(NoTarget, match="no gateway of this service is ready"):
        asyncio.run(_read(UITarget((), "secret", {})))


def test_states_are_printed_one_after_another(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    async def read(_source: object) -> list[dict[str, Any]]:
        return [{"gateway": "g0"}, {"gateway": "g1"}]

    monkeypatch.setattr(state, "read", read)
    monkeypatch.setattr(sources, "source", lambda *_: None)
    assert main.main(["state"]) == 0
    first, second = capsys.readouterr().out.split("}\n{")
    assert json.loads(first + "}") == {"gateway": "g0"}
    assert json.loads("{" + second) == {"gateway": "g1"}


@pytest.mark.parametrize(
    ("flags", "said"), [((), "no service is running"), (("--namespace", "prod"), "--service is required")]
)
def test_without_a_service_it_says_so(
    flags: tuple[str, ...], said: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert main.main(["state", *flags]) == 1
    assert capsys.readouterr().err.startswith(f"legato state: {said}")
