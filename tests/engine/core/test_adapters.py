"""Sequences with adapters on whole cores: each computes with its own, however many there are, wherever it goes."""

import threading
import time
from dataclasses import dataclass

import msgspec
import pytest

from legato_engine.adapters.catalog import RETRY
from legato_engine.adapters.resident import MOST_WITHDRAWN, OfferedAdapter
from legato_engine.errors import CorruptModel
from legato_engine.scheduler.batch import Sampled
from legato_protocol.adapter_list import AdapterEntry, AdapterList
from legato_protocol.stream import Cancel, Decode, Generate, Prefill


@dataclass(frozen=True)
class Shift:
    """An adapter of the runner below."""

    by: int
    nbytes: int = 8


@pytest.fixture
def shifting_runner(make_token_runner):
    class Runner(make_token_runner):
        """KV of a token is the token, shifted by its adapter, and so are what it draws: blocks of another adapter, or a
        row without its own, show in the tokens."""

        def __init__(self):
            super().__init__()
            self.together = set()  # how many adapters there were in a step

        def step(self, batch):
            self.together.add(len({row.adapter for row in batch.rows}))
            return super().step(batch)

        def _row(self, row):
            by = row.adapter.by if row.adapter is not None else 0
            shifted = type(row)([token + by for token in row.tokens], row.start, row.blocks)
            known = [token - by for token in self.write(shifted)]
            return tuple(self._shifted(known, draw, by) for draw in row.draws)

        def _shifted(self, known, draw, by):
            return Sampled(self._draw(known, draw).token + by)

    return Runner


class Loads:
    """Adapters a, b, … that shift by 10,000, 20,000, …: how often each was loaded, and a gate before that."""

    def __init__(self, names="abcde"):
        self.gate = threading.Event()
        self.gate.set()
        self.faults = set()
        self.counts = dict.fromkeys(names, 0)
        self.offered = [OfferedAdapter(name, f"digest-{name}", self._loader(name)) for name in names]

    def _loader(self, name):
        def load():
            assert self.gate.wait(60)
            self.counts[name] += 1
            if name in self.faults:
                raise CorruptModel(f"/adapters/{name}: it is damaged")
            return Shift(self.by(name))

        return load

    @staticmethod
    def by(name):
        return 10_000 * (1 + "abcde".index(name)) if name else 0


class Adapted:
    def __init__(self, world, runner):
        self.world = world
        self.make_runner = runner
        self.loads = Loads()

    def worker(self, name="u", **options):
        runner = self.make_runner()
        return self.world.worker(name, runner=runner, adapters=self.loads.offered, **options)

    def sequence(self, adapter="", prompt=None, **params):
        wanted = self.world.sequence(prompt or self.world.prompt, **{"max_tokens": 6, **params})
        return msgspec.structs.replace(wanted, adapter=f"digest-{adapter}" if adapter else "")

    def expected(self, adapter="", prompt=None, count=6):
        tokens, by = list(prompt or self.world.prompt), Loads.by(adapter)
        for _ in range(count):
            tokens.append(self.world.continuation(tokens, 1)[0] + by)
        return tokens[-count:]

    def until(self, condition, seconds=60):
        """Turns of all workers; loading takes real time."""
        give_up = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < give_up, "it hangs"
            self.world.run(1)
            for worker in self.world.workers:
                worker.core._handler.adapters.check_integrity()


@pytest.fixture
def adapted(world, shifting_runner):
    return Adapted(world, shifting_runner)


def test_four_adapters_and_the_base_run_in_one_batch(adapted):
    worker = adapted.worker(max_running=16, max_waiting=16, chunk=400)
    names, prompts = ["", "a", "b", "c", "d"] * 3 + [""], [[*range(i, i + 9)] for i in range(16)]
    worker.tell(*[Generate(f"r{i}", 1, adapted.sequence(names[i], prompts[i], max_tokens=10)) for i in range(16)])
    adapted.until(lambda: all(worker.finished(id=f"r{i}") for i in range(16)))
    for i, name in enumerate(names):
        assert worker.tokens(f"r{i}") == adapted.expected(name, prompts[i], count=10)
    assert max(worker.runner.together) == 5
    assert worker.used == 0


