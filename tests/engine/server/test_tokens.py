"""The service's tokens are followed: by the control port, and by the core for its hand-offs."""

import asyncio
import json
from pathlib import Path
from typing import Any

from legato_engine.core.frames import Inbox, Start
from legato_protocol.followed_tokens import INTERVAL
from legato_protocol.service_tokens import token_id


def test_another_token_is_taken_without_a_restart_and_open_streams_stay(run: Any, tmp_path: Path) -> None:
    folder = tmp_path / "tokens"
    folder.mkdir()
    (folder / "token").write_text("a")

    async def test(bench: Any) -> None:
        core = await asyncio.wait_for(bench.cores.get(), bench.patience)
        begin = await core.hear()
        assert isinstance(begin, Start)
        assert begin.settings.token == "a"
        bench.cores.put_nowait(core)
        core._received.append(begin)
        await bench.core()
        async with bench.dial("/stream", token="a") as open_stream:
            await bench.greet(open_stream)
            (folder / "next").write_text("b")
            await bench.skip(INTERVAL)
            assert (await bench.get("control", "/state", token="b"))[0] == 200
            state = json.loads((await bench.get("control", "/state", token="a"))[1])
            assert state["tokens"] == [token_id("a"), token_id("b")]
            (folder / "next").unlink()
            (folder / "token").write_text("b")
            await bench.skip(INTERVAL)
            assert (await bench.get("control", "/state", token="a"))[0] == 401
            assert "from" not in bench.logged[-1] or "refused" in bench.logged[-1]
            assert any("WARNING refused 127.0.0.1 at /state" in line for line in bench.logged)
            await open_stream.ping()
            told: list[tuple[str, ...]] = []
            while told[-1:] != [("b",)]:
                inbox = await asyncio.wait_for(core.hear(), bench.patience)
                assert isinstance(inbox, Inbox)
                told += [inbox.tokens] if inbox.tokens else []
            assert told == [("a",), ("a", "b"), ("b",)]

    run(test, token="", token_folder=str(folder))


def test_nothing_is_served_before_there_is_a_token(run: Any, tmp_path: Path) -> None:
    folder = tmp_path / "tokens"
    folder.mkdir()

    async def test(bench: Any) -> None:
        assert (await bench.get("control", "/state", token=""))[0] == 401
        assert await bench.get("health", "/readyz") == (503, "waiting for the service's token\n")
        assert bench.cores.empty()
        (folder / "token").write_text("a")
        await bench.skip(INTERVAL)
        await bench.core()
        assert (await bench.get("control", "/state", token="a"))[0] == 200

    run(test, token="", token_folder=str(folder))
