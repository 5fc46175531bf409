"""Block hashes name a prefix by content, alike in every process."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato_protocol.wire import block_hash
from legato_protocol.wire.packed_tokens import pack_tokens

TOKENS = st.lists(st.integers(0, 200_000), max_size=70)


def chain(tokens, block_size=4, root=None):
    return block_hash.chain(pack_tokens(tokens), block_size, root or block_hash.root("rev"))


@given(TOKENS, TOKENS, st.integers(1, 9))
def test_equal_hashes_mean_equal_prefixes(left, right, size):
    for index, (a, b) in enumerate(zip(chain(left, size), chain(right, size), strict=False)):
        assert (a == b) == (left[: (index + 1) * size] == right[: (index + 1) * size])


@given(TOKENS, st.integers(1, 9))
def test_only_full_blocks_are_hashed(tokens, size):
    hashes = chain(tokens, size)
    assert len(hashes) == len(tokens) // size
    assert all(len(h) == block_hash.HASH_BYTES for h in hashes)


@given(TOKENS, st.integers(1, 9), st.integers(0, 10))
def test_a_chain_can_be_continued(tokens, size, done):
    whole = chain(tokens, size)
    done = min(done, len(whole))
    parent = whole[done - 1] if done else block_hash.root("rev")
    assert block_hash.chain(pack_tokens(tokens), size, parent, done) == whole[done:]


def test_one_block_at_a_time_gives_the_same_chain():
    parent, tokens = block_hash.root("rev"), list(range(12))
    for start, expected in zip((0, 4, 8), chain(tokens), strict=True):
        parent = block_hash.child(parent, pack_tokens(tokens[start : start + 4]))
        assert parent == expected


def test_roots_differ_by_revision_adapter_and_salt():
    spellings = [("a",), ("b",), ("a", "b"), ("ab",), ("a", "", "b"), ("a", "b", ""), ("", "ab")]
    roots = [block_hash.root(*parts) for parts in spellings]
    assert len(set(roots)) == len({(*p, "", "")[:3] for p in spellings})


def test_hashes_are_the_same_in_every_process_and_release():
    """Peers have shipped caches keyed by Python's `hash()`, which every process seeds anew."""
    assert chain(list(range(8)))[1].hex() == "e08c6cdfac8298d5bca6d36778919946"


@given(st.lists(st.binary(min_size=16, max_size=16), max_size=5))
def test_joined_hashes_split_again_and_a_piece_of_one_is_refused(hashes):
    joined = block_hash.join(hashes)
    assert block_hash.split(joined) == hashes
    with pytest.raises(ValueError, match=f"{len(joined) + 1} bytes"):
        block_hash.split(joined + b"x")