def test_prefixes_are_shared_with_the_same_adapter_alone(adapted):
    worker = adapted.worker()
    for number, (name, cached) in enumerate([("", 0), ("a", 0), ("a", 16), ("b", 0), ("", 16)]):
        worker.tell(Generate(f"r{number}", 1, adapted.sequence(name)))
        adapted.until(lambda number=number: worker.finished(id=f"r{number}"))
        assert worker.tokens(f"r{number}") == adapted.expected(name)
        assert worker.items(f"r{number}")[0].cached_tokens == cached


def test_a_prefilled_sequence_goes_on_elsewhere_with_its_adapter(adapted, world):
    prefill, decode = adapted.worker("p"), adapted.worker("d")
    world.hand_off(prefill, decode, adapted.sequence("b", choices=(0, 1)))
    adapted.until(lambda: decode.finished(choice=0) and decode.finished(choice=1))
    assert decode.tokens() == adapted.expected("b")
    assert [report.blocks for report in decode.reports()] == [5]
    assert prefill.failures() == decode.failures() == []


def test_a_running_sequence_migrates_with_its_adapter(adapted, world):
    old, new = adapted.worker("a"), adapted.worker("b")
    old.tell(Generate("r", 1, adapted.sequence("c", max_tokens=30)))
    adapted.until(lambda: len(old.tokens()) > 3)
    sent = old.tokens()
    known = adapted.sequence("c", [*world.prompt, *sent], max_tokens=30)
    world.migrate(old, new, msgspec.structs.replace(known, prompt_len=len(world.prompt)))
    adapted.until(lambda: new.finished(attempt=2))
    assert [*sent, *new.tokens(attempt=2)] == adapted.expected("c", count=30)


def test_a_resumed_sequence_is_computed_again_with_its_adapter(adapted, world):
    worker, truth = adapted.worker(), adapted.expected("d", count=12)
    known = adapted.sequence("d", [*world.prompt, *truth[:5]], max_tokens=12)
    worker.tell(Generate("r", 1, msgspec.structs.replace(known, prompt_len=len(world.prompt))))
    adapted.until(worker.finished)
    assert worker.tokens() == truth[5:]


def test_preempted_sequences_are_computed_again_with_their_adapters(adapted):
    worker = adapted.worker(blocks=22, growth_tokens=0, max_running=4)
    for name in "abc":  # so that all begin together
        worker.tell(Generate(f"warm-{name}", 1, adapted.sequence(name, [1, 2, 3], max_tokens=1)))
        adapted.until(lambda name=name: worker.finished(id=f"warm-{name}"))
    names = ["a", "b", "", "c"]
    worker.tell(*[Generate(f"r{i}", 1, adapted.sequence(name, max_tokens=20)) for i, name in enumerate(names)])
    adapted.until(lambda: all(worker.finished(id=f"r{i}") for i in range(4)))
    assert worker.status.totals.preemptions > 0
    for i, name in enumerate(names):
        assert worker.tokens(f"r{i}") == adapted.expected(name, count=20)


def test_steps_go_on_while_an_adapter_is_loaded(adapted):
    worker = adapted.worker()
    adapted.loads.gate.clear()
    worker.tell(Generate("slow", 1, adapted.sequence("a")), Generate("r", 1, adapted.sequence()))
    adapted.until(worker.finished)
    assert worker.items("slow") == []
    assert worker.status.load.waiting == 1
    assert not worker.status.idle
    adapted.loads.gate.set()
    adapted.until(lambda: worker.finished(id="slow"))
    assert worker.status.load.adapters == ("digest-a",)


def test_the_least_recently_used_is_pushed_out_and_loaded_again(adapted):
    worker = adapted.worker(adapters_in_memory=2)
    for number, name in enumerate("abacab"):
        worker.tell(Generate(f"r{number}", 1, adapted.sequence(name)))
        adapted.until(lambda number=number: worker.finished(id=f"r{number}"))
        assert worker.tokens(f"r{number}") == adapted.expected(name)
    assert adapted.loads.counts == {"a": 1, "b": 2, "c": 1, "d": 0, "e": 0}


