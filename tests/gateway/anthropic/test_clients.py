"""API keys, as clients of Anthropic's API send them."""

import json
from pathlib import Path
from typing import Any

import anthropic
import pytest

from legato_gateway.clients import api_keys
from legato_gateway.clients.identify import Clients
from legato_gateway.clients.key_file import KeyFile

ASKED: Any = {"model": "tiny", "max_tokens": 20, "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def gateway(tmp_path: Path, make: Any) -> Any:
    path = tmp_path / "api-keys.json"
    path.write_text(json.dumps({"tenants": {"a": {"keys": [api_keys.digest("key-a")]}}}))
    return make(clients=Clients(KeyFile(path)))


async def test_the_official_client_shows_its_key(gateway: Any, connect: Any) -> None:
    await connect(gateway, api_key="key-a").messages.create(**ASKED)
    await connect(gateway, api_key=None, auth_token="key-a").messages.count_tokens(
        model="tiny", messages=ASKED["messages"]
    )
    assert [request.tenant for request in gateway.relay.requests] == ["a"]
    for path in ("messages", "messages/count_tokens"):
        answer = await gateway.http.post(f"/v1/{path}", json=ASKED)
        assert (answer.status_code, answer.json()["error"]["type"]) == (401, "authentication_error")
    with pytest.raises(anthropic.AuthenticationError):
        await connect(gateway, api_key="key-b").messages.create(**ASKED)


@pytest.mark.parametrize(("key", "status"), [("key-a", 200), ("key-b", 401), ("", 401)])
async def test_older_clients_show_it_in_a_header_of_its_own(gateway: Any, key: str, status: int) -> None:
    answer = await gateway.http.post("/v1/messages", json=ASKED, headers={"x-api-key": key})
    assert answer.status_code == status
