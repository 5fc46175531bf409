"""Groups of layers by window, and the prefixes after which a sequence can continue."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato_engine.kvcache.events import EventLog
from legato_engine.kvcache.groups import LayerPlace, first_block, group_layers
from legato_engine.kvcache.reach import WindowedPrefixes
from legato_protocol.wire.block_hash import child, split
from legato_protocol.wire.kv_events import Stored

GEMMA_12B, GEMMA_27B = ([[None, 1024][(layer + 1) % 6 > 0] for layer in range(layers)] for layers in (48, 62))


@pytest.mark.parametrize(
    ("windows", "per_block", "groups"),
    [
        ([None] * 32, 32, ()),
        ([4096] * 32, 4, (4096,) * 7),  # the first group has four layers with a window
        ([4096] * 40, 5, (4096,) * 7),
        ([64] * 2, 1, (64,)),
        ([64], 1, ()),
        ([64, 256] * 8, 2, (64,) * 4 + (256,) * 3),
        ([128, None] * 12, 12, (128,)),
        (GEMMA_12B, 8, (1024,) * 5),
        (GEMMA_27B, 10, (1024,) * 6),  # 8 of 70 places are unused
        ([None] * 20 + [64] * 8, 28, ()),  # 12 of 40 places would be
        ([None, 64, 64, 256], 1, (64, 64, 256)),
        ([64, None, 256, None], 4, ()),
    ],
)
def test_layers_of_a_window_are_divided_into_groups_of_equal_size(windows, per_block, groups):
    made = group_layers(windows)
    assert (made.per_block, made.windows) == (per_block, groups)
    assert len({*made.places}) == len(windows)
    for window, place in zip(windows, made.places, strict=True):
        assert 0 <= place.place < per_block
        whole = not groups or window is None or (None not in windows and not place.group)
        assert place == LayerPlace(0, place.place) if whole else groups[place.group - 1] == window


def _tree(random):
    """Hashes of blocks, with their parents, of sequences that share beginnings."""
    chains, parents = [[]], {}
    for number in range(12):
        chain = list(random.choice(chains))[: random.randrange(9)]
        while len(chain) < 9:
            parent = chain[-1] if chain else None
            chain.append(child(parent or b"", bytes((number, len(chain)))))
            parents[chain[-1]] = parent
        chains.append(chain)
    return chains[1:], parents


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.sampled_from([2, 5, 8, 9, 40]), min_size=1, max_size=3))
def test_events_name_every_prefix_that_is_usable(seed, windows):
    """After random changes of blocks of 4 positions; the first group evicts leaves first, windows in any order."""
    random, log = Random(seed), EventLog("epoch")
    chains, parents = _tree(random)
    prefixes, known = WindowedPrefixes(windows, 4, log), set()
    stored = [set() for _ in range(1 + len(windows))]
    for _ in range(300):
        group, block_hash = random.randrange(len(stored)), random.choice([*parents])
        held, parent = stored[group], parents[block_hash]
        if block_hash in held and (group or not any(parents[each] == block_hash for each in held)):
            held.remove(block_hash)
            prefixes.remove(group, block_hash)
        elif block_hash not in held and (group or parent is None or parent in held):
            held.add(block_hash)
            prefixes.add(group, block_hash, parent)
    for event in log.take():
        changes = Counter(split(event.hashes))
        known = known | changes.keys() if isinstance(event, Stored) else known - changes.keys()
    prefixes.check_integrity()

    for chain in chains:
        for count in range(1, len(chain) + 1):
            needed = [chain[first_block(window, 4 * count, 4) : count] for window in windows]
            usable = {*chain[:count]} <= stored[0] and all({*n} <= s for n, s in zip(needed, stored[1:], strict=True))
            assert (chain[count - 1] in known) == usable, f"{count} blocks"
    assert {*prefixes.usable({})} == known
