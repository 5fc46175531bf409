"""Hashes of prompts: in pieces as in one go, and no piece is long."""

import asyncio
from itertools import pairwise

from budget import times
from hypothesis import given, settings
from hypothesis import strategies as st

from legato_gateway.routing.prefix_hashes import PIECE, Hashing, PrefixHashes
from legato_protocol.wire import block_hash
from legato_protocol.wire.packed_tokens import pack_tokens

SIZES = st.sampled_from([8, 16])


@settings(max_examples=times(30), deadline=None)
@given(prompt=st.integers(0, 200), more=st.integers(0, 40), size=SIZES, salt=st.sampled_from(["", "s"]))
def test_hashes_are_those_of_the_whole_sequence(prompt, more, size, salt):
    tokens = pack_tokens(range(prompt + more))
    hashes = PrefixHashes(tokens[: 4 * prompt], salt)
    whole = block_hash.chain(tokens, size, block_hash.root("r", "", salt))
    assert hashes.chain(tokens, Hashing("r", size)) == whole
    assert hashes.chain(tokens[: 4 * prompt], Hashing("r", size)) == whole[: prompt // size]


def test_pieces_grow_into_the_whole_and_are_computed_once_or_when_asked_for():
    prompt, hashing = pack_tokens(range(100_000)), Hashing("r", 16)
    whole = block_hash.chain(prompt, 16, block_hash.root("r"))
    hashes, unfinished = PrefixHashes(prompt, ""), PrefixHashes(prompt, "")
    lengths = [len(known) for known in hashes.pieces(hashing)]
    assert max(after - before for before, after in pairwise([0, *lengths])) == PIECE
    assert hashes.chain(prompt, hashing) == whole
    assert list(hashes.pieces(hashing)) == []
    next(unfinished.pieces(hashing))
    assert unfinished.chain(prompt, hashing) == whole


async def test_other_tasks_run_between_the_pieces_of_a_long_prompt(lab):
    """A prompt of 100k tokens is hashed, and looked up for the first time, without a long pause of the event loop."""
    async with lab.running(lab.unified(1)) as gateway:
        reader = gateway.submit(prompt=tuple(range(100_000)))
        passes = 0
        while not reader.generation.route.decode:
            await asyncio.sleep(0)
            passes += 1
        assert passes >= 100_000 // 16 // PIECE
        await reader.generation.cancel()
