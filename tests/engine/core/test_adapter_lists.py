"""Cores whose adapters follow a list: those that come, go, are replaced, or cannot be opened."""

import msgspec
import pytest

from legato_engine.adapters.catalog import RETRY
from legato_engine.adapters.resident import OfferedAdapter
from legato_engine.errors import CorruptModel
from legato_protocol.model_files.adapter_list import AdapterEntry, AdapterList
from legato_protocol.wire.stream import Generate


class Listed:
    """A worker whose adapters follow a list. Files of an adapter are named by its path."""

    def __init__(self, adapted, name="u", **options):
        self.adapted = adapted
        self.lists = 0
        self.opened = []
        self.broken = set()  # paths
        runner = adapted.make_runner()
        self.worker = adapted.world.worker(name, runner=runner, open_adapter=self._open, **options)

    def _open(self, entry):
        self.opened.append(entry.path)
        if entry.path in self.broken:
            raise CorruptModel(f"{entry.path}: it is damaged")
        (files,) = [each for each in self.adapted.loads.offered if each.name == entry.path]
        return OfferedAdapter(entry.name, files.digest, files.load)

    def send(self, **paths):
        self.lists += 1
        entries = tuple(AdapterEntry(name, path) for name, path in paths.items())
        self.worker.send(adapters=AdapterList(entries, f"list-{self.lists}"))

    def offer(self, **paths):
        """The worker's offer once it has read this list."""
        self.send(**paths)
        wanted = f"list-{self.lists}"
        self.adapted.until(lambda: self.worker.offer is not None and self.worker.offer.list == wanted)
        return self.worker.offer

    def in_memory(self):
        self.adapted.world.run(3)
        return set(self.worker.status.load.adapters)


@pytest.fixture
def listed(adapted):
    return Listed(adapted)


def test_one_that_a_later_list_names_is_offered_without_a_new_epoch(adapted, listed):
    assert listed.offer(sql="a").adapters == {"sql": "digest-a"}
    assert listed.offer(sql="a", law="b").adapters == {"sql": "digest-a", "law": "digest-b"}
    assert listed.opened == ["a", "b"], "what is offered already is not opened again"
    adapted.serve(listed.worker, "r", "b")


def test_one_that_is_removed_is_computed_with_to_the_end_and_then_leaves_memory(adapted, listed):
    listed.offer(sql="a", law="b")
    adapted.ask(listed.worker, "r", "a", max_tokens=100)
    adapted.until(listed.worker.tokens)
    listed.offer(law="b")
    assert listed.in_memory() == {"digest-a"}
    assert not listed.worker.finished()
    adapted.until(listed.worker.finished)
    assert listed.worker.tokens() == adapted.expected("a", count=100)
    assert listed.in_memory() == set()


def test_what_began_with_one_that_is_removed_can_come_here_later(adapted, listed):
    """Its worker died, or hands it over: this one has to have it still. Whoever has not read the list asks by name."""
    listed.offer(sql="a")
    assert listed.offer().adapters == {"sql": "digest-a"}
    truth = adapted.expected("a", count=12)
    known = adapted.sequence("a", [*adapted.world.prompt, *truth[:5]], max_tokens=12)
    listed.worker.send(Generate("r", 1, msgspec.structs.replace(known, prompt_len=len(adapted.world.prompt))))
    adapted.until(listed.worker.finished)
    assert listed.worker.tokens() == truth[5:]
    assert listed.in_memory() == set()


def test_another_under_the_same_name_leaves_the_former_to_those_that_began_with_it(adapted, listed):
    listed.offer(sql="a")
    adapted.ask(listed.worker, "old", "a", max_tokens=30)
    adapted.until(lambda: listed.worker.tokens("old"))
    offer = listed.offer(sql="b")
    assert (offer.adapters, offer.former) == ({"sql": "digest-b"}, ("digest-a",))
    adapted.serve(listed.worker, "new", "b")
    adapted.finish(listed.worker, "old")
    assert listed.worker.tokens("old") == adapted.expected("a", count=30)
    assert listed.in_memory() == {"digest-b"}


def test_one_that_cannot_be_opened_changes_nothing_else_and_is_tried_again(adapted, listed):
    listed.broken = {"b", "c"}
    listed.offer(sql="a")
    offer = listed.offer(sql="b", law="c", chess="d")
    assert offer.adapters == {"sql": "digest-a", "chess": "digest-d"}, "the one before stays under its name"
    assert offer.problems == {"sql": "b: it is damaged", "law": "c: it is damaged"}
    adapted.world.run(int(RETRY) - 2)
    assert listed.opened.count("c") == 1
    listed.broken = {"b"}
    adapted.until(lambda: "law" in listed.worker.offer.adapters)
    assert listed.worker.offer.problems == {"sql": "b: it is damaged"}
    assert listed.opened.count("d") == 1
