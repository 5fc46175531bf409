"""Results of a probe for each answer."""

import aiohttp
import pytest
from aiohttp import web
from answering_server import serving

from legato_operator.local.probes import probe


@pytest.mark.parametrize(
    ("status", "body", "passed", "message"),
    [
        (200, "ok\n", True, "ok"),
        (503, '{"ready": false, "why": "no worker is connected"}', False, "no worker is connected"),
        (200, '{"ready": true}', True, '{"ready": true}'),
        (503, "[1]", False, "[1]"),
        (503, "loading 7%", False, "loading 7%"),
    ],
)
async def test_the_message_is_meant_for_people(status: int, body: str, passed: bool, message: str) -> None:
    async def answer(_: web.BaseRequest) -> web.Response:
        return web.Response(status=status, text=body)

    async with serving(answer) as address, aiohttp.ClientSession() as session:
        answered = await probe(session, f"http://{address}/readyz", 10.0)
    assert (answered.passed, answered.message) == (passed, message)
