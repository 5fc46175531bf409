"""The time of a draft model: of a pass, which drafts a token of each sequence, and of tokens that it has to read first.

Times of passes are multiples of the model's plain steps with as many sequences, as in `draft_cost`.
"""

from legato_engine.scheduler.speculation.draft_cost import FORGET as FORGET_DRAFTS
from legato_engine.scheduler.speculation.draft_cost import LEARNED

FORGET = FORGET_DRAFTS / 16  # factor of the time of passes, which hardly changes, whenever no draft pays
FEW = 8  # tokens of a sequence that a pass reads at most in about the time of one


class PassCost:
    """`per_token` is the time of a token that is only read, in seconds; 0 before one was measured."""

    def __init__(self) -> None:
        self._passes: dict[int, float] = {}  # by power of two of the sequences
        self.per_token = 0.0

    def per_pass(self, rows: int) -> float:
        """The duration of a pass for `rows` sequences: the longest that was measured for as many or fewer, or 0."""
        kind = rows.bit_length()
        return max((times for tried, times in self._passes.items() if tried <= kind), default=0.0)

    def measure(self, rows: int, passes: int, tokens: int, seconds: float, plain: float) -> None:
        """Adds a step of `seconds`: `passes` for `rows` sequences, of which the first read `tokens` in all.

        A plain step of the model takes `plain` seconds.
        """
        if plain <= 0 or seconds <= 0:
            return
        kind = rows.bit_length()
        if tokens > FEW * rows:
            each = max(0.0, seconds - passes * self.per_pass(rows) * plain) / tokens
            self.per_token += (each - self.per_token) * (LEARNED if self.per_token else 1.0)
        elif passes:
            times = seconds / passes / plain
            before = self._passes.get(kind, times)
            self._passes[kind] = 1 / (1 / before + (1 / times - 1 / before) * LEARNED)  # as in `DraftCost`

    def forget(self, rows: int) -> None:
        """No draft pays: after a while, passes are tried again."""
        for kind in self._passes:
            if kind <= rows.bit_length():
                self._passes[kind] *= 1 - FORGET
