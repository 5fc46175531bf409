"""The list of adapters is followed: the core is sent it, and gateways hear the result."""

import pytest

from legato_engine.adapters.offer import AdapterOffer
from legato_engine.core.frames import IterationReport
from legato_protocol.model_files import adapter_list
from legato_protocol.model_files.adapter_list import AdapterEntry
from legato_protocol.process.followed_files import INTERVAL
from legato_protocol.wire import stream


@pytest.fixture
def write(tmp_path):
    return lambda *names: (tmp_path / "adapters.json").write_text(
        adapter_list.text(tuple(AdapterEntry(name, f"/{name}") for name in names))
    )


@pytest.fixture
def settings(tmp_path, write):
    write("sql")
    return {"adapters_file": str(tmp_path / "adapters.json")}


async def begins(bench, *names):
    """A core that has heard that it begins with these adapters, and does not serve yet."""
    core = await bench.next_core()
    begin = await core.hear()
    assert begin.adapters.names == names
    return core, begin


async def test_another_list_reaches_the_core_and_gateways_hear_what_came_of_it(bench, write):
    core = await bench.serves(*await begins(bench, "sql"))
    async with bench.dial("/stream") as gateway:
        before = await bench.greet(gateway)
        assert before.adapters == {}
        write("sql", "law")
        await bench.skip(INTERVAL)
        told = []
        while not any(each.names == ("sql", "law") for each in told):
            inbox = await core.hear()
            told += [inbox.adapters] if inbox.adapters else []
        list_id, offered = told[-1].id, {"sql": "one"}
        problems = {"law": "it is damaged"}
        await core.say(IterationReport(offer=AdapterOffer(list_id, offered, ("former",), problems)))
        again = await bench.heard(gateway, stream.Hello)
        assert (again.epoch, again.adapters, again.former_adapters) == (before.epoch, offered, ("former",))
        expected = {"list": list_id, "offered": offered, "problems": problems, "loaded": []}
        assert (await bench.state())["adapters"] == expected
        async with bench.dial("/stream") as later:
            assert await bench.greet(later) == again
        load = bench.status().load
        await core.say(IterationReport(offer=AdapterOffer("another", offered, ("former",))))
        await core.say(IterationReport(everyone=(stream.encode(load),)))
        assert await bench.heard(gateway) == load, "who can be asked for the same adapters is not greeted again"
        assert (await bench.state())["adapters"]["list"] == "another"


async def test_a_core_is_told_of_a_list_that_came_while_it_started_and_begins_with_it_later(bench, write):
    core, begin = await begins(bench, "sql")
    write("sql", "law")
    await bench.skip(INTERVAL)
    await bench.until(lambda: bench.worker.hub.adapters.names == ("sql", "law"))
    await bench.serves(core, begin)
    assert (await core.hear()).adapters.names == ("sql", "law")
    core.die()
    await begins(bench, "sql", "law")
