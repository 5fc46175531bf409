"""Adds drafts to a planned step, and measures whether they pay."""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from legato_engine.scheduler.batch import Batch, DraftRow, Row, StepOutput
from legato_engine.scheduler.planning.draws import draw_after, draw_next
from legato_engine.scheduler.planning.step_cost import StepCost
from legato_engine.scheduler.planning.step_work import StepWork
from legato_engine.scheduler.queueing.output_lengths import OutputLengthEstimator
from legato_engine.scheduler.requests.block_tables import BlockTables
from legato_engine.scheduler.requests.limits import SchedulerLimits
from legato_engine.scheduler.requests.request import Request
from legato_engine.scheduler.speculation.draft_cost import LEARNED, DraftCost
from legato_engine.scheduler.speculation.draft_steps import DraftSteps, most_drafts
from legato_engine.scheduler.speculation.drafter import NO_DRAFT, Draft, Drafter
from legato_engine.scheduler.speculation.model_drafter import ModelDrafter
from legato_protocol.wire.load import DecodeCoefficients

FIRST = 4  # steps without drafts before the first step with drafts: they show how long plain steps take
COMPARED = 32  # steps with drafts after which one is plain, for the same reason


class Speculation:
    """Drafts for steps that only decode: a prompt would wait for a longer step. Without a `drafter` it does nothing."""

    def __init__(
        self,
        limits: SchedulerLimits,
        tables: BlockTables,
        plain: StepCost,
        lengths: OutputLengthEstimator,
        drafter: Drafter | None = None,
    ) -> None:
        """`plain` is the cost of steps without drafts."""
        self._limits = limits
        self._tables = tables
        self._plain = plain
        self._drafter = drafter
        self._cost = DraftCost()
        self._model = None
        if isinstance(drafter, ModelDrafter):
            self._model = DraftSteps(limits, tables, lengths, self._cost, drafter)
        self._slower = 1.0  # recent steps without drafts, relative to `plain`, which follows slowly
        self._due = FIRST  # steps without drafts
        self._since_plain = 0  # steps with drafts
        self._drafted = False  # the last step was one of the draft model, and took `_drafting` seconds
        self._drafting = 0.0

    # ── plan ──

    def begin(self, running: Iterable[Request]) -> tuple[list[DraftRow], list[Request]]:
        """Plans a step of the draft model, if the next step would have its drafts, and they should pay."""
        if self._model is None or self._due or self._drafted:
            return [], []
        requests = [request for request in running if request.schedulable]
        return self._model.plan(requests, self._seconds_of(requests))

    def extend(self, rows: list[Row], requests: Sequence[Request]) -> None:
        """Adds drafts to rows of a planned step, if they pay. Takes only blocks that are free or cached."""
        if self._drafter is None or not all(row.decodes for row in rows):
            return
        drafts = [self._propose(self._drafter, request) for request in requests]
        for place, count in enumerate(self._chosen(drafts)):
            if count:
                rows[place] = self._extended(rows[place], requests[place], drafts[place].tokens[:count])

    def waits(self, batch: Batch, running: Iterable[Request]) -> bool:
        """True if the step after `batch`, which is in flight, should be planned only when its tokens are known.

        The length of a sequence with drafts in flight is not known; and drafts can follow only known tokens, so where
        they would pay now, they will probably do so after the next token.
        """
        if self._drafter is None:
            return False
        if batch.drafting or any(row.drafts for row in batch.rows):
            return True
        requests = [request for request in running if request.schedulable]
        if self._model is not None:
            return not self._due and self._model.wants(requests, self._seconds_of(requests))
        return any(self._chosen([self._propose(self._drafter, request) for request in requests]))

    def _chosen(self, drafts: Sequence[Draft]) -> list[int]:
        if not drafts or self._due:
            return [0] * len(drafts)
        return self._cost.choose(drafts, self._limits.most_sampled - len(drafts))

    def _propose(self, drafter: Drafter, request: Request) -> Draft:
        most = most_drafts(request, self._limits, self._tables)
        draft = drafter.propose(request, most)
        if request.grammar is None or not draft.tokens:
            return draft
        allowed = request.grammar.accepted(request.tokens[request.prompt_len :], draft.tokens)
        return Draft(draft.tokens[:allowed], draft.chances[:allowed]) if allowed else NO_DRAFT

    def _extended(self, row: Row, request: Request, drafts: Sequence[int]) -> Row:
        if self._tables.grow(request, len(request.tokens) + len(drafts)):
            return row
        first = draw_next(request)
        draws = tuple([draw_after(first, drafts[:count]) for count in range(len(drafts) + 1)])
        tokens = [*row.tokens, *drafts]
        return replace(row, tokens=tokens, draws=draws, drafts=len(drafts), windows=request.windows)

    def _seconds_of(self, requests: Sequence[Request]) -> float:
        """Seconds of a step that decodes these requests without drafts."""
        return self._plain.plain(len(requests), sum([request.computed for request in requests])) * self._slower

    # ── measure ──

    def take(self, batch: Batch, requests: Sequence[Request], output: StepOutput, seconds: float) -> None:
        """Takes the drafts of a step of the draft model that took `seconds`."""
        assert self._model is not None
        self._model.take(batch.drafting, requests, output, seconds)
        self._drafted, self._drafting = True, seconds

    def take_time(self) -> float:
        """Seconds of the draft model's step before the one that is processed now; 0 if there was none."""
        seconds, self._drafted, self._drafting = self._drafting, False, 0.0
        return seconds

    def measure(self, work: StepWork, tokens: int, seconds: float, drafting: float) -> None:
        """Adds a step without prompts that took `seconds`, and in which sequences got `tokens`.

        Before it, the draft model computed for `drafting` seconds.
        """
        if self._drafter is None:  # fitting the cost takes a tenth of a millisecond
            return
        self._count(work.drafts)
        plain = self._plain.plain(work.rows, work.context) * self._slower
        if plain <= 0 or seconds <= 0 or not work.rows:
            return
        times = seconds / plain
        if not work.drafts:
            self._slower *= 1 + (min(times, 2.0) - 1) * LEARNED
        self._cost.measure(work.rows, work.drafts, times, tokens, drafting / plain)

    def _count(self, drafts: int) -> None:
        self._since_plain = self._since_plain + 1 if drafts else 0
        self._due = max(0, self._due - (not drafts)) or self._since_plain // COMPARED

    def times(self, work: StepWork) -> float:
        """The duration of this step as a multiple of one without drafts."""
        return self._cost.times(work.rows, work.drafts) if work.drafts else 1.0

    def per_token(self, cost: DecodeCoefficients | None) -> DecodeCoefficients | None:
        """The cost of steps without drafts as a cost for each token of a sequence."""
        if cost is None or self._cost.gain == 1:
            return cost
        gain = self._cost.gain
        return replace(
            cost,
            per_step=cost.per_step / gain,
            per_row=cost.per_row / gain,
            per_context=cost.per_context / gain,
        )
