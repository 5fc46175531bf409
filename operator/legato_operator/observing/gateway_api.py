"""Gateways' control ports over HTTP: what they tell of demand."""

import asyncio
from collections.abc import Sequence

import aiohttp

from legato_operator.observing.control_port import ControlPort
from legato_operator.observing.observed import PeerTLS
from legato_protocol import demand
from legato_protocol.demand import BadReport, DemandReport
from legato_protocol.followed_files import InvalidFile

TIMEOUT = 1.5  # seconds for a whole answer: the next time they are asked comes soon
MAX_CONCURRENT = 32  # requests; others wait outside of the timeout and of the client
MAX_BYTES = 8 << 20  # of an answer


class HttpGateways:
    """Asks gateways. One that does not answer in time, or answers nonsense, has no report."""

    def __init__(self, session: aiohttp.ClientSession, timeout: float = TIMEOUT) -> None:
        self._control = ControlPort(session, timeout)
        self._turns = asyncio.Semaphore(MAX_CONCURRENT)

    async def report(self, address: str, tokens: Sequence[str], tls: PeerTLS | None = None) -> DemandReport | None:
        """Of the gateway whose control port is there."""
        try:
            asked = self._control.request("GET", address, demand.DEMAND_PATH, tokens, tls)
            async with self._turns, asked as answer:
                if answer.status != 200:
                    return None
                return demand.decode(await _body(answer.content))
        except (aiohttp.ClientError, TimeoutError, BadReport, InvalidFile):
            return None


async def _body(content: aiohttp.StreamReader) -> bytes:
    """Raises BadReport for one that is too long."""
    body = bytearray()
    async for piece in content.iter_any():
        body += piece
        if len(body) > MAX_BYTES:
            raise BadReport(f"more than {MAX_BYTES} bytes")
    return bytes(body)
