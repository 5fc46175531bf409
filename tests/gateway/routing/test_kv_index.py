"""The index is the worker's truth at its newest event, or nothing; a match is an unbroken prefix that is there."""

import random
from collections.abc import Sequence

import pytest
from budget import times
from hypothesis import given, settings
from hypothesis import strategies as st

from legato_gateway.routing.indexed_worker import PIECE
from legato_gateway.routing.kv_index import RUN, SWEEP, KVIndex
from legato_protocol.wire.block_hash import chain, join, root
from legato_protocol.wire.kv_events import KVEvent, Removed, Snapshot, Stored
from legato_protocol.wire.packed_tokens import pack_tokens


def hashes(blocks: int, seed: int = 0, shared: list[bytes] | None = None) -> list[bytes]:
    """A chain of block hashes, going on from `shared` where that is given."""
    start = shared or []
    tokens = pack_tokens([seed] * 4 * blocks)
    return start + chain(tokens, 4, start[-1] if start else root("revision"))


class Worker:
    """Makes the events of a real worker and remembers every earlier state. Of an index, `stores` and `removes` return
    whether events were lost."""

    def __init__(self, blocks: Sequence[bytes] = (), name: str = "w", index: KVIndex | None = None) -> None:
        self.name, self.index, self.held = name, index or KVIndex(), set(blocks)
        self.epoch, self.number = name, int(bool(blocks))
        self.history = {(self.epoch, self.number): frozenset(self.held)}
        self.connect()

    def _next(self) -> tuple[str, int]:
        self.number += 1
        self.history[self.epoch, self.number] = frozenset(self.held)
        return self.epoch, self.number

    def store(self, blocks: Sequence[bytes]) -> Stored:
        self.held |= set(blocks)
        return Stored(*self._next(), join(list(blocks)))

    def remove(self, blocks: Sequence[bytes]) -> Removed:
        self.held -= set(blocks)
        return Removed(*self._next(), join(list(blocks)))

    def snapshot(self, pages: int = 1) -> list[Snapshot]:
        blocks = sorted(self.held)
        size = -(-len(blocks) // pages) or 1
        return [
            Snapshot(self.epoch, self.number, page, page == pages - 1, join(blocks[page * size : (page + 1) * size]))
            for page in range(pages)
        ]

    def restart(self, epoch: str) -> None:
        self.epoch, self.number, self.held = epoch, -1, set()
        self._next()

    def connect(self, pages: int = 1) -> None:
        self.index.expect(self.name, self.epoch)
        self.send_snapshot(pages)

    def send_snapshot(self, pages: int = 1) -> None:
        for page in self.snapshot(pages):
            self.index.apply(self.name, page)
        while self.index.read_on(self.name):
            pass

    def stores(self, blocks: list[bytes]) -> bool:
        return self.index.apply(self.name, self.store(blocks))

    def removes(self, blocks: list[bytes]) -> bool:
        return self.index.apply(self.name, self.remove(blocks))

    def match(self, prompt: list[bytes]) -> int:
        """Blocks that it holds of the prompt; the index agrees with itself."""
        self.index.check_integrity()
        return self.index.match(prompt).get(self.name, 0)


def unbroken(chain_of: list[bytes], held: set[bytes] | frozenset[bytes]) -> int:
    return next((i for i, block in enumerate(chain_of) if block not in held), len(chain_of))


@pytest.mark.parametrize("reconnects", [False, True])
def test_a_snapshot_older_than_events_seen_is_refused_but_not_one_of_a_new_epoch(reconnects):
    prompt = hashes(6)
    worker = Worker(prompt)
    (old,) = worker.snapshot()
    worker.removes(prompt[3:])
    if reconnects:
        worker.index.expect("w", worker.epoch)
        assert worker.match(prompt) == 0
    assert worker.index.apply("w", old)
    assert worker.match(prompt) == 0
    worker.restart("e1")
    worker.connect()
    assert not worker.stores(prompt)
    assert worker.match(prompt) == 6
    worker.connect()
    assert worker.match(prompt) == 6
    worker.restart("e2")
    worker.index.expect("w", "e2")
    assert worker.match(prompt) == 0
    worker.index.forget("w")
    assert worker.index.blocks == 0


def test_of_a_worker_with_windows_the_last_block_names_the_prefix():
    """It may have no blocks before; other workers need all of them."""
    prompt, index = hashes(5 * RUN + 7), KVIndex()
    whole, windowed = Worker(prompt[:40], "whole", index), Worker((), "windowed", index)
    for reconnects in range(2):
        index.expect("windowed", windowed.epoch, whole=False)
        windowed.send_snapshot()
        windowed.stores([prompt[9], prompt[99]])
        expected = (40, 7)[reconnects], 100, 10
        assert (whole.match(prompt), windowed.match(prompt), windowed.match(prompt[:50])) == expected
        windowed.removes([prompt[99]])
        assert (windowed.match(prompt), windowed.match(prompt[:9])) == (10, 0)
        whole.removes([prompt[7 - reconnects]])
        assert (whole.match(prompt), windowed.match(prompt)) == (7 - reconnects, 10)
    index.forget("windowed")
    index.check_integrity()
    assert Worker([prompt[4]], "next", index).match(prompt) == 0


def test_a_prompt_that_was_matched_before_is_not_walked_again(monkeypatch):
    prompt = hashes(5 * RUN)
    worker = Worker(prompt)
    worker.match(prompt)
    monkeypatch.setattr(worker.index, "_inspect", None)
    assert worker.match(prompt) == 5 * RUN


def test_memory_is_bounded_and_blocks_left_out_are_only_missed():
    prompt, worker = hashes(50), Worker(index=KVIndex(max_blocks=20))
    index = worker.index
    worker.stores(prompt)
    assert (index.blocks, index.dropped, index.evicted) == (20, 30, 0)
    assert worker.match(prompt) == 20
    worker.removes(prompt[:10] + prompt[40:])
    assert worker.match(prompt) == 0
    assert (index.blocks, index.blocks_at("w")) == (10, 10)
    worker.stores(hashes(20, 1))
    assert worker.match(hashes(20, 1)) == 20, "new blocks may take the room of all others"


def test_a_full_index_forgets_what_was_used_least_recently_ends_of_prefixes_first():
    """A shared beginning shorter than a run, runs, and ends of prompts: what is matched stays."""
    shared = hashes(RUN // 2)
    prompts = [hashes(3 * RUN + 5, seed, shared) for seed in range(4)]
    worker = Worker(index=KVIndex(max_blocks=4 * len(prompts[0]) - 3 * len(shared)))
    for prompt in prompts:
        worker.stores(prompt)
    for seed in range(100, 105):
        assert worker.match(prompts[0]) == len(prompts[0])
        worker.stores(hashes(RUN, seed))
    index = worker.index
    assert (index.blocks, index.evicted, index.dropped) == (index.max_blocks, 5 * RUN, 0)
    left = [len(prompts[0]), len(shared), len(prompts[2]) - 5 * RUN + 3 * RUN + 5, len(prompts[3])]
    assert list(map(worker.match, prompts)) == left
    assert worker.match(hashes(RUN, 104)) == RUN


def test_a_snapshot_takes_no_more_than_an_equal_share_from_others():
    index = KVIndex(max_blocks=40)
    Worker(hashes(40, 1), "mine", index)
    Worker(hashes(100, 2), "theirs", index)
    assert (index.blocks_at("mine"), index.blocks_at("theirs"), index.evicted, index.dropped) == (20, 20, 20, 80)
    index.check_integrity()


@settings(max_examples=times(30), deadline=None)
@given(st.integers(0, 2**32))
def test_a_small_index_claims_no_more_than_is_true_and_keeps_what_is_asked_for_often(seed):
    source, index, favourite = random.Random(seed), KVIndex(max_blocks=6 * RUN), hashes(RUN + 7, 999)
    workers = {name: Worker(favourite if name == "a" else (), name, index) for name in "abc"}
    for _ in range(40):
        name = source.choice("abc")
        index.apply(name, one_change(source, workers[name], spared=favourite))
        assert index.match(favourite) == {"a": len(favourite)}
        prompt = source.choice(PROMPTS)
        for holder, blocks in index.match(prompt).items():
            assert blocks <= unbroken(prompt, workers[holder].held)
        index.check_integrity()


def read_in_pieces(pieces: int) -> tuple[Worker, KVIndex, list[bytes]]:
    """A worker with so many pieces of a prompt, and an index that has taken in the first one of its page."""
    prompt, index = hashes(pieces * PIECE), KVIndex()
    worker = Worker(prompt)
    index.expect("w", worker.epoch)
    assert not index.apply("w", worker.snapshot()[0])
    return worker, index, prompt


def test_a_large_page_is_taken_in_by_pieces_and_counts_when_it_is_whole():
    _, index, prompt = read_in_pieces(6)
    for pieces in range(1, 6):
        assert (index.blocks, index.match(prompt)) == (pieces * PIECE, {})
        assert index.read_on("w")
    assert not index.read_on("w")
    assert index.match(prompt) == {"w": len(prompt)}
    index.check_integrity()


@pytest.mark.parametrize("event", ["stored", "expected", "forgotten", "epoch"])
def test_what_happens_between_two_pieces_of_a_page_is_followed(event):
    worker, index, prompt = read_in_pieces(3)
    if event == "stored":
        assert not index.apply("w", worker.store(hashes(1, 5)))
        assert index.match(prompt) == {"w": len(prompt)}
    elif event == "expected":
        index.expect("w", worker.epoch)
    elif event == "forgotten":
        index.forget("w")
    else:
        index.apply("w", Stored("another", 9, b""))
    assert not index.read_on("w")
    assert index.blocks_at("w") == (3 * PIECE + 1 if event == "stored" else 0)
    index.check_integrity()


def test_a_doubt_sweeps_few_blocks_at_a_time_and_leaves_none_behind():
    index, (many, few) = KVIndex(), (hashes(4 * SWEEP, 1), hashes(SWEEP, 2))
    mine, theirs = Worker(many, "mine", index), Worker(few, "theirs", index)
    index.expect("mine", "mine")
    assert (index.blocks_at("mine"), index.match(many)) == (0, {})
    events = 0
    while index.blocks > SWEEP:
        before = index.blocks
        theirs.stores(few[:1])
        assert before - index.blocks <= SWEEP
        events += 1
        index.check_integrity()
    assert events >= 4
    assert theirs.match(few) == SWEEP
    mine.connect()
    assert mine.match(many) == 4 * SWEEP


def test_blocks_that_go_while_a_doubt_is_swept_out_and_a_second_doubt_are_harmless():
    index = KVIndex()
    stays = Worker(hashes(10, 1), "c", index)
    for name, seed in (("a", 2), ("b", 3)):
        Worker(hashes(2 * SWEEP, seed), name, index)
    for name in "ab":
        index.expect(name, name)
    stays.stores(hashes(10, 1))
    stays.removes(hashes(10, 1))
    for _ in range(20):
        stays.stores(hashes(1, 1))
        index.check_integrity()
    assert index.blocks == 1


def test_blocks_that_no_worker_holds_take_no_room():
    index = KVIndex(max_blocks=20)
    Worker(hashes(20, 1), index=index)
    assert Worker(hashes(20, 2), index=index).match(hashes(20, 2)) == 20
    assert index.dropped == 0


def test_unknown_workers_are_ignored():
    index = KVIndex()
    assert not index.apply("nobody", Stored("e", 1, join(hashes(2))))
    assert (index.match(hashes(2)), index.match([])) == ({}, {})
    index.forget("nobody")
    assert index.blocks_at("nobody") == 0


SHARED = hashes(RUN + 20)
PROMPTS = [hashes(RUN, seed, SHARED) for seed in range(1, 4)] + [hashes(30, seed) for seed in range(4, 6)]


def shuffled_channel(source: random.Random, queue: list[KVEvent], past: list[KVEvent]) -> list[KVEvent]:
    """Events of `queue` that arrive next: in order or not, perhaps twice, perhaps never, or from long ago."""
    if source.random() < 0.05 and past:
        return [source.choice(past)]
    if not queue:
        return []
    event = queue.pop(0 if source.random() < 0.93 else source.randrange(len(queue)))
    past.append(event)
    fate = source.random()
    return [] if fate < 0.04 else [event, event] if fate > 0.97 else [event]


def one_change(source: random.Random, worker: Worker, spared: Sequence[bytes] = ()) -> KVEvent:
    """A change of what it holds, but of `spared`."""
    held = worker.held.difference(spared)
    prompt = source.choice(PROMPTS)
    kind = source.random()
    if kind < 0.65 or not held:
        have = unbroken(prompt, worker.held)
        return worker.store(prompt[have : have + source.randint(1, RUN)] or prompt[-1:])
    most = 5 if kind < 0.97 else len(held)
    return worker.remove(source.sample(sorted(held), min(len(held), source.randint(1, most))))


@settings(max_examples=times(50), deadline=None)
@given(st.integers(0, 2**32))
def test_over_a_bad_channel_there_is_never_a_stale_hit_and_the_end_is_the_truth(seed):
    source, index = random.Random(seed), KVIndex()
    workers = {name: Worker(name=name, index=index) for name in "ab"}
    queues: dict[str, list[KVEvent]] = {name: list(worker.snapshot(pages=2)) for name, worker in workers.items()}
    past: dict[str, list[KVEvent]] = {name: [] for name in workers}
    newest = dict.fromkeys(workers, 0)
    for name, worker in workers.items():
        index.expect(name, worker.epoch)

    for step in range(60):
        name = source.choice(list(workers))
        worker = workers[name]
        queues[name].append(one_change(source, worker))
        if source.random() < 0.03:
            worker.restart(f"{name}{step + 1}")
            index.expect(name, worker.epoch)
            queues[name] += worker.snapshot(pages=2)
            newest[name] = 0
        for event in shuffled_channel(source, queues[name], past[name]):
            if event.epoch == worker.epoch:
                newest[name] = max(newest[name], event.number)
            if index.apply(name, event):
                queues[name] += worker.snapshot(pages=2)
        for prompt in PROMPTS:
            for holder, blocks in index.match(prompt).items():  # exact at the newest event that was delivered
                truth = workers[holder].history[workers[holder].epoch, newest[holder]]
                assert blocks == unbroken(prompt, truth)
        index.check_integrity()

    for name, worker in workers.items():  # the channel is good again: what is lost is asked for
        if not index.blocks_at(name) or queues[name] or newest[name] != worker.number:
            worker.connect(pages=2)
        assert index.blocks_at(name) == len(worker.held)
    for prompt in PROMPTS:
        expected = {name: unbroken(prompt, worker.held) for name, worker in workers.items()}
        assert index.match(prompt) == {name: blocks for name, blocks in expected.items() if blocks}
