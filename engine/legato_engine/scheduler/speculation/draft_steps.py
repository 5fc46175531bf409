"""Plans steps of a draft model: their sequences, the number of drafts of each, and the tokens that it reads before."""

from collections.abc import Sequence

from legato_engine.scheduler.batch import DraftRow, Scored, StepOutput
from legato_engine.scheduler.queueing.output_lengths import OutputLengthEstimator
from legato_engine.scheduler.requests.block_tables import BlockTables
from legato_engine.scheduler.requests.limits import SchedulerLimits
from legato_engine.scheduler.requests.request import Request
from legato_engine.scheduler.speculation.draft_cost import DraftCost
from legato_engine.scheduler.speculation.drafter import NO_DRAFT, Draft
from legato_engine.scheduler.speculation.model_drafter import ModelDrafter

FIRST_READ = 256  # tokens that the draft model reads in one step until it is known how long that takes
LONGEST_READ = 1.0  # duration of a read, relative to a plain step of the model: other sequences wait meanwhile


class DraftSteps:
    def __init__(
        self,
        limits: SchedulerLimits,
        tables: BlockTables,
        lengths: OutputLengthEstimator,
        cost: DraftCost,
        drafter: ModelDrafter,
    ) -> None:
        self._limits = limits
        self._tables = tables
        self._lengths = lengths
        self._cost = cost
        self._drafter = drafter
        self._plain = 0.0  # seconds of the step in flight, if it were a plain one of the model

    def plan(self, requests: Sequence[Request], plain: float) -> tuple[list[DraftRow], list[Request]]:
        """Returns the rows of a step and their requests, of `requests` that the next step decodes.

        A plain step for them takes `plain` seconds.
        """
        self._plain = plain
        rows, planned, written = list[DraftRow](), list[Request](), set[int]()
        room = self._room(plain)
        wanted = sorted(self._wanted(requests, plain), key=lambda each: each[1])  # those that can draft now
        for request, missing, count in wanted:
            tokens = min(missing, 1 + room)
            if self._tables.grow(request, len(request.tokens) + count):
                continue
            row = self._drafter.row(request, missing, tokens, count)
            if row is None or not written.isdisjoint(self._drafter.written(row)):  # another one reads the same text
                continue
            room -= tokens - 1
            written |= self._drafter.written(row)
            rows.append(row)
            planned.append(request)
        return rows, planned

    def wants(self, requests: Sequence[Request], plain: float) -> bool:
        """True if a step for `requests` should be planned now."""
        return bool(self._wanted(requests, plain))

    def take(self, rows: Sequence[DraftRow], requests: Sequence[Request], output: StepOutput, seconds: float) -> None:
        """Takes the drafts of a step that took `seconds`."""
        passes = 0
        for request, row, drafted in zip(requests, rows, output, strict=True):
            assert not isinstance(drafted, Scored)
            self._drafter.take(request, row, drafted)
            passes = max(passes, len(drafted))
        tokens = sum([len(row.tokens) for row in rows])
        self._drafter.cost.measure(len(rows), passes, tokens, seconds, self._plain)

    def _wanted(self, requests: Sequence[Request], plain: float) -> list[tuple[Request, int, int]]:
        """Requests to draft for, the tokens that the draft model has to read before, and those to draft.

        None if one of them does not decode: a prompt would wait.
        """
        if not requests or not all(request.remaining == 1 for request in requests):
            return []
        drafts = [self._expect(request) for request in requests]
        per_pass = self._drafter.cost.per_pass(len(requests))
        counts = self._cost.choose(drafts, self._limits.most_sampled - len(drafts), per_pass)
        if not any(counts):
            self._drafter.cost.forget(len(requests))
        for request, count in zip(requests, counts, strict=True):
            if not count:
                self._drafter.skip(request)
        chosen = [(request, count) for request, count in zip(requests, counts, strict=True) if count]
        if not chosen:
            return []
        saved = plain * (1 - 1 / self._cost.worth(drafts, counts, per_pass)) / len(chosen)  # for each token of each
        read = [(request, self._drafter.missing(request), count) for request, count in chosen]
        return [each for each in read if self._drafter.cost.per_token * each[1] <= saved * self._left(each[0])]

    def _expect(self, request: Request) -> Draft:
        if not self._tables.is_exclusive(request):
            return NO_DRAFT
        return self._drafter.expect(request, most_drafts(request, self._limits, self._tables))

    def _left(self, request: Request) -> int:
        """Expected further tokens of the sequence."""
        known, longest = len(request.tokens), self._limits.longest(request)
        usual = self._lengths.usual(request)
        if usual is not None:
            longest = min(longest, request.prompt_len + max(usual, request.outputs + usual // 2))
        return longest - known

    def _room(self, plain: float) -> int:
        """Tokens in addition to the last one of each sequence that the next step reads at most."""
        per_token, most = self._drafter.cost.per_token, self._limits.chunk_tokens
        return min(most, int(LONGEST_READ * plain / per_token) + 1 if per_token else FIRST_READ)


def most_drafts(request: Request, limits: SchedulerLimits, tables: BlockTables) -> int:
    """Tokens of a sequence that may be drafted: within its length, and without taking blocks from others."""
    if len(request.choices) > 1 or request.room is not None:
        return 0
    known = len(request.tokens)
    most = min(limits.drafts, limits.longest(request) - known - 1)
    if request.writable < known + most and tables.pool.available <= limits.max_running:
        most = min(most, request.writable - known)
    return most
