"""Clients: as whom each may ask over HTTP, and the file with hashes of their keys, which is followed."""

import asyncio
import json
import logging
from ipaddress import ip_network
from itertools import product
from typing import Any

import httpx
import pytest
import scripted_gateway
from waiting import until

from legato_gateway.clients import api_keys
from legato_gateway.clients.api_keys import Client, InvalidAPIKeys, KeyFile
from legato_gateway.clients.identify import Clients, Quotas
from legato_gateway.http import control
from legato_protocol.process.followed_files import InvalidFile
from legato_protocol.security.followed_tokens import ServiceTokens

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
        method = "POST" if path == "chat/completions" else "GET"
        answer = await keyed.http.request(method, f"/v1/{path}", headers=headers, json=CHAT)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
        assert answer.headers["www-authenticate"] == "Bearer"
    assert not keyed.relay.generations


async def test_a_key_says_the_tenant_whatever_the_client_says(keyed):
    claims = {"x-legato-tenant": "b", "authorization": "Bearer key-a"}
    assert (await keyed.chat(claims, user="c")).status_code == 200
    assert (await keyed.complete({"authorization": "bearer key-b"})).status_code == 200
    assert [request.tenant for request in keyed.relay.requests] == ["a", "b"]


async def test_tenants_have_caches_of_prefixes_and_token_ids_of_their_own_unless_theirs_is_shared(keyed):
    for key in ("key-a", "key-b"):
        for salt in ({}, {"cache_salt": "s"}):
            await keyed.chat({"authorization": f"Bearer {key}"}, **salt)
    salts = [request.cache_salt for request in keyed.relay.requests]
    assert len(set(salts)) == 4
    assert salts[2] == ""
    own = {"authorization": "Bearer key-a"}
    await keyed.complete(own, cache_salt="s")
    for asked in ({"prompt": "hi"}, {"messages": CHAT["messages"]}):
        assert (await keyed.http.post("/tokenize", headers=own, json=asked)).status_code == 200
    assert keyed.tokens.salts[-7:] == [*salts, salts[1], salts[0], salts[0]]


async def test_a_priority_beyond_the_keys_is_refused(keyed):
    asked = [({"x-legato-priority": "5"}, {}, 200), ({}, {"priority": -5}, 200), ({}, {"priority": 1000}, 200)]
    asked += [({"x-legato-priority": "6"}, {}, 403), ({}, {"priority": -6}, 403)]
    for headers, fields, status in asked:
        answer = await keyed.chat({"authorization": "Bearer key-a", **headers}, **fields)
        assert answer.status_code == status
        assert status == 200 or answer.json()["error"]["code"] == "priority_not_allowed"


async def test_the_word_of_a_trusted_proxy_is_taken_and_nobody_elses(keys, make):
    named = {"x-legato-tenant": "team"}
    trusted = make(clients=Clients(keys, [ip_network("127.0.0.0/8")]))
    assert (await trusted.chat(named)).status_code == 200
    assert (await trusted.chat()).status_code == 401  # it has not said whose it is
    assert (await trusted.chat({"authorization": "Bearer key-a"})).status_code == 200
    assert [request.tenant for request in trusted.relay.requests] == ["team", "a"]
    other = make(clients=Clients(None, [ip_network("10.0.0.0/8"), ip_network("fd00::/8")]))
    assert (await other.chat(named, user="team")).status_code == 200
    assert [request.tenant for request in other.relay.requests] == ["address 127.0.0.1"]


def test_the_longest_answer_of_a_tenant_is_that_of_the_file_before_that_of_the_settings(tmp_path):
    keys = scripted_gateway.keyed(tmp_path, a={"maxOutputTokens": 9}, b={})
    for settings, expected in (({"a": 5, "b": 6, "*": 7}, [9, 6, 7]), ({}, [9, None, None])):
        clients = Clients(keys, [ip_network("10.0.0.0/8")], settings)
        named = [[(b"x-legato-tenant", tenant)] for tenant in (b"a", b"b", b"c")]
        assert [clients.identify({"client": ("10.0.0.1", 1), "headers": each}).max_output for each in named] == expected


def _of(peer, *networks, **headers):
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Clients(proxies=list(map(ip_network, networks))).identify({"client": peer and (peer, 1), "headers": raw})


@pytest.mark.parametrize(
    ("network", "peer", "tenant"),
    [
        ("10.0.0.0/8", "10.1.2.3", "team"),
        ("10.0.0.0/8", "::ffff:10.1.2.3", "team"),
        ("10.0.0.0/8", "fd00::1", "address fd00::/64"),
        ("fd00::/8", "fd00::1", "team"),
        ("10.1.2.3/32", "10.1.2.4", "address 10.1.2.4"),
    ],
)
def test_which_peers_are_proxies(network, peer, tenant):
    assert _of(peer, network, x_legato_tenant="team").tenant == tenant


PROXIES = ("10.0.0.0/8", "fd00::/8")


