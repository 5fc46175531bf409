"""Block hashes of prompts of which only a trace's prefix ids are known."""

from collections.abc import Sequence

from legato_protocol.wire.block_hash import HASH_BYTES

_PLACES = 4  # bytes of a block's number


class PromptBlocks:
    """Derives block hashes from ids. An id covers `per_id` tokens, a KV block `block_size`.

    Neither must divide the other, because the tokens up to a block's end are determined by the ids up to there.
    """

    def __init__(self, per_id: int, block_size: int) -> None:
        self._per_id, self._block_size = per_id, block_size

    def hashes(self, number: int, tokens: int, ids: Sequence[int]) -> list[bytes]:
        """Returns the hashes of all full blocks of prompt `number`. Tokens without an id are shared with no other
        prompt.

        Like a block's hash, an id identifies the whole prefix up to it, so a block's hash consists of the id of its
        last token and the block's number.
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
    """Encodes an id: even numbers are ids of the trace, odd ones belong to a single prompt."""
    return id.to_bytes(HASH_BYTES - _PLACES, "little", signed=True)
