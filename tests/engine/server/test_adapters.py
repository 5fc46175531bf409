"""The list of adapters is followed: the core is told of it, and gateways of what comes of it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from legato_engine.adapters.offer import AdapterOffer
from legato_engine.core.frames import Inbox, Start, Turn
from legato_protocol import adapter_list, stream
from legato_protocol.adapter_list import AdapterEntry
from legato_protocol.followed_files import INTERVAL


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "adapters.json"


def _write(path: Path, *names: str) -> None:
    path.write_text(adapter_list.text(tuple(AdapterEntry(name, f"/{name}") for name in names)))


async def _begins(bench: Any) -> tuple[Any, Start]:
    """A core that has heard with which adapters it begins, and does not serve yet."""
    core = await asyncio.wait_for(bench.cores.get(), bench.patience)
    begin = await asyncio.wait_for(core.hear(), bench.patience)
    assert isinstance(begin, Start)
    assert begin.adapters is not None
    return core, begin


async def _serves(bench: Any, core: Any, begin: Start) -> None:
    """That core, from here on."""
    bench.cores.put_nowait(core)
    core._received.append(begin)
    await bench.core()


def test_another_list_reaches_the_core_and_gateways_hear_what_came_of_it(run: Any, path: Path) -> None:
    async def test(bench: Any) -> None:
        core, begin = await _begins(bench)
        assert begin.adapters.names == ("sql",)
        await _serves(bench, core, begin)
        async with bench.dial("/stream") as gateway:
            before = await bench.greet(gateway)
            assert before.adapters == {}
            _write(path, "sql", "law")
            await bench.skip(INTERVAL)
            told: list[Any] = []
            while not any(each.names == ("sql", "law") for each in told):
                inbox = await asyncio.wait_for(core.hear(), bench.patience)
                assert isinstance(inbox, Inbox)
                told += [inbox.adapters] if inbox.adapters else []
            offer = AdapterOffer(told[-1].id, {"sql": "one"}, ("former",), {"law": "it is damaged"})
            await core.say(Turn(offer=offer))
            again = stream.decode_from_worker(await asyncio.wait_for(gateway.recv(), bench.patience))
            assert isinstance(again, stream.Hello)
            assert (again.epoch, again.adapters, again.former_adapters) == (before.epoch, {"sql": "one"}, ("former",))
            state = json.loads((await bench.get("control", "/state"))[1])["adapters"]
            assert state == {
                "list": told[-1].id,
                "offered": {"sql": "one"},
                "problems": {"law": "it is damaged"},
                "loaded": [],
            }
            async with bench.dial("/stream") as later:
                assert await bench.greet(later) == again
            load = bench.status().load
            await core.say(Turn(offer=AdapterOffer("another", {"sql": "one"}, ("former",))))
            await core.say(Turn(everyone=(stream.encode(load),)))
            assert await bench.heard(gateway) == load, "who can be asked for the same adapters is not greeted again"
            assert json.loads((await bench.get("control", "/state"))[1])["adapters"]["list"] == "another"

    _write(path, "sql")
    run(test, adapters_file=str(path))


def test_a_core_is_told_of_a_list_that_came_while_it_started_and_begins_with_it_later(run: Any, path: Path) -> None:
    async def test(bench: Any) -> None:
        core, begin = await _begins(bench)
        assert begin.adapters.names == ("sql",)
        _write(path, "sql", "law")
        await bench.skip(INTERVAL)
        await bench.until(lambda: bench.worker.hub.adapters.names == ("sql", "law"))
        await _serves(bench, core, begin)
        inbox = await asyncio.wait_for(core.hear(), bench.patience)
        assert inbox.adapters.names == ("sql", "law")
        core.die()
        _, begin = await _begins(bench)
        assert begin.adapters.names == ("sql", "law")

    _write(path, "sql")
    run(test, adapters_file=str(path))
