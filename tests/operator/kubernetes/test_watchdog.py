"""An operator that no longer sees what happens says so, after it tried to mend that by itself."""

import asyncio

import pytest

from legato_operator.cluster import ObjectList
from legato_operator.errors import Unavailable
from legato_operator.kubernetes.cache.known_objects import WatchedStore
from legato_operator.kubernetes.watchdog import DEAF_AUDITS, PASS_SECONDS, Reactions, Watchdog

AUDITED = ("InferenceService", "Pod")


class Heard(WatchedStore):
    """Records its trust in the watches."""

    def __init__(self, kinds):
        super().__init__(kinds)
        self.sound = []

    def trust(self, watches):
        super().trust(watches)
        self.sound.append(watches)


class Around:
    """The surroundings of a watchdog, and its effects."""

    def __init__(self):
        self.items = []
        self.audits = 0
        self.away = False
        self.woken = []
        self.restarts = 0
        self.missed = 0
        self.longest = 0.0
        self.store = Heard(AUDITED)

    async def list_metadata(self, kind, namespace=None, labels=None):
        self.audits += kind == AUDITED[-1]
        if self.away:
            self.audits += 1
            raise Unavailable("no route")
        return ObjectList(tuple(item for item in self.items if item["kind"] == kind), 100)

    def restart(self):
        self.restarts += 1
        self.store.forget()

    def count(self, missed):
        self.missed += missed

    def touch(self, version, heard=False):
        """Changes the only object; its watch reports that if it is heard."""
        metadata = {"uid": "a", "name": "a", "namespace": "default", "resourceVersion": str(version)}
        self.items = [{"kind": "Pod", "metadata": metadata}]
        if heard:
            self.store.report(self.items[0], gone=False)


@pytest.fixture
def around():
    return Around()


@pytest.fixture
async def dog(around):
    made = Watchdog(
        around, (), around.store, Reactions(around.count, around.woken.append, around.restart), lambda: around.longest
    )
    task = asyncio.create_task(made.run(0.001))
    yield made
    assert not task.done()
    task.cancel()
    await asyncio.wait((task,))


@pytest.fixture
def audits(around, dog):

    async def wait(count):
        wanted = around.audits + count
        async with asyncio.timeout(90):
            while around.audits < wanted:  # noqa: ASYNC110 - a count
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.001)

    return wait


async def test_missed_change_is_woken_and_watches_begin_anew(around, dog, audits):
    around.touch(5)
    await audits(3)
    assert around.woken[0]["metadata"]["uid"] == "a"
    assert around.restarts >= 1
    assert around.missed >= 1
    around.touch(5, heard=True)
    await audits(DEAF_AUDITS)
    around.touch(5, heard=True)
    await audits(2)
    assert dog.complaint() == ""


async def test_watches_that_stay_deaf_are_a_complaint(around, dog, audits):
    around.touch(5)
    await audits(DEAF_AUDITS + 3)
    assert "no longer" in dog.complaint()


async def test_api_server_that_is_away_is_not_a_complaint(around, dog, audits):
    around.away = True
    await audits(5)
    assert dog.complaint() == ""


async def test_pass_that_does_not_end_is_a_complaint(around, dog):
    around.longest = PASS_SECONDS + 1
    assert "pass" in dog.complaint()


async def test_watches_are_trusted_after_audits_until_one_misses_something_or_fails(around, audits):
    around.touch(5, heard=True)
    await audits(4)
    assert around.store.sound[:2] == [False, True]
    assert all(around.store.sound[1:])
    around.away = True
    await audits(1)
    assert not around.store.sound[-1]
    around.away = False
    await audits(4)
    assert around.store.sound[-1]
    around.items = []  # a watch does not report its end
    around.store.sound.clear()
    await audits(4)
    assert False in around.store.sound


async def test_new_leader_trusts_watches_after_audits_of_its_own(around, dog, audits):
    """Before, they may have died unheard, and the first list shows what they missed."""
    around.touch(5, heard=True)
    await audits(4)
    assert around.store.trusted
    dog.distrust()
    around.store.sound.clear()
    await audits(4)
    assert around.store.sound[:2] == [False, True]