def test_one_in_use_is_not_pushed_out_and_nobody_starves(adapted):
    """Requests for two adapters come and come, with room for one: both are served in turn."""
    worker = adapted.worker(adapters_in_memory=1, max_running=4, max_waiting=64)
    names = ["a", "a", "b", "a", "b", "", "a", "c", "b", "a"] * 3
    for i, name in enumerate(names):
        worker.tell(Generate(f"r{i}", 1, adapted.sequence(name, [*range(i, i + 9)])))
        adapted.world.run(1)
    adapted.until(lambda: all(worker.finished(id=f"r{i}") for i in range(len(names))))
    for i, name in enumerate(names):
        assert worker.tokens(f"r{i}") == adapted.expected(name, [*range(i, i + 9)])
    assert worker.failures() == []
    assert worker.used == 0


def test_who_waits_for_room_begins_after_one_that_a_loaded_adapter_let_begin(adapted):
    """Its only user begins when it is loaded, and ends with the next step."""
    worker = adapted.worker(adapters_in_memory=1, chunk=400)
    worker.tell(*[Generate(name, 1, adapted.sequence(name, max_tokens=1)) for name in "ba"])
    adapted.until(lambda: worker.finished(id="a"), seconds=10)
    assert worker.tokens("b") == adapted.expected("b", count=1)
    assert worker.tokens("a") == adapted.expected("a", count=1)


@pytest.mark.parametrize("turns", range(1, 9))
def test_who_comes_whenever_the_only_user_ends_begins(adapted, turns):
    """Also in the turn in which that has its last token."""
    worker = adapted.worker(adapters_in_memory=1, chunk=400)
    worker.tell(Generate("warm", 1, adapted.sequence("a", max_tokens=1)))
    adapted.until(lambda: worker.finished(id="warm"))
    worker.tell(Generate("a", 1, adapted.sequence("a", max_tokens=4)))
    adapted.world.run(turns)
    worker.tell(Generate("b", 1, adapted.sequence("b", max_tokens=1)))
    adapted.until(lambda: worker.finished(id="b"), seconds=10)
    assert worker.tokens("a") == adapted.expected("a", count=4)


def test_a_stream_of_requests_for_one_does_not_keep_another_waiting(adapted):
    worker = adapted.worker(adapters_in_memory=1)
    worker.tell(Generate("a0", 1, adapted.sequence("a", max_tokens=20)))
    adapted.until(lambda: worker.tokens("a0"))
    worker.tell(Generate("b", 1, adapted.sequence("b")))
    number = 0
    while not worker.finished(id="b"):
        number += 1
        assert number < 300, "it starves"
        worker.tell(Generate(f"a{number}", 1, adapted.sequence("a", max_tokens=20)))
        adapted.world.run(1)
        adapted.until(lambda: worker.status.load.waiting < 3)
    assert worker.tokens("b") == adapted.expected("b")


def test_a_load_that_fails_ends_those_who_wait_for_it_and_is_tried_again(adapted):
    worker = adapted.worker()
    adapted.loads.faults.add("a")
    adapted.loads.gate.clear()
    worker.tell(*[Generate(id, 1, adapted.sequence(name)) for id, name in (("x", "a"), ("y", "a"), ("z", "b"))])
    adapted.world.run(1)
    adapted.loads.gate.set()
    adapted.until(lambda: worker.finished(id="z"))
    assert [(each.id, each.code, each.retry) for each in worker.failures()] == [
        ("x", "internal", True),
        ("y", "internal", True),
    ]
    assert worker.failures()[0].message == "adapter a: /adapters/a: it is damaged"
    assert worker.status.load.adapters == ("digest-b",)
    adapted.loads.faults.clear()
    worker.tell(Generate("again", 1, adapted.sequence("a")))
    adapted.until(lambda: worker.finished(id="again"))
    assert worker.tokens("again") == adapted.expected("a")


