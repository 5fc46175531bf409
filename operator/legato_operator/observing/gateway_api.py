"""Gateways' control ports over HTTP: their reports of demand, and waits for changes."""

import asyncio
import contextlib
import logging
from collections.abc import Sequence

import aiohttp

from legato_operator.observing.control_port import ControlPort
from legato_operator.observing.observed import PeerTLS
from legato_protocol.process.followed_files import InvalidFile
from legato_protocol.wire import demand
from legato_protocol.wire.canary import CANARY_PATH, Canary, encode
from legato_protocol.wire.demand import BadReport, DemandReport

TIMEOUT = 1.5  # seconds for a whole answer; the next poll comes soon
MAX_CONCURRENT = 32  # requests; others wait outside the timeout and the client
MAX_BYTES = 8 << 20  # of an answer
log = logging.getLogger(__name__)


class HttpGateways:
    """Polls gateways. A gateway that does not answer in time, or answers invalid data, has no report."""

    def __init__(self, session: aiohttp.ClientSession, timeout: float = TIMEOUT) -> None:
        """The session must not limit its connections: each wait for a change keeps one."""
        self._control = ControlPort(session, timeout)
        self._patient = ControlPort(session, demand.LONGEST_WAIT + timeout)
        self._slots = asyncio.Semaphore(MAX_CONCURRENT)

    async def report(self, address: str, tokens: Sequence[str], tls: PeerTLS | None = None) -> DemandReport | None:
        """Returns the report of the gateway at this address, or None."""
        async with self._slots:
            return await _report(self._control.request("GET", address, demand.DEMAND_PATH, tokens, tls))

    async def set_canary(
        self, address: str, tokens: Sequence[str], canary: Canary | None, tls: PeerTLS | None = None
    ) -> None:
        """Sets or ends a gateway's canary. The next plan repeats the request if the gateway does not answer."""
        method, body = ("DELETE", b"") if canary is None else ("PUT", encode(canary))
        try:
            async with (
                self._slots,
                self._control.request(method, address, CANARY_PATH, tokens, tls, body) as answer,
            ):
                if answer.status >= 300:
                    log.warning("%s refuses a canary: %s: %s", address, answer.status, await answer.text())
        except (aiohttp.ClientError, TimeoutError, InvalidFile):
            return

    async def changes(self, address: str, tokens: Sequence[str], seen: str, tls: PeerTLS | None = None) -> bool:
        """Waits up to `LONGEST_WAIT` seconds; True once a report's digest differs from `seen`, or nothing answers.

        Also True while requests are queued: older gateways wait only for queued requests, or not at all.
        """
        path = f"{demand.DEMAND_PATH}?{demand.WAIT}={demand.LONGEST_WAIT:g}&{demand.SEEN}={seen}"
        report = await _report(self._patient.request("GET", address, path, tokens, tls))
        return report is None or report.digest != seen or report.queued_requests > 0


async def _report(asked: contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]) -> DemandReport | None:
    try:
        async with asked as answer:
            return demand.decode(await _body(answer.content)) if answer.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, BadReport, InvalidFile):
        return None


async def _body(content: aiohttp.StreamReader) -> bytes:
    """Returns a body. Raises BadReport if it is too long."""
    body = bytearray()
    async for piece in content.iter_any():
        body += piece
        if len(body) > MAX_BYTES:
            raise BadReport(f"more than {MAX_BYTES} bytes")
    return bytes(body)
