"""How levels of priority share service. Pure: part of `admission`.

For `RATIO` tokens that start at one level, one is owed to those below it, however many they are; what these are owed is
shared in the same way. Only `RANKS` levels in use are told apart: the last of these ranks is all that are lower. So the
highest level has four fifths while others wait, the next one four fifths of the rest, and the lowest ones together at
least 1 token in 125. A debt is paid with the next ticket, whatever its size; what was paid beyond it is earned back
first, as in the deficit round robin of Shreedhar and Varghese (SIGCOMM 1995).
"""

RATIO = 4
RANKS = 4


class PriorityShares:
    """The tokens owed to each rank and those below it. Ranks count the levels in use, the highest is 0."""

    def __init__(self) -> None:
        self._owed = [0.0] * RANKS

    @staticmethod
    def ranks(levels: int) -> int:
        """How many ranks there are with `levels` in use."""
        return min(levels, RANKS)

    def turn(self, levels: int) -> int:
        """The rank whose turn it is."""
        rank = 0
        while rank + 1 < self.ranks(levels) and self._owed[rank + 1] > 0:
            rank += 1
        return rank

    def started(self, rank: int, levels: int, tokens: int) -> None:
        """`tokens` of this rank have started, in turn or not."""
        for paid in range(1, rank + 1):
            self._owed[paid] -= tokens
        if rank + 1 < self.ranks(levels):
            self._owed[rank + 1] += tokens / RATIO

    def owed(self, rank: int) -> float:
        """Tokens that this rank and those below may start before those above them; below 0: they are ahead."""
        return self._owed[rank]
