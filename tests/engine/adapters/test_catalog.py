"""Lists of adapters, one after another: what is opened, and what is offered in the end."""

import threading

import pytest
from readiness import wait_readable

from legato_engine.adapters.catalog import AdapterCatalog
from legato_engine.adapters.resident import OfferedAdapter, ResidentAdapters
from legato_engine.errors import CorruptModel
from legato_protocol.model_files.adapter_list import AdapterEntry, AdapterList


def listed(id, **paths):
    return AdapterList(tuple(AdapterEntry(name, path) for name, path in paths.items()), id)


class Opening:
    """A catalog whose adapters are named by their paths; `gate` holds up what opens them."""

    def __init__(self, *broken):
        self.gate = threading.Event()
        self.gate.set()
        self.opened = []
        self.broken = set(broken)
        self.resident = ResidentAdapters([], 8, lambda: ())
        self.catalog = AdapterCatalog(self.resident, self._open, lambda: 0.0)

    def _open(self, entry):
        assert self.gate.wait(60)
        self.opened.append(entry.path)
        if entry.path in self.broken:
            raise CorruptModel(f"{entry.path}: it is damaged")
        return OfferedAdapter(entry.name, f"digest-{entry.path}", object)

    def follow(self, wanted):
        self.catalog.follow(wanted)
        self.until_offered()

    def until_offered(self):
        self.gate.set()
        while self.catalog._wanted is not None:
            assert wait_readable([self.catalog], 60), "it hangs"
            self.catalog.take_done()

    def load(self, digest):
        assert self.resident.ask(digest) is None
        assert wait_readable([self.resident], 60), "it hangs"
        assert self.resident.take_done()


@pytest.fixture
def opening():
    made = Opening("broken")
    yield made
    made.gate.set()


def test_a_list_that_is_told_again_is_not_opened_again(opening):
    """A core hears with its first inbox what it began with."""
    first, second = listed("1", sql="broken"), listed("2", sql="broken", law="a")
    opening.catalog.begin(first)
    opening.catalog.follow(first)
    opening.gate.clear()
    opening.catalog.follow(second)
    opening.catalog.follow(second)
    opening.until_offered()
    opening.follow(listed("3", law="a"))
    assert opening.opened == ["broken", "broken", "a"]


def test_the_list_of_before_is_opened_again_where_another_came_in_between(opening):
    first = listed("1", sql="a")
    opening.catalog.begin(first)
    opening.gate.clear()
    opening.catalog.follow(listed("2", sql="b"))
    opening.catalog.follow(first)
    opening.until_offered()
    assert (opening.catalog.offer.list, opening.resident.offered) == ("1", {"sql": "digest-a"})


def test_what_a_list_named_that_was_replaced_while_it_was_opened_is_never_offered(opening):
    """It would be kept for those who ask for it."""
    opening.catalog.begin(listed("1", sql="a"))
    opening.gate.clear()
    opening.catalog.follow(listed("2", sql="a", law="b"))
    opening.catalog.follow(listed("3", sql="a", chess="c"))
    opening.until_offered()
    assert opening.catalog.offer.list == "3"
    assert opening.resident.offered == {"sql": "digest-a", "chess": "digest-c"}
    assert opening.resident.former == ()
