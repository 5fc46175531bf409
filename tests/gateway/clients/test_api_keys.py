"""The file with hashes of API keys: what it may say, and that it is followed."""

import asyncio
import json
import logging
from typing import Any

import pytest

from legato_gateway.clients import api_keys
from legato_gateway.clients.api_keys import InvalidAPIKeys
from legato_gateway.clients.client import Client
from legato_gateway.clients.identify import Quotas
from legato_gateway.clients.key_file import KeyFile
from legato_protocol.followed_files import InvalidFile

HASH = api_keys.digest("a")


def _file(**tenants: Any) -> bytes:
    return json.dumps({"tenants": tenants}).encode()


def test_a_key_says_who_asks():
    keys = api_keys.parse(
        _file(
            a={"keys": [api_keys.digest("a-1"), api_keys.digest("a-2")], "maxPriority": 5, "tokensPerMinute": 60},
            b={"keys": [api_keys.digest("b")], "sharedPrefixCache": True},
        )
    )
    assert keys.client("a-1") == keys.client("a-2") == Client("a", 5, own_prefix_cache=True)
    assert keys.client("b") == Client("b", 0, own_prefix_cache=False)
    assert keys.client("a") is None
    assert keys.client(api_keys.digest("b")) is None
    assert keys.quotas == {"a": 60}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "truncated"),
        (b"[]", "Expected `object`"),
        (_file(a={}), "missing required field `keys`"),
        (_file(a={"keys": []}), "length >= 1"),
        (_file(a={"keys": [HASH], "quota": 1}), "unknown field `quota`"),
        (_file(a={"keys": [HASH], "maxPriority": 1001}), "<= 1000"),
        (_file(a={"keys": [HASH], "tokensPerMinute": 0}), ">= 1"),
        (_file(a={"keys": [HASH, "sk-secret"]}), r"not a hash at \$\.tenants\['a'\]\.keys\[1\]"),
        (_file(a={"keys": [HASH]}, b={"keys": [HASH]}), "also one of 'a'"),
        (_file(**{"*": {"keys": [HASH]}}), "not a valid tenant"),
        (_file(**{"": {"keys": [HASH]}}), "not a valid tenant"),
        (_file(**{"a\nb": {"keys": [HASH]}}), "not a valid tenant"),
        (_file(**{"a" * 513: {"keys": [HASH]}}), "not a valid tenant"),
    ],
)
def test_a_wrong_file_is_refused_with_place_and_reason(content, said):
    with pytest.raises(InvalidAPIKeys, match=said):
        api_keys.parse(content)


def test_a_key_that_was_written_instead_of_its_hash_is_not_repeated():
    with pytest.raises(InvalidAPIKeys) as refused:
        api_keys.parse(_file(a={"keys": ["sk-secret"]}))
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
    path.write_bytes(_file(a={"keys": [HASH]}))
    followed = KeyFile(path, interval=0.001)
    quotas = Quotas({"a": 60, "*": 120}, followed)
    following = asyncio.create_task(followed.follow(logging.getLogger(__name__).log))

    async def until(condition: Any) -> None:
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110 - a file says no event
                await asyncio.sleep(0)

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


def test_a_gateway_does_not_start_without_its_keys(tmp_path):
    with pytest.raises(InvalidFile, match="No such file"):
        KeyFile(tmp_path / "none")