@pytest.mark.parametrize(
    ("peer", "networks", "forwarded", "tenant"),
    [
        ("192.0.2.1", (), "198.51.100.7", "192.0.2.1"),
        ("192.0.2.1", PROXIES, "198.51.100.7", "192.0.2.1"),
        ("::ffff:192.0.2.1", (), "", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", (), "", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", (), "", "fe80::/64"),
        ("10.0.0.1", PROXIES, "198.51.100.7", "198.51.100.7"),
        ("10.0.0.1", PROXIES, "203.0.113.1, 198.51.100.7,10.9.9.9 , fd00::2", "198.51.100.7"),
        ("10.0.0.1", PROXIES, "2001:db8::1", "2001:db8::/64"),
        ("10.0.0.1", PROXIES, "198.51.100.7:4711, [fd00::2]:80", "198.51.100.7"),
        ("10.0.0.1", PROXIES, "[2001:db8::1]", "2001:db8::/64"),
        ("10.0.0.1", PROXIES, "", "10.0.0.1"),
        ("10.0.0.1", PROXIES, "198.51.100.7, unknown, 10.0.0.2", "10.0.0.2"),
        ("10.0.0.1", PROXIES, "10.0.0.3", "10.0.0.3"),
    ],
)
def test_without_a_key_a_client_is_known_by_its_address(peer, networks, forwarded, tenant):
    """A page that sends such a header itself is not believed, nor are entries before those of proxies."""
    client = _of(peer, *networks, x_forwarded_for=forwarded)
    assert (client.tenant, client.owner) == (f"address {tenant}", "")
    assert client.cache_salt("") == Client().cache_salt("")


def test_clients_of_a_local_socket_are_one_tenant():
    assert _of(None) == _of("/run/gateway.sock") == Client()


async def test_the_control_port_has_asked_for_a_token_already(keyed):
    app = control.create(None, None, None, keyed.app, ServiceTokens("service-token"), print, None, None)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://control") as http:
        answer = await http.post("/v1/chat/completions", json=CHAT, headers={"authorization": "Bearer service-token"})
        assert answer.status_code == 200


HASH = api_keys.digest("a")


def _file(**tenants: Any) -> bytes:
    return json.dumps({"tenants": tenants}).encode()


def test_a_key_says_who_asks():
    a, b = {"keys": [api_keys.digest("a-1"), api_keys.digest("a-2")]}, {"keys": [api_keys.digest("b")]}
    a |= {"maxPriority": 5, "tokensPerMinute": 60, "maxOutputTokens": 9}
    keys = api_keys.parse(_file(a=a, b=b | {"sharedPrefixCache": True}))
    assert keys.client("a-1") == keys.client("a-2") == Client("a", 5, own_prefix_cache=True)
    assert keys.client("b") == Client("b", 0, own_prefix_cache=False)
    assert keys.client("a") is keys.client(api_keys.digest("b")) is None
    assert (keys.quotas, keys.max_output) == ({"a": 60}, {"a": 9})


WRONG = [
    (b"", "truncated"),
    (b"[]", "Expected `object`"),
    (_file(a={}), "missing required field `keys`"),
    (_file(a={"keys": []}), "length >= 1"),
    (_file(a={"keys": [HASH], "quota": 1}), "unknown field `quota`"),
    (_file(a={"keys": [HASH], "maxPriority": 1001}), "<= 1000"),
    (_file(a={"keys": [HASH], "tokensPerMinute": 0}), ">= 1"),
    (_file(a={"keys": [HASH], "maxOutputTokens": 0}), ">= 1"),
    (_file(a={"keys": [HASH, "sk-secret"]}), r"not a hash at \$\.tenants\['a'\]\.keys\[1\]"),
    (_file(a={"keys": [HASH]}, b={"keys": [HASH]}), "also one of 'a'"),
    *((_file(**{name: {"keys": [HASH]}}), "not a valid tenant") for name in ("*", "", "a\nb", "a" * 513)),
]


def test_a_wrong_file_is_refused_with_place_and_reason_and_without_a_key():
    """A key may have been written instead of its hash."""
    for content, said in WRONG:
        with pytest.raises(InvalidAPIKeys, match=said) as refused:
            api_keys.parse(content)
        assert "sk-secret" not in str(refused.value)


def test_no_text_of_a_client_is_another_ones_salt():
    a, b, shared = Client("a", own_prefix_cache=True), Client("a\0b", own_prefix_cache=True), Client("c")
    asked = ["", "x", "b\0x", "tenant\0a\0x", "\0a\0x"]
    salts = [client.cache_salt(text) for client in (a, shared) for text in asked]
    assert len(set(salts)) == len(salts)
    assert shared.cache_salt("") == Client("d").cache_salt("") == ""
    assert b.cache_salt("") != a.cache_salt("")


async def test_keys_and_quotas_change_without_a_restart_and_a_wrong_file_changes_nothing(tmp_path, caplog):
    path = tmp_path / "api-keys.json"
    with pytest.raises(InvalidFile, match="No such file"):
        KeyFile(path)
    path.write_bytes(_file(a={"keys": [HASH]}))
    followed = KeyFile(path, interval=0.001)
    quotas = Quotas({"a": 60, "*": 120}, followed)
    following = asyncio.create_task(followed.follow(logging.getLogger(__name__).log))

    assert (quotas["a"].rate, quotas.get("b"), set(quotas)) == (1, None, {"a", "*"})
    path.write_bytes(_file(b={"keys": [HASH], "tokensPerMinute": 30}))
    await until(lambda: followed.keys.client("a") == Client("b", 0, True))
    assert (quotas["b"].burst, quotas["*"].burst, len(quotas)) == (30, 120, 3)
    path.write_bytes(b"{")
    await until(lambda: followed.problem)
    path.unlink()
    await until(lambda: "No such file" in followed.problem)
    assert followed.keys.client("a") == Client("b", 0, True)
    path.write_bytes(_file(c={"keys": [HASH]}))
    await until(lambda: not followed.problem)
    assert followed.keys.client("a") == Client("c", 0, True)
    assert [record.levelname for record in caplog.records].count("ERROR") == 2
    following.cancel()
