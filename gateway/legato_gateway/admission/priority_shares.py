"""Shares of service between priority levels. Pure: part of `admission`.

For every `RATIO` tokens that start at one level, one is owed to all levels below it together, which share it in the
same way. Only `RANKS` levels in use are distinguished: the last rank is all lower levels. So the highest level gets
four fifths while others wait, the next one four fifths of the rest, and the lowest together at least 1 token in 125. A
debt is paid with the next ticket, whatever its size, and an excess payment is earned back first, as in the deficit
round robin of Shreedhar and Varghese (SIGCOMM 1995).
"""

RATIO = 4
RANKS = 4


class PriorityShares:
    """The tokens owed to each rank and those below it. Ranks number the levels in use; the highest is 0."""

    def __init__(self) -> None:
        self._owed = [0.0] * RANKS

    @staticmethod
    def ranks(levels: int) -> int:
        """Returns the number of ranks with `levels` in use."""
        return min(levels, RANKS)

    def due_rank(self, levels: int) -> int:
        """Returns the rank to serve next."""
        rank = 0
        while rank + 1 < self.ranks(levels) and self._owed[rank + 1] > 0:
            rank += 1
        return rank

    def started(self, rank: int, levels: int, tokens: int) -> None:
        """Records that `tokens` of this rank have started, due or not."""
        for paid in range(1, rank + 1):
            self._owed[paid] -= tokens
        if rank + 1 < self.ranks(levels):
            self._owed[rank + 1] += tokens / RATIO

    def owed(self, rank: int) -> float:
        """Returns the tokens that this rank and those below may start before those above; negative: they are ahead."""
        return self._owed[rank]