def test_one_that_is_not_there_fails_that_request_alone(adapted):
    worker = adapted.worker()
    worker.tell(Generate("x", 1, adapted.sequence("nowhere")), Generate("r", 1, adapted.sequence("a")))
    adapted.until(worker.finished)
    (failure,) = worker.failures()
    assert (failure.id, failure.message, failure.retry) == ("x", "this worker has no adapter 'digest-nowhere'", True)


@pytest.mark.parametrize("how", ["cancelled", "expired", "gone"])
def test_one_that_ends_while_it_waits_for_room_makes_way(adapted, how):
    """Those behind it are not kept from the adapter that would have been pushed out for it."""
    worker = adapted.worker(adapters_in_memory=1)
    worker.tell(joined=(8,))
    worker.tell(Generate("a", 1, adapted.sequence("a", max_tokens=120)))
    adapted.until(lambda: worker.tokens("a"))
    worker.tell(Generate("b", 1, adapted.sequence("b", deadline=3.0 if how == "expired" else 1e6)), gateway=8)
    worker.tell(Generate("a2", 1, adapted.sequence("a")))
    adapted.world.run(2)
    assert worker.status.load.waiting == 2
    if how == "cancelled":
        worker.tell(Cancel("b", 1), gateway=8)
    elif how == "gone":
        worker.tell(left=(8,))
    adapted.until(lambda: worker.finished(id="a2"))
    assert not worker.finished(id="a"), "it came after that"
    assert worker.tokens("a2") == adapted.expected("a")
    assert adapted.loads.counts["b"] == 0
    codes = [each.code for each in worker.others.get(8, ()) if hasattr(each, "code")]
    assert codes == (["deadline"] if how == "expired" else [])


def test_those_that_wait_are_counted_and_no_more_than_allowed(adapted):
    worker = adapted.worker(max_waiting=3)
    adapted.loads.gate.clear()
    worker.tell(*[Generate(f"r{i}", 1, adapted.sequence("a")) for i in range(5)])
    adapted.world.run(2)
    assert [(each.id, each.code) for each in worker.failures()] == [("r3", "overloaded"), ("r4", "overloaded")]
    assert (worker.status.load.waiting, worker.status.load.credits) == (3, 0)
    adapted.loads.gate.set()
    adapted.until(lambda: all(worker.finished(id=f"r{i}") for i in range(3)))


def test_a_draining_worker_sends_those_that_wait_elsewhere(adapted):
    worker = adapted.worker()
    adapted.loads.gate.clear()
    worker.tell(Generate("r", 1, adapted.sequence("a")))
    adapted.world.run(1)
    worker.tell(drain=True)
    adapted.until(lambda: worker.failures())
    assert (worker.failures()[0].code, worker.failures()[0].retry) == ("draining", True)
    adapted.loads.gate.set()


def test_two_workers_do_not_wait_for_each_others_room_for_ever(adapted, world):
    """Each has the one place taken by the half of a pair whose other half is held at the other worker."""
    prefill, decode = (adapted.worker(name, adapters_in_memory=1, chunk=400) for name in "pd")
    x, y = adapted.sequence("a"), adapted.sequence("b")
    prefill.tell(Prefill("x", 1, 1, x, decode.peer))
    decode.tell(Decode("y", 1, 2, y, prefill.peer))
    adapted.until(lambda: prefill.scheduler.adapters() and decode.scheduler.adapters())
    prefill.tell(Prefill("y", 1, 2, y, decode.peer))
    decode.tell(Decode("x", 1, 1, x, prefill.peer))
    adapted.until(prefill.failures, seconds=10)
    (failure,) = prefill.failures()
    assert (failure.id, failure.code, failure.retry, failure.part) == ("y", "overloaded", True, "prefill")
    assert decode.failures() == []
    decode.tell(Cancel("y", 1))  # as the gateway does
    adapted.until(lambda: decode.finished(id="x"))
    assert decode.tokens("x") == adapted.expected("a")
    world.hand_off(prefill, decode, y, room=3, attempt=2, id="y")
    adapted.until(lambda: decode.finished(id="y", attempt=2))
    assert decode.tokens("y", attempt=2) == adapted.expected("b")
    assert len(prefill.failures()) == 1
    assert prefill.used == decode.used == 0


