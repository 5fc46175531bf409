"""A model that drafts tokens for sequences of another one."""

from collections.abc import Sequence

from msgspec.structs import replace

from legato_engine.kvcache.window_table import WindowTable
from legato_engine.runner.runner import Runner
from legato_engine.scheduler.batch import Batch, DraftRow, Draw, Row, Sampled, Scored, StepOutput
from legato_engine.scheduler.planning.draws import draw_after
from legato_engine.scheduler.speculation.model_drafter import DraftLimits


class DraftModel:
    """`runner` has an arena with a block for each of the model's, or one for each of its groups of layers. It drafts
    only the first `vocab_size` tokens, which the model has, and computes only the first `own_vocab_size`."""

    def __init__(self, runner: Runner, vocab_size: int, own_vocab_size: int) -> None:
        self.runner = runner
        self.limits = DraftLimits(own_vocab_size, runner.max_length)
        self._vocab_size = vocab_size
        self._groups = 1 + len(runner.layout.windows)

    def draft(self, rows: Sequence[DraftRow]) -> StepOutput:
        """Computes the tokens of all rows in one batch, then drafts one token of each in a batch, and so on.

        A row gets fewer tokens than it asks for if one of them ends the sequence, or none can be drafted.
        """
        firsts = [replace(row.draw, params=replace(row.draw.params, logprobs=0)) for row in rows]
        made = [list[Sampled]() for _ in rows]
        drafting = [index for index, row in enumerate(rows) if row.count]
        batch = [self._row(row, row.tokens, row.start, firsts[i] if row.count else None) for i, row in enumerate(rows)]
        output = self._compute(batch)
        sampled = [output[index][0] for index in drafting]
        while drafting := self._keep(rows, made, drafting, sampled):
            batch = [self._next(rows[index], made[index], firsts[index]) for index in drafting]
            sampled = [drawn[0] for drawn in self._compute(batch)]
        return tuple([tuple(drafts) for drafts in made])

    def _keep(
        self, rows: Sequence[DraftRow], made: list[list[Sampled]], drafting: list[int], sampled: Sequence[Sampled]
    ) -> list[int]:
        """Adds a draft to each row in `drafting`; returns the rows that need more."""
        going = []
        for index, one in zip(drafting, sampled, strict=True):
            if one.fault or one.token >= self._vocab_size:
                continue
            made[index].append(one)
            if len(made[index]) < rows[index].count and one.token not in rows[index].draw.params.stop_token_ids:
                going.append(index)
        return going

    def _next(self, row: DraftRow, made: Sequence[Sampled], first: Draw) -> Row:
        """The row that computes the last draft."""
        drafts = [one.token for one in made]
        return self._row(row, drafts[-1:], row.start + len(row.tokens) + len(drafts) - 1, draw_after(first, drafts))

    def _row(self, row: DraftRow, tokens: Sequence[int], start: int, draw: Draw | None) -> Row:
        first, *windows = ([block * self._groups + group for block in row.blocks] for group in range(self._groups))
        tables = tuple([WindowTable(0, blocks) for blocks in windows])
        return Row(tokens, start, first, () if draw is None else (draw,), windows=tables)

    def _compute(self, rows: Sequence[Row]) -> Sequence[tuple[Sampled, ...]]:
        output = self.runner.step(Batch(tuple(rows)))
        return [drawn for drawn in output if not isinstance(drawn, Scored)]
