"""Hashes of prompts: in pieces as at once, and no piece is long."""

import asyncio

from budget import times
from hypothesis import given, settings
from hypothesis import strategies as st

from legato_gateway.routing.prefix_hashes import PIECE, Hashing, PrefixHashes
from legato_protocol import block_hash
from legato_protocol.packed_tokens import pack_tokens


@settings(max_examples=times(30), deadline=None)
@given(
    prompt=st.integers(0, 200), more=st.integers(0, 40), size=st.sampled_from([8, 16]), salt=st.sampled_from(["", "s"])
)
def test_hashes_are_those_of_the_whole_sequence(prompt, more, size, salt):
    tokens = pack_tokens(range(prompt + more))
    hashes = PrefixHashes(tokens[: 4 * prompt], salt)
    whole = block_hash.chain(tokens, size, block_hash.root("r", "", salt))
    assert hashes.of(tokens, Hashing("r", size)) == whole
    assert hashes.of(tokens[: 4 * prompt], Hashing("r", size)) == whole[: prompt // size]


def test_pieces_grow_into_the_whole_and_are_computed_once():
    prompt = pack_tokens(range(100_000))
    hashes = PrefixHashes(prompt, "")
    lengths = [len(known) for known in hashes.pieces(Hashing("r", 16))]
    steps = [after - before for before, after in zip([0, *lengths], lengths, strict=False)]
    assert max(steps) == PIECE
    assert hashes.of(prompt, Hashing("r", 16)) == block_hash.chain(prompt, 16, block_hash.root("r"))
    assert list(hashes.pieces(Hashing("r", 16))) == []


def test_pieces_that_were_left_off_are_finished_when_asked_for():
    prompt = pack_tokens(range(100_000))
    hashes = PrefixHashes(prompt, "")
    next(hashes.pieces(Hashing("r", 16)))
    assert hashes.of(prompt, Hashing("r", 16)) == block_hash.chain(prompt, 16, block_hash.root("r"))


async def test_other_tasks_run_between_the_pieces_of_a_long_prompt(lab):
    """A prompt of 100k tokens is hashed, and looked up for the first time, without a long pause of the event loop."""
    async with lab.running(lab.unified(1)) as gateway:
        reader = gateway.submit(prompt=tuple(range(100_000)))
        turns = 0
        while not reader.generation.route.decode:
            await asyncio.sleep(0)
            turns += 1
        assert turns >= 100_000 // 16 // PIECE
        await reader.generation.cancel()
