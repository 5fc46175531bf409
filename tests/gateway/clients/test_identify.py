"""Who may ask, as whom, over HTTP."""

from ipaddress import ip_network
from itertools import product

import httpx
import openai
import pytest
import scripted_gateway

from legato_gateway.clients.identify import Clients
from legato_gateway.http.control import WithAPI

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def keys(tmp_path):
    return scripted_gateway.keyed(tmp_path, a={"maxPriority": 5}, b={"sharedPrefixCache": True})


@pytest.fixture
def keyed(keys, make):
    return make(clients=Clients(keys))


async def test_without_a_known_key_nothing_is_answered(keyed):
    keys = (None, "", "key-a", "Basic key-a", "Bearer", "Bearer ", "Bearer key-c", "Bearer é")
    for shown, path in product(keys, ("models", "models/tiny", "chat/completions")):
        headers = {} if shown is None else {"authorization": shown.encode()}
        body = {"method": "POST", "json": CHAT} if path.endswith("completions") else {"method": "GET"}
        answer = await keyed.http.request(url=f"/v1/{path}", headers=headers, **body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
        assert answer.headers["www-authenticate"] == "Bearer"
    assert not keyed.relay.generations


async def test_a_key_says_the_tenant_whatever_the_client_says(keyed):
    claims = {"x-legato-tenant": "b", "authorization": "Bearer key-a"}
    assert (await keyed.chat(claims, user="c")).status_code == 200
    assert (await keyed.complete({"authorization": "bearer key-b"})).status_code == 200
    assert [request.tenant for request in keyed.relay.requests] == ["a", "b"]


async def test_tenants_have_prefix_caches_of_their_own_unless_theirs_is_shared(keyed):
    for key in ("key-a", "key-b"):
        for salt in ({}, {"cache_salt": "s"}):
            await keyed.chat({"authorization": f"Bearer {key}"}, **salt)
    salts = [request.cache_salt for request in keyed.relay.requests]
    assert len(set(salts)) == 4
    assert salts[2] == ""


async def test_a_priority_beyond_the_keys_is_refused(keyed):
    said = {"authorization": "Bearer key-a"}
    assert (await keyed.chat({**said, "x-legato-priority": "5"})).status_code == 200
    assert (await keyed.chat(said, priority=-5)).status_code == 200
    assert (await keyed.chat(said, priority=1000)).status_code == 200
    for answer in (await keyed.chat({**said, "x-legato-priority": "6"}), await keyed.chat(said, priority=-6)):
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "priority_not_allowed")
    assert len(keyed.relay.generations) == 3


async def test_a_body_of_nobody_is_not_read(keyed):
    async def body():
        raise AssertionError("read")
        yield b""

    assert (await keyed.http.post("/v1/completions", content=body())).status_code == 401


async def test_the_official_client_raises_its_error(keyed):
    with pytest.raises(openai.AuthenticationError):
        await keyed.client.models.list()
    client = keyed.client.with_options(api_key="key-a")
    assert [model.id async for model in client.models.list()] == ["tiny"]


async def test_probes_need_no_key(keyed):
    assert (await keyed.http.get("/healthz")).status_code == 200


async def test_the_word_of_a_trusted_proxy_is_taken_and_nobody_elses(keys, make):
    named = {"x-legato-tenant": "team"}
    trusted = make(clients=Clients(keys, [ip_network("127.0.0.0/8")]))
    assert (await trusted.chat(named)).status_code == 200
    assert (await trusted.chat()).status_code == 401  # it has not said whose it is
    assert (await trusted.chat({"authorization": "Bearer key-a"})).status_code == 200
    assert [request.tenant for request in trusted.relay.requests] == ["team", "a"]
    other = make(clients=Clients(None, [ip_network("10.0.0.0/8"), ip_network("fd00::/8")]))
    assert (await other.chat(named, user="team")).status_code == 200
    assert [request.tenant for request in other.relay.requests] == [""]


@pytest.mark.parametrize(
    ("network", "peer", "tenant"),
    [
        ("10.0.0.0/8", "10.1.2.3", "team"),
        ("10.0.0.0/8", "::ffff:10.1.2.3", "team"),
        ("10.0.0.0/8", "fd00::1", ""),
        ("fd00::/8", "fd00::1", "team"),
        ("10.1.2.3/32", "10.1.2.4", ""),
    ],
)
def test_which_peers_are_proxies(network, peer, tenant):
    scope = {"client": (peer, 1), "headers": [(b"x-legato-tenant", b"team")]}
    assert Clients(proxies=[ip_network(network)]).of(scope).tenant == tenant


async def test_the_control_port_has_asked_for_a_token_already(keyed):
    transport = httpx.ASGITransport(WithAPI(keyed.app, keyed.app))
    async with httpx.AsyncClient(transport=transport, base_url="http://control") as http:
        answer = await http.post("/v1/chat/completions", json=CHAT, headers={"authorization": "Bearer service-token"})
        assert answer.status_code == 200
