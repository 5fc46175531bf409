"""Events are written alongside the passes that they report: a pass neither waits for one nor fails by one."""

import asyncio
import itertools

import pytest

from legato_operator.errors import Forbidden
from legato_operator.kubernetes.events import Events
from legato_operator.local.store import Store

METADATA = {"name": "demo", "namespace": "default", "uid": "1"}
ABOUT = {"apiVersion": "serving.legato.dev/v1alpha1", "kind": "InferenceService", "metadata": METADATA}


class Held(Store):
    """Lets nobody write before it is opened."""

    def __init__(self):
        ticks = itertools.count()
        super().__init__(lambda: f"2026-01-01T00:00:{next(ticks):02}Z")
        self.opened = asyncio.Event()
        self.refusals = 0

    async def apply(self, item, manager, force=False):
        await self.opened.wait()
        if self.refusals:
            self.refusals -= 1
            raise Forbidden("no Events here")
        return await super().apply(item, manager, force)


@pytest.fixture
def store():
    return Held()


@pytest.fixture
async def events(store):
    made = Events(store, "one", most_waiting=8)
    task = asyncio.create_task(made.run())
    async with asyncio.timeout(90):
        yield made
    assert not task.done()
    task.cancel()
    await asyncio.wait((task,))


async def _written(store, count):
    while len(items := (await store.list("Event")).items) < count:  # noqa: ASYNC110 - the store's
        await asyncio.sleep(0)
    return items


async def test_nobody_waits_for_an_event(store, events):
    await events.record(ABOUT, True, "Refused", "why")
    assert not (await store.list("Event")).items
    store.opened.set()
    (event,) = await _written(store, 1)
    assert (event["type"], event["reason"], event["note"]) == ("Warning", "Refused", "why")


async def test_what_is_said_again_is_a_count(store, events):
    store.opened.set()
    for _ in range(3):
        await events.record(ABOUT, False, "Scaling", "prefill 1 of 2")
    while (await _written(store, 1))[0].get("series", {}).get("count") != 3:  # noqa: ASYNC110
        await asyncio.sleep(0)
    (event,) = await _written(store, 1)
    assert event["eventTime"] <= event["series"]["lastObservedTime"]


async def test_event_that_is_refused_stops_no_other(store, events):
    store.opened.set()
    store.refusals = 1
    await events.record(ABOUT, False, "Scaling", "one")
    await events.record(ABOUT, False, "Scaling", "two")
    assert [event["note"] for event in await _written(store, 1)] == ["two"]


async def test_at_most_as_many_wait_as_there_is_room_for(store, events):
    for number in range(9):
        await events.record(ABOUT, False, "Scaling", str(number))
    store.opened.set()
    assert {event["note"] for event in await _written(store, 8)} == set("01234567")
