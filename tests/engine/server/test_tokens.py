"""The service's tokens are followed: by the control port, and by the core for its hand-offs."""

import pytest

from legato_protocol.security.followed_tokens import INTERVAL
from legato_protocol.security.service_tokens import token_id


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "tokens"
    made.mkdir()
    return made


@pytest.fixture
def settings(folder):
    return {"token": "", "token_folder": str(folder)}


@pytest.fixture
def token_a(folder):
    (folder / "token").write_text("a")


@pytest.mark.usefixtures("token_a")
async def test_another_token_is_taken_without_a_restart_and_open_streams_stay(folder, bench):
    core = await bench.next_core()
    begin = await core.hear()
    assert begin.settings.token == "a"
    await bench.serves(core, begin)
    async with bench.dial("/stream", token="a") as open_stream:
        await bench.greet(open_stream)
        (folder / "next").write_text("b")
        await bench.skip(INTERVAL)
        assert (await bench.get("control", "/state", token="b"))[0] == 200
        assert (await bench.state(token="a"))["tokens"] == [token_id("a"), token_id("b")]
        (folder / "next").unlink()
        (folder / "token").write_text("b")
        await bench.skip(INTERVAL)
        assert (await bench.get("control", "/state", token="a"))[0] == 401
        assert any("WARNING refused 127.0.0.1 at /state" in line for line in bench.logged)
        await open_stream.ping()
        told = []
        while told[-1:] != [("b",)]:
            inbox = await core.hear()
            told += [inbox.tokens] if inbox.tokens else []
        assert told == [("a",), ("a", "b"), ("b",)]


async def test_nothing_is_served_before_there_is_a_token(folder, bench):
    assert (await bench.get("control", "/state", token=""))[0] == 401
    assert await bench.get("health", "/readyz") == (503, "waiting for the service's token\n")
    assert bench.cores.empty()
    (folder / "token").write_text("a")
    await bench.skip(INTERVAL)
    await bench.core()
    assert (await bench.get("control", "/state", token="a"))[0] == 200
