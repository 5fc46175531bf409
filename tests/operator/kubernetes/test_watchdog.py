"""An operator that no longer sees what happens says so, after it tried to mend that by itself."""

import asyncio

import pytest

from legato_operator.cluster import ObjectList
from legato_operator.errors import Unavailable
from legato_operator.kubernetes.store import Store
from legato_operator.kubernetes.watchdog import DEAF_AUDITS, PASS_SECONDS, Watchdog

AUDITED = ("InferenceService", "Pod")


class Heard(Store):
    """Keeps what it was told of the watches."""

    def __init__(self, kinds):
        super().__init__(kinds)
        self.sound = []

    def trust(self, watches):
        super().trust(watches)
        self.sound.append(watches)


class Around:
    """What a watchdog looks at and what it does."""

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

    def touch(self, version):
        metadata = {"uid": "a", "name": "a", "namespace": "default", "resourceVersion": str(version)}
        self.items = [{"kind": "Pod", "metadata": metadata}]


@pytest.fixture
def around():
    return Around()


@pytest.fixture
async def dog(around):
    made = Watchdog(
        around, AUDITED, (), around.store, around.woken.append, around.restart, lambda: around.longest, around.count
    )
    task = asyncio.create_task(made.run(0.001))
    yield made
    assert not task.done()
    task.cancel()
    await asyncio.wait((task,))


@pytest.fixture
def audits(around, dog):
    """Waits for that many more audits."""

    async def wait(count):
        wanted = around.audits + count
        async with asyncio.timeout(30):
            while around.audits < wanted:  # noqa: ASYNC110 - a count
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.001)

    return wait


async def test_quiet_cluster_is_no_complaint(around, dog, audits):
    around.touch(5)
    around.store.told(around.items[0], gone=False)
    await audits(10)
    assert dog.complaint() == ""
    assert around.restarts == 0


async def test_missed_change_is_woken_and_watches_begin_anew(around, dog, audits):
    around.touch(5)
    await audits(3)
    assert around.woken[0]["metadata"]["uid"] == "a"
    assert around.restarts >= 1
    assert around.missed >= 1
    around.store.told(around.items[0], gone=False)
    around.touch(5)
    await audits(DEAF_AUDITS)
    around.store.told(around.items[0], gone=False)
    await audits(2)
    assert dog.complaint() == ""


async def test_watches_are_sound_once_they_told_of_what_was_listed_and_until_they_miss_something(around, audits):
    around.touch(5)
    around.store.told(around.items[0], gone=False)
    await audits(4)
    assert around.store.sound[:2] == [False, True]
    assert all(around.store.sound[1:])
    around.items = []  # its end is told of by nobody
    before = len(around.store.sound)
    await audits(4)
    assert False in around.store.sound[before:]


async def test_watches_that_stay_deaf_are_a_complaint(around, dog, audits):
    around.touch(5)
    await audits(DEAF_AUDITS + 3)
    assert "no longer" in dog.complaint()


async def test_api_server_that_is_away_is_no_complaint(around, dog, audits):
    """A fresh process could not reach it either."""
    around.away = True
    await audits(5)
    assert dog.complaint() == ""


async def test_pass_that_does_not_end_is_a_complaint(around, dog):
    around.longest = PASS_SECONDS + 1
    assert "pass" in dog.complaint()


async def test_who_begins_to_lead_trusts_watches_after_audits_of_its_own(around, dog, audits):
    """Before, they may have died unheard, and the first list shows what they did not tell."""
    around.touch(5)
    around.store.told(around.items[0], gone=False)
    await audits(4)
    assert around.store.trusted
    dog.distrust()
    around.store.sound.clear()
    await audits(4)
    assert around.store.sound[:2] == [False, True]


async def test_watches_are_not_trusted_while_nobody_can_audit_them(around, audits):
    around.touch(5)
    around.store.told(around.items[0], gone=False)
    await audits(4)
    assert around.store.sound[-1]
    around.away = True
    await audits(1)
    assert not around.store.sound[-1]
    around.away = False
    before = len(around.store.sound)
    await audits(4)
    assert around.store.sound[before:][-1]