def test_a_prefill_waits_for_room_where_others_are_computed_however_long_they_are(adapted, world):
    prefill, decode = (adapted.worker(name, adapters_in_memory=1, chunk=400) for name in "pd")
    prefill.tell(Generate("long", 1, adapted.sequence("a", max_tokens=60)))
    adapted.until(lambda: prefill.tokens("long"))
    world.hand_off(prefill, decode, adapted.sequence("b"), id="y")
    adapted.until(lambda: decode.finished(id="y"))
    assert prefill.finished(id="long")
    assert prefill.failures() == decode.failures() == []


def test_a_grant_outlasts_its_lease_while_the_prefill_waits_for_its_adapter(make_world, shifting_runner):
    adapted, receiving = Adapted(make_world(lease=8.0), shifting_runner), Loads()
    try:
        prefill = adapted.worker("p")
        decode = adapted.world.worker("d", runner=shifting_runner(), adapters=receiving.offered)
        adapted.loads.gate.clear()
        adapted.world.hand_off(prefill, decode, adapted.sequence("b"))
        adapted.until(decode.scheduler.adapters)
        adapted.world.run(40)
        assert prefill.failures() == decode.failures() == []
        adapted.loads.gate.set()
        adapted.until(decode.finished)
        assert decode.tokens() == adapted.expected("b")
        assert prefill.agent.counts().fences == decode.agent.counts().fences == 0
    finally:
        adapted.loads.gate.set()
        adapted.world.close()


def test_a_grant_for_a_prefill_that_waits_no_more_ends_with_its_lease(make_world, shifting_runner):
    adapted, receiving = Adapted(make_world(lease=8.0), shifting_runner), Loads()
    try:
        prefill = adapted.worker("p")
        decode = adapted.world.worker("d", runner=shifting_runner(), adapters=receiving.offered)
        adapted.loads.gate.clear()
        adapted.world.hand_off(prefill, decode, adapted.sequence("b"))
        adapted.until(decode.scheduler.adapters)
        adapted.world.run(20)
        assert decode.failures() == []
        prefill.tell(Cancel("r", 1))
        adapted.until(decode.failures, seconds=10)
        assert decode.failures()[0].retry
    finally:
        adapted.loads.gate.set()
        adapted.world.close()


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

    def tell(self, **paths):
        """Names and paths to offer from now on."""
        self.lists += 1
        entries = tuple(AdapterEntry(name, path) for name, path in paths.items())
        self.worker.tell(adapters=AdapterList(entries, f"list-{self.lists}"))

    def until_read(self):
        wanted = f"list-{self.lists}"
        self.adapted.until(lambda: self.worker.offer is not None and self.worker.offer.list == wanted)
        return self.worker.offer

    def say(self, id, name, **params):
        self.worker.tell(Generate(id, 1, self.adapted.sequence(name, **params)))

    def in_memory(self):
        self.adapted.world.run(3)
        return set(self.worker.status.load.adapters)


@pytest.fixture
def listed(adapted):
    return Listed(adapted)


def test_one_that_a_later_list_names_is_offered_without_a_new_epoch(adapted, listed):
    listed.tell(sql="a")
    assert listed.until_read().adapters == {"sql": "digest-a"}
    listed.tell(sql="a", law="b")
    assert listed.until_read().adapters == {"sql": "digest-a", "law": "digest-b"}
    assert listed.opened == ["a", "b"], "what is offered already is not opened again"
    listed.say("r", "b")
    adapted.until(listed.worker.finished)
    assert listed.worker.tokens() == adapted.expected("b")


