"""The application of the OpenAI API's tests, and Anthropic's official client for it."""

import importlib.util
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import pytest

_FILE = Path(__file__).parents[1] / "openai" / "conftest.py"
_SPEC = importlib.util.spec_from_file_location("scripted_gateway", _FILE)
assert _SPEC is not None
assert _SPEC.loader is not None
_SHARED = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_SHARED)

gateway, make, anyio_backend = _SHARED.gateway, _SHARED.make, _SHARED.anyio_backend


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
