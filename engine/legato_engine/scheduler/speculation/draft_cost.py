"""The time of steps with drafts relative to steps without, and the number of drafts that pays. Pure.

A step of more tokens takes hardly longer while it is bound by reading the weights, and as much longer as it has more
tokens where it is bound by computing. No formula says which: steps are measured, by the number of their sequences and
drafts.
"""

from collections.abc import Sequence
from itertools import accumulate
from math import inf

from legato_engine.scheduler.speculation.drafter import Draft

LEARNED = 1 / 8  # weight of a new step relative to all earlier ones of its kind
FORGET = 1 / 256  # of the additional time of drafts, whenever none pays: it is measured again some time
WORTH = 1.02  # tokens in the same time; with less, drafts do not pay
EXACT = 8  # numbers of drafts that are measured one by one; of more, four kinds for each power of two


class DraftCost:
    """`gain` is the mean number of tokens of a sequence in the time of a step without drafts, over recent steps."""

    def __init__(self) -> None:
        self._times: dict[int, dict[int, float]] = {}  # by power of two of the rows, then by kind of their drafts
        self.gain = 1.0

    def times(self, rows: int, drafts: int) -> float:
        """The duration of a step with `drafts`, as a multiple of one without.

        It never falls with more drafts. Numbers of drafts that were never tried are taken for as fast as smaller ones.
        """
        if not drafts:
            return 1.0
        measured, own = self._times.get(rows.bit_length(), {}), _kind(drafts)
        most = min([times for kind, times in measured.items() if kind >= own], default=inf)
        if own not in measured:
            most = min(most, max([times for kind, times in measured.items() if kind < own], default=1.0))
        return max(1.0, most)

    def measure(self, rows: int, drafts: int, times: float, tokens: int, drafting: float = 0.0) -> None:
        """Adds a step that took `times` as long as a step without drafts, and in which sequences got `tokens` in total.

        Before it, a draft model computed for `drafting` times as long.
        """
        if drafts:
            of_rows, kind = self._times.setdefault(rows.bit_length(), {}), _kind(drafts)
            before = of_rows.get(kind, times)
            of_rows[kind] = 1 / (1 / before + (1 / times - 1 / before) * LEARNED)  # a rare slow step hardly counts
        whole = (times if drafts else 1.0) + drafting
        self.gain += ((tokens if drafts else rows) / rows / whole - self.gain) * LEARNED

    def choose(self, drafts: Sequence[Draft], most: int, drafting: float = 0.0) -> list[int]:
        """The number of tokens to verify of each sequence's draft, at most `most` in all.

        `drafting` is the time that a further draft of all sequences takes, if they are not drafted yet: as a multiple
        of a step without drafts.
        """
        rows, counts = len(drafts), [0] * len(drafts)
        ranked = _ranked(drafts)[:most]
        gains = accumulate(chance for chance, _, _ in ranked)
        depths = accumulate((1 - place for _, place, _ in ranked), max)
        values = [
            (rows + gained) / (self.times(rows, count) + drafting * depth)
            for count, (gained, depth) in enumerate(zip(gains, depths, strict=True), 1)
        ]
        if not values:
            return counts
        if max(values) < rows * WORTH:
            self._forget(rows)
            return counts
        for _, _, row in ranked[: 1 + values.index(max(values))]:
            counts[-row] += 1
        return counts

    def worth(self, drafts: Sequence[Draft], counts: Sequence[int], drafting: float) -> float:
        """The expected tokens of a sequence in the time of a step without drafts, with `counts` and `drafting` as in
        `choose`."""
        rows = len(drafts)
        right = sum(sum(draft.chances[:count]) for draft, count in zip(drafts, counts, strict=True))
        return (rows + right) / rows / (self.times(rows, sum(counts)) + drafting * max(counts))

    def _forget(self, rows: int) -> None:
        of_rows = self._times.get(rows.bit_length(), {})
        for kind, times in of_rows.items():
            of_rows[kind] = times - (times - 1) * FORGET


def _kind(drafts: int) -> int:
    """Numbers the kinds of steps by their drafts, ascending."""
    if drafts <= EXACT:
        return drafts
    power = drafts.bit_length()
    return 4 * power + (drafts >> (power - 3) & 3)


def _ranked(drafts: Sequence[Draft]) -> list[tuple[float, int, int]]:
    """Chance, negated place and negated row of each drafted token, in the order in which they are worth a check."""
    each = [(chance, -place, -row) for row, draft in enumerate(drafts) for place, chance in enumerate(draft.chances)]
    return sorted(each, reverse=True)