def test_one_that_is_removed_is_computed_with_to_the_end_and_then_leaves_memory(adapted, listed):
    listed.tell(sql="a", law="b")
    listed.until_read()
    listed.say("r", "a", max_tokens=30)
    adapted.until(listed.worker.tokens)
    listed.tell(law="b")
    listed.until_read()
    assert listed.in_memory() == {"digest-a"}
    assert not listed.worker.finished()
    adapted.until(listed.worker.finished)
    assert listed.worker.tokens() == adapted.expected("a", count=30)
    assert listed.in_memory() == set()


def test_what_began_with_one_that_is_removed_can_come_here_later(adapted, listed):
    """Its worker died, or hands it over: this one has to have it still. Whoever has not read the list asks by name."""
    listed.tell(sql="a")
    listed.until_read()
    listed.tell()
    assert listed.until_read().adapters == {"sql": "digest-a"}
    truth = adapted.expected("a", count=12)
    known = adapted.sequence("a", [*adapted.world.prompt, *truth[:5]], max_tokens=12)
    listed.worker.tell(Generate("r", 1, msgspec.structs.replace(known, prompt_len=len(adapted.world.prompt))))
    adapted.until(listed.worker.finished)
    assert listed.worker.tokens() == truth[5:]
    assert listed.in_memory() == set()


def test_another_under_the_same_name_leaves_the_former_to_those_that_began_with_it(adapted, listed):
    listed.tell(sql="a")
    listed.until_read()
    listed.say("old", "a", max_tokens=30)
    adapted.until(lambda: listed.worker.tokens("old"))
    listed.tell(sql="b")
    offer = listed.until_read()
    assert (offer.adapters, offer.former) == ({"sql": "digest-b"}, ("digest-a",))
    listed.say("new", "b")
    adapted.until(lambda: listed.worker.finished(id="old") and listed.worker.finished(id="new"))
    assert listed.worker.tokens("old") == adapted.expected("a", count=30)
    assert listed.worker.tokens("new") == adapted.expected("b")
    assert listed.in_memory() == {"digest-b"}


def test_one_that_cannot_be_opened_changes_nothing_else_and_is_tried_again(adapted, listed):
    listed.broken = {"b", "c"}
    listed.tell(sql="a")
    listed.until_read()
    listed.tell(sql="b", law="c", chess="d")
    offer = listed.until_read()
    assert offer.adapters == {"sql": "digest-a", "chess": "digest-d"}, "the one before stays under its name"
    assert offer.problems == {"sql": "b: it is damaged", "law": "c: it is damaged"}
    adapted.world.run(int(RETRY) - 2)
    assert listed.opened.count("c") == 1
    listed.broken = {"b"}
    adapted.until(lambda: "law" in listed.worker.offer.adapters)
    assert listed.worker.offer.problems == {"sql": "b: it is damaged"}
    assert listed.opened.count("d") == 1


def test_a_fault_in_opening_one_is_told_like_any_other_problem(adapted, listed):
    listed.tell(sql="no such files", law="a")
    offer = listed.until_read()
    assert offer.adapters == {"law": "digest-a"}
    assert "no such files cannot be opened: ValueError" in offer.problems["sql"]


def test_who_waits_for_room_begins_when_one_that_is_removed_leaves_memory(adapted):
    listed = Listed(adapted, adapters_in_memory=1)
    listed.tell(sql="a", law="b")
    listed.until_read()
    listed.say("first", "a", max_tokens=20)
    adapted.until(lambda: listed.worker.tokens("first"))
    listed.say("second", "b")
    listed.tell(law="b")
    adapted.until(lambda: listed.worker.finished(id="second"))
    assert listed.worker.tokens("first") == adapted.expected("a", count=20)
    assert listed.worker.tokens("second") == adapted.expected("b")


def test_only_so_many_that_were_removed_are_kept(adapted):
    worker = adapted.worker()
    resident = worker.core._handler.adapters
    for number in range(MOST_WITHDRAWN + 10):
        resident.offer([OfferedAdapter("sql", f"digest {number}", lambda: Shift(1))])
    assert len(resident.former) == MOST_WITHDRAWN
    assert resident.offered == {"sql": f"digest {MOST_WITHDRAWN + 9}"}
