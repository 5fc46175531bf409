"""The operator sets and removes a canary on the control port."""

import httpx
import pytest

from legato_gateway.http import control
from legato_protocol.security.followed_tokens import ServiceTokens
from legato_protocol.wire import canary
from legato_protocol.wire.canary import CANARY_PATH, Canary

CANARY = Canary({"decode": "abc"}, 10)


@pytest.mark.parametrize(
    ("method", "body", "status", "calls"),
    [
        ("PUT", canary.encode(CANARY), 204, [CANARY]),
        ("DELETE", b"", 204, [None]),
        ("PUT", b'{"revisions": {"decode": "abc"}, "weight": 101}', 400, []),
        ("PUT", b'{"revisions": {"gateway": "abc"}, "weight": 10}', 400, []),
        ("PUT", b"", 400, []),
    ],
)
async def test_a_canary_is_set_removed_or_refused(method, body, status, calls):
    received = []
    app = control.create(None, None, None, None, ServiceTokens(""), print, None, received.append)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://control") as http:
        answer = await http.request(method, CANARY_PATH, content=body)
    assert (answer.status_code, received) == (status, calls)
