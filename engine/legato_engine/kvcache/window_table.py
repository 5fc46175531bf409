"""The blocks of one sequence in a group of layers with a window."""

from collections.abc import Sequence


class WindowTable:
    """Blocks `first`, `first` + 1, … of a sequence. Earlier ones were released, as no later token sees them.

    `blocks` grows in place; a table without its first blocks is a new object, since a row in flight reads the old one.
    """

    __slots__ = ("blocks", "first")

    def __init__(self, first: int, blocks: Sequence[int]) -> None:
        self.first = first
        self.blocks = list(blocks)

    @property
    def end(self) -> int:
        """Number of the block after the last one."""
        return self.first + len(self.blocks)

    def __getitem__(self, number: int) -> int:
        """The block of this number within the sequence, which must not be released."""
        assert number >= self.first, f"block {number} of a table that begins with block {self.first}"
        return self.blocks[number - self.first]

    def __setitem__(self, number: int, block: int) -> None:
        assert number >= self.first, f"block {number} of a table that begins with block {self.first}"
        self.blocks[number - self.first] = block

    def before(self, number: int) -> list[int]:
        """The blocks before block `number`."""
        return self.blocks[: max(0, number - self.first)]

    def since(self, number: int) -> "WindowTable":
        """The table without the blocks before block `number`."""
        return WindowTable(max(self.first, number), self.blocks[max(0, number - self.first) :])
