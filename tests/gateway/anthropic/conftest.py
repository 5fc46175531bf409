"""Anthropic's official client for the scripted gateway."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import anthropic
import httpx2
import pytest


@pytest.fixture
async def connect() -> AsyncIterator[Callable[..., anthropic.AsyncAnthropic]]:
    """Makes clients of gateways."""
    made: list[anthropic.AsyncAnthropic] = []

    def client(gateway: Any, **options: Any) -> anthropic.AsyncAnthropic:
        transport = httpx2.ASGITransport(gateway.app, raise_app_exceptions=False)
        http = httpx2.AsyncClient(transport=transport, base_url="http://gateway")
        given = {"api_key": "-", "max_retries": 0, **options}
        made.append(anthropic.AsyncAnthropic(base_url="http://gateway", http_client=http, **given))
        return made[-1]

    yield client
    for each in made:
        await each.close()


@pytest.fixture
def client(gateway: Any, connect: Callable[..., anthropic.AsyncAnthropic]) -> anthropic.AsyncAnthropic:
    return connect(gateway)
