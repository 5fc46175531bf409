"""Tokenizes texts block by block, and blocks of earlier texts only once."""

from array import array
from collections.abc import Sequence
from typing import Final

from tokenizers import Encoding, Tokenizer

from legato_gateway.tokenizer.block_cache import BlockCache, CutText
from legato_gateway.tokenizer.safe_cuts import SafeCuts

BLOCK: Final = 1024  # characters: more tokens than a block of the prefix cache usually has
_MOST_BLOCKS: Final = 256  # that are tokenized in one batch


class BlockEncoder:
    """Converts text to ids, without special tokens around it. Of the tokenizer's methods only those for batches release
    the interpreter lock."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._cuts = SafeCuts(tokenizer)
        self.cache = BlockCache()

    def ids(self, parts: Sequence[str], salt: str | None = None) -> list[int]:
        """Returns the ids of a text, whose parts are tokenized separately.

        Without a salt nothing is cached. Raises UnicodeEncodeError and TypeError for invalid Unicode.
        """
        whole = [CutText(part, resumes=number > 0) for number, part in enumerate(parts)]
        if sum(map(len, parts)) <= BLOCK:
            return self._encoded(whole)
        blocks = [block for part in whole for block in self._blocks(part)]
        if salt is None:
            return self._encoded(blocks)
        last = blocks.pop()  # the end of a text does not come again: the next turn continues it
        keys = self.cache.keys(salt, blocks)
        packed = self.cache.get(keys, blocks)
        self._fill(blocks, keys, packed)
        ids = array("I", b"".join(each for each in packed if each is not None)).tolist()
        return ids + self._encoded([last])

    def _blocks(self, part: CutText) -> list[CutText]:
        texts = list(self._cuts.blocks(part.text, BLOCK))
        return [CutText(texts[0], part.resumes), *map(CutText, texts[1:])]

    def _fill(self, blocks: Sequence[CutText], keys: Sequence[bytes], packed: list[bytes | None]) -> None:
        """Tokenizes the blocks that are missing in `packed`, and caches them."""
        missing = [number for number, ids in enumerate(packed) if ids is None]
        for at in range(0, len(missing), _MOST_BLOCKS):
            some = missing[at : at + _MOST_BLOCKS]
            for number, ids in zip(some, self._each([blocks[number] for number in some]), strict=True):
                packed[number] = made = array("I", ids).tobytes()
                self.cache.put(keys[number], made)

    def _encoded(self, blocks: Sequence[CutText]) -> list[int]:
        ids: list[int] = []
        for at in range(0, len(blocks), _MOST_BLOCKS):
            for each in self._each(blocks[at : at + _MOST_BLOCKS]):
                ids += each
        return ids

    def _each(self, blocks: Sequence[CutText]) -> list[list[int]]:
        """Returns the ids of each block."""
        plain = [block.text for block in blocks if not block.resumes]
        resumed = [block.text for block in blocks if block.resumes]
        encodings = iter(self._tokenizer.encode_batch_fast(plain, add_special_tokens=False) if plain else ())
        after = iter(self._tokenizer.encode_batch([f"\n{text}" for text in resumed], add_special_tokens=False))
        return [self._resumed(block.text, next(after)) if block.resumes else next(encodings).ids for block in blocks]

    def _resumed(self, text: str, encoding: Encoding) -> list[int]:
        """Returns the ids of a part. A line break before it keeps tokenizers from adding a space to it."""
        starts = [start for start, _ in encoding.offsets]
        if 1 in starts or not text:
            return list(encoding.ids[sum(not start for start in starts) :])
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)  # a token has the break and more
