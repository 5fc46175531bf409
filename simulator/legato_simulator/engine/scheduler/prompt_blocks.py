"""Block hashes of prompts that are known by their prefix ids alone: an id of a trace stands for the blocks under it."""

from collections.abc import Sequence

from legato_protocol.block_hash import HASH_BYTES

_PLACES = 4  # bytes of the place within an id


class PromptBlocks:
    """`per_id` tokens are behind an id, `block_size` in a block of the KV cache: neither need divide the other, since
    the tokens up to a block's end are those of the ids up to there."""

    def __init__(self, per_id: int, block_size: int) -> None:
        self._per_id, self._block_size = per_id, block_size

    def hashes(self, number: int, tokens: int, ids: Sequence[int]) -> list[bytes]:
        """Of all full blocks of prompt `number`. What no id stands for is shared with nobody.

        An id names all before it, as a block's hash does: so a block is named by the id that its last token lies in,
        and its place.
        """
        size, per_id = self._block_size, self._per_id
        made: list[bytes] = []
        last, name = -1, b""
        for place in range(1, tokens // size + 1):
            if (index := (place * size - 1) // per_id) != last:
                last, name = index, _name(2 * ids[index] if index < len(ids) else 2 * number + 1)
            made.append(name + place.to_bytes(_PLACES, "little"))
        return made


def _name(id: int) -> bytes:
    """Even for ids of the trace, odd for what one prompt has alone."""
    return id.to_bytes(HASH_BYTES - _PLACES, "little", signed=True)
