"""The index is the worker's truth at its newest event, or nothing; a match is an unbroken prefix that is there."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from budget import times
from hypothesis import given, settings
from hypothesis import strategies as st

from legato_gateway.routing.kv_index import PIECE, RUN, SWEEP, KVIndex
from legato_protocol.block_hash import chain, join, root
from legato_protocol.kv_events import KVEvent, Removed, Snapshot, Stored
from legato_protocol.packed_tokens import pack_tokens


def hashes(blocks: int, seed: int = 0, shared: list[bytes] | None = None) -> list[bytes]:
    """A chain of block hashes, going on from `shared` where that is given."""
    start = shared or []
    tokens = pack_tokens([seed] * 4 * blocks)
    return start + chain(tokens, 4, start[-1] if start else root("revision"))


@dataclass
class Worker:
    """Tells of its cache as a real worker does, and remembers every earlier state."""

    epoch: str = "e0"
    number: int = 0
    held: set[bytes] = field(default_factory=set)
    history: dict[tuple[str, int], frozenset[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._note()

    def _note(self) -> None:
        self.history[(self.epoch, self.number)] = frozenset(self.held)

    def store(self, blocks: list[bytes]) -> Stored:
        self.held |= set(blocks)
        self.number += 1
        self._note()
        return Stored(self.epoch, self.number, join(blocks))

    def remove(self, blocks: list[bytes]) -> Removed:
        self.held -= set(blocks)
        self.number += 1
        self._note()
        return Removed(self.epoch, self.number, join(blocks))

    def snapshot(self, pages: int = 1) -> list[Snapshot]:
        blocks = sorted(self.held)
        size = -(-len(blocks) // pages) or 1
        return [
            Snapshot(self.epoch, self.number, page, page == pages - 1, join(blocks[page * size : (page + 1) * size]))
            for page in range(pages)
        ]

    def restart(self, epoch: str) -> None:
        self.epoch, self.number, self.held = epoch, 0, set()
        self._note()


def unbroken(chain_of: list[bytes], held: set[bytes] | frozenset[bytes]) -> int:
    return next((i for i, block in enumerate(chain_of) if block not in held), len(chain_of))


def started(worker: Worker, name: str = "w", index: KVIndex | None = None) -> KVIndex:
    index = index or KVIndex()
    index.expect(name, worker.epoch)
    for page in worker.snapshot():
        index.apply(name, page)
    while index.read_on(name):
        pass
    return index


def test_snapshot_then_events_give_the_workers_truth():
    prompt, worker = hashes(10), Worker()
    worker.store(prompt[:4])
    index = started(worker)
    assert index.match(prompt) == {"w": 4}
    assert not index.apply("w", worker.store(prompt[4:8]))
    assert index.match(prompt) == {"w": 8}
    index.apply("w", worker.remove(prompt[6:8]))
    assert index.match(prompt) == {"w": 6}
    index.apply("w", worker.remove(prompt[:6]))
    assert index.match(prompt) == {}
    assert index.blocks == 0
    assert not index.apply("w", worker.store(prompt))
    assert index.match(prompt) == {"w": 10}


@pytest.mark.parametrize("fault", ["gap", "repeat", "epoch"])
def test_a_doubtful_event_makes_the_worker_count_as_empty_until_a_snapshot(fault):
    prompt, worker = hashes(6), Worker()
    index = started(worker)
    first = worker.store(prompt[:3])
    index.apply("w", first)
    lost = worker.store(prompt[3:4])
    event = {"gap": worker.store(prompt[4:]), "repeat": first, "epoch": Removed("other", lost.number, b"")}[fault]
    assert index.apply("w", event), "the loss is reported, once"
    assert index.match(prompt) == {}
    assert not index.apply("w", event)
    for page in worker.snapshot(pages=3):
        index.apply("w", page)
    assert index.match(prompt) == {"w": 6}


def test_a_snapshot_older_than_events_seen_is_refused():
    prompt, worker = hashes(6), Worker()
    worker.store(prompt)
    old = worker.snapshot()
    index = started(worker)
    index.apply("w", worker.remove(prompt[3:]))
    assert index.apply("w", old[0])
    assert index.match(prompt) == {}


def test_a_snapshot_older_than_events_of_the_last_connection_is_refused_but_not_one_of_a_new_epoch():
    prompt, worker = hashes(6), Worker()
    worker.store(prompt)
    old = worker.snapshot()
    worker.remove(prompt[3:])
    index = started(worker)
    index.expect("w", worker.epoch)
    assert index.apply("w", old[0])
    worker.restart("e1")
    assert index.held("w") == 0
    index.expect("w", "e1")
    assert not index.apply("w", worker.snapshot()[0])
    assert not index.apply("w", worker.store(prompt))
    assert index.match(prompt) == {"w": 6}


def test_a_torn_snapshot_is_no_snapshot():
    prompt, worker = hashes(9), Worker()
    worker.store(prompt)
    index = KVIndex()
    index.expect("w", worker.epoch)
    first, _, last = worker.snapshot(pages=3)
    assert not index.apply("w", first)
    assert index.held("w") == 0, "nothing counts before its last page"
    assert index.apply("w", last)
    assert index.match(prompt) == {}


def test_a_new_connection_and_a_new_epoch_begin_with_nothing():
    prompt, worker = hashes(6), Worker()
    worker.store(prompt)
    index = started(worker)
    index.expect("w", worker.epoch)
    assert index.match(prompt) == {}
    index = started(worker, index=index)
    assert index.match(prompt) == {"w": 6}
    worker.restart("e1")
    index.expect("w", "e1")
    assert index.match(prompt) == {}
    index.forget("w")
    assert index.blocks == 0


def test_a_hole_ends_the_match_however_often_the_prompt_was_matched_before():
    """Workers are not trusted to evict leaves first: remembered runs lose their holder with any of their blocks."""
    prompt, worker = hashes(5 * RUN + 7), Worker()
    worker.store(prompt)
    index = started(worker)
    for _ in range(2):
        assert index.match(prompt) == {"w": len(prompt)}
    index.apply("w", worker.remove([prompt[2 * RUN + 3]]))
    assert index.match(prompt) == {"w": 2 * RUN + 3}
    index.apply("w", worker.store([prompt[2 * RUN + 3]]))
    assert index.match(prompt) == {"w": len(prompt)}
    index.check_integrity()


def test_a_prompt_that_was_matched_before_is_not_looked_through_again(monkeypatch):
    prompt, worker = hashes(5 * RUN), Worker()
    worker.store(prompt)
    index = started(worker)
    index.match(prompt)
    monkeypatch.setattr(index, "_look", None)
    assert index.match(prompt) == {"w": 5 * RUN}


@pytest.mark.parametrize("length", [1, RUN - 1, RUN, RUN + 1, 2 * RUN - 1])
def test_prompts_of_any_length_are_matched_to_their_end(length):
    prompt, worker = hashes(2 * RUN), Worker()
    worker.store(prompt)
    assert started(worker).match(prompt[:length]) == {"w": length}


@pytest.mark.parametrize("part", [1, 5])
def test_prompts_that_part_within_a_run_are_told_apart_after_removals(part):
    shared = hashes(RUN + part)
    forks = [hashes(RUN, seed, shared) for seed in (1, 2)]
    worker = Worker()
    for fork in forks:
        worker.store(fork)
    index = started(worker)
    for _ in range(2):
        assert [index.match(fork) for fork in forks] == [{"w": 2 * RUN + part}] * 2
        index.check_integrity()
    index.apply("w", worker.remove([shared[-1]]))
    assert [index.match(fork) for fork in forks] == [{"w": RUN + part - 1}] * 2
    index.check_integrity()


def test_workers_are_told_apart():
    prompt = hashes(3 * RUN)
    index, held = KVIndex(), {"a": 3 * RUN, "b": RUN + 1, "c": 0, "d": 2 * RUN}
    for name, blocks in held.items():
        worker = Worker(epoch=name)
        worker.store(prompt[:blocks])
        started(worker, name, index)
    for _ in range(3):
        assert index.match(prompt) == {name: blocks for name, blocks in held.items() if blocks}
    late = Worker(epoch="e")
    late.store(prompt[: RUN + 1])
    started(late, "e", index)
    assert index.match(prompt) == {"a": 3 * RUN, "b": RUN + 1, "d": 2 * RUN, "e": RUN + 1}
    index.forget("a")
    assert index.match(prompt) == {"b": RUN + 1, "d": 2 * RUN, "e": RUN + 1}
    index.check_integrity()


def test_memory_is_bounded_and_what_is_left_out_is_only_missed():
    prompt, worker = hashes(50), Worker()
    index = started(worker, index=KVIndex(max_blocks=20))
    index.apply("w", worker.store(prompt))
    assert index.blocks == 20
    assert (index.dropped, index.evicted) == (30, 0)
    assert index.match(prompt) == {"w": 20}
    index.apply("w", worker.remove(prompt[:10] + prompt[40:]))
    assert index.match(prompt) == {}
    assert (index.blocks, index.held("w")) == (10, 10)
    index.check_integrity()


def test_a_full_index_forgets_what_was_used_least_recently_ends_of_prefixes_first():
    """A shared beginning shorter than a run, runs, and ends of prompts: what is matched stays."""
    shared = hashes(RUN // 2)
    prompts = [hashes(3 * RUN + 5, seed, shared) for seed in range(4)]
    worker, index = Worker(), KVIndex(max_blocks=4 * len(prompts[0]) - 3 * len(shared))
    started(worker, index=index)
    for prompt in prompts:
        index.apply("w", worker.store(prompt))
    for _ in range(5):
        assert index.match(prompts[0]) == {"w": len(prompts[0])}
        index.apply("w", worker.store(hashes(RUN, 100 + _)))
        index.check_integrity()
    assert index.blocks == index.max_blocks
    assert index.evicted == 5 * RUN
    assert index.dropped == 0
    left = [index.match(prompt).get("w", 0) for prompt in prompts]
    assert left == [len(prompts[0]), len(shared), len(prompts[2]) - 5 * RUN + 3 * RUN + 5, len(prompts[3])]
    assert index.match(hashes(RUN, 104)) == {"w": RUN}


def test_what_was_matched_long_ago_is_forgotten_too():
    worker, index = Worker(), KVIndex(max_blocks=3 * RUN)
    started(worker, index=index)
    index.apply("w", worker.store(hashes(RUN, 0)))
    assert index.match(hashes(RUN, 0)) == {"w": RUN}
    for seed in range(1, 8):
        index.apply("w", worker.store(hashes(RUN, seed)))
    assert [index.match(hashes(RUN, seed)) for seed in (0, 5, 6, 7)] == [{}, *[{"w": RUN}] * 3]
    index.check_integrity()


def test_a_snapshot_takes_no_more_than_an_equal_share_from_others():
    mine, theirs = Worker(epoch="mine"), Worker(epoch="theirs")
    mine.store(hashes(40, 1))
    theirs.store(hashes(100, 2))
    index = started(mine, "mine", KVIndex(max_blocks=40))
    started(theirs, "theirs", index)
    assert (index.held("mine"), index.held("theirs")) == (20, 20)
    assert (index.evicted, index.dropped) == (20, 80)
    index.check_integrity()


def test_a_worker_of_which_blocks_were_forgotten_may_store_and_remove_them_again():
    worker, index = Worker(), KVIndex(max_blocks=10)
    started(worker, index=index)
    first, second = hashes(10, 1), hashes(10, 2)
    index.apply("w", worker.store(first))
    index.apply("w", worker.store(second))
    assert index.match(first) == {}
    index.apply("w", worker.remove(first))
    assert index.match(second) == {"w": 10}
    index.apply("w", worker.store(first))
    assert index.match(first) == {"w": 10}
    assert index.held("w") == 10
    index.check_integrity()


@settings(max_examples=times(30), deadline=None)
@given(st.integers(0, 2**32))
def test_a_small_index_says_no_more_than_is_true_and_keeps_what_is_asked_for_often(seed):
    source = random.Random(seed)
    index, workers = KVIndex(max_blocks=6 * RUN), {name: Worker(epoch=name) for name in "abc"}
    favourite = hashes(RUN + 7, 999)
    workers["a"].store(favourite)
    for name, worker in workers.items():
        started(worker, name, index)
    for _ in range(40):
        name = source.choice("abc")
        index.apply(name, one_change(source, workers[name], spared=favourite))
        assert index.match(favourite) == {"a": len(favourite)}
        prompt = source.choice(PROMPTS)
        for holder, blocks in index.match(prompt).items():
            assert blocks <= unbroken(prompt, workers[holder].held)
        index.check_integrity()


def test_a_large_page_is_taken_in_by_pieces_and_counts_when_it_is_whole():
    worker, prompt = Worker(), hashes(5 * PIECE + 1)
    worker.store(prompt)
    index = KVIndex()
    index.expect("w", worker.epoch)
    (page,) = worker.snapshot()
    assert not index.apply("w", page)
    for pieces in range(1, 6):
        assert index.blocks == pieces * PIECE
        assert index.match(prompt) == {}
        assert index.read_on("w")
    assert not index.read_on("w")
    assert index.match(prompt) == {"w": len(prompt)}
    index.check_integrity()


@pytest.mark.parametrize("event", ["stored", "expected", "forgotten", "epoch"])
def test_what_happens_between_two_pieces_of_a_page_is_followed(event):
    worker, prompt = Worker(), hashes(3 * PIECE)
    worker.store(prompt)
    index = KVIndex()
    index.expect("w", worker.epoch)
    index.apply("w", worker.snapshot()[0])
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
    assert index.held("w") == (3 * PIECE + 1 if event == "stored" else 0)
    index.check_integrity()


def test_a_doubt_looks_at_few_blocks_at_a_time_and_leaves_none_behind():
    mine, theirs = Worker(epoch="mine"), Worker(epoch="theirs")
    prompts = [hashes(4 * SWEEP, 1), hashes(SWEEP, 2)]
    mine.store(prompts[0])
    theirs.store(prompts[1])
    index = started(theirs, "theirs", started(mine, "mine"))
    index.expect("mine", "mine")
    assert (index.held("mine"), index.match(prompts[0])) == (0, {})
    events = 0
    while index.blocks > SWEEP:
        before = index.blocks
        index.apply("theirs", theirs.store(prompts[1][:1]))
        assert before - index.blocks <= SWEEP
        events += 1
        index.check_integrity()
    assert events >= 4
    assert index.match(prompts[1]) == {"theirs": SWEEP}
    started(mine, "mine", index)
    assert index.match(prompts[0]) == {"mine": 4 * SWEEP}
    index.check_integrity()


def test_blocks_that_go_while_a_doubt_is_swept_out_and_a_second_doubt_are_no_trouble():
    index, workers = KVIndex(), [Worker(epoch=name) for name in "abc"]
    stays = workers[2]
    stays.store(hashes(10, 1))
    for seed, worker in ((2, workers[0]), (3, workers[1])):
        worker.store(hashes(2 * SWEEP, seed))
    for worker in (stays, *workers[:2]):
        started(worker, worker.epoch, index)
    for worker in workers[:2]:
        index.expect(worker.epoch, worker.epoch)
    index.apply("c", stays.store(hashes(10, 1)))
    index.apply("c", stays.remove(hashes(10, 1)))
    for _ in range(20):
        index.apply("c", stays.store(hashes(1, 1)))
        index.check_integrity()
    assert index.blocks == 1


def test_what_nobody_holds_any_more_takes_no_room():
    old, new = Worker(), Worker()
    old.store(hashes(20, 1))
    new.store(hashes(20, 2))
    index = started(old, index=KVIndex(max_blocks=20))
    started(new, index=index)
    assert index.dropped == 0
    assert index.match(hashes(20, 2)) == {"w": 20}
    index.check_integrity()


def test_unknown_workers_are_ignored():
    index = KVIndex()
    assert not index.apply("nobody", Stored("e", 1, join(hashes(2))))
    assert index.match(hashes(2)) == {}
    assert index.match([]) == {}
    index.forget("nobody")
    assert index.held("nobody") == 0


SHARED = hashes(RUN + 20)
PROMPTS = [hashes(RUN, seed, SHARED) for seed in range(1, 4)] + [hashes(30, seed) for seed in range(4, 6)]


def shuffled_channel(source: random.Random, queue: list[KVEvent], past: list[KVEvent]) -> list[KVEvent]:
    """What arrives next of `queue`, in order or not, perhaps twice, perhaps never, or something from long ago."""
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
    source = random.Random(seed)
    index = KVIndex()
    workers = {name: Worker(epoch=f"{name}0") for name in ("a", "b")}
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
            check_no_stale_hit(index.match(prompt), prompt, workers, newest)
        index.check_integrity()

    for name, worker in workers.items():  # the channel is good again: what is lost is asked for
        if not index.held(name) or queues[name] or newest[name] != worker.number:
            index.expect(name, worker.epoch)
            for page in worker.snapshot(pages=2):
                index.apply(name, page)
        assert index.held(name) == len(worker.held)
    for prompt in PROMPTS:
        expected = {name: unbroken(prompt, worker.held) for name, worker in workers.items()}
        assert index.match(prompt) == {name: blocks for name, blocks in expected.items() if blocks}


def check_no_stale_hit(
    found: dict[str, int], prompt: list[bytes], workers: dict[str, Worker], newest: dict[str, int]
) -> None:
    """A hit is exactly what the worker held at the newest event delivered, never an earlier or a later state."""
    for name, blocks in found.items():
        truth = workers[name].history[(workers[name].epoch, newest[name])]
        assert blocks == unbroken(prompt, truth)
