"""Applies sampled tokens to their request: it grows, forks, finishes or becomes ready for its hand-off."""

from collections.abc import Mapping, Sequence

from legato_engine.scheduler.batch import Row, Sampled, Scored
from legato_engine.scheduler.queueing.output_lengths import OutputLengthEstimator
from legato_engine.scheduler.requests.block_tables import BlockTables
from legato_engine.scheduler.requests.limits import SchedulerLimits
from legato_engine.scheduler.requests.request import RUNNING, Request
from legato_engine.scheduler.requests.request_registry import RequestRegistry
from legato_engine.scheduler.results import Emission, ScoredTokens, StepResult


class OutputProcessor:
    def __init__(
        self, limits: SchedulerLimits, registry: RequestRegistry, tables: BlockTables, lengths: OutputLengthEstimator
    ) -> None:
        self._limits = limits
        self._registry = registry
        self._tables = tables
        self._lengths = lengths

    def process_row(self, request: Request, row: Row, output: Sequence[Sampled] | Scored, result: StepResult) -> None:
        """Processes the output of one row of a step. Ended requests are ignored."""
        if request.state is not RUNNING:
            return
        if isinstance(output, Scored):
            if output.fault:
                self._end_faulted(request, output.fault, result)
                return
            self._score(request, output, result)
            sampled: Sequence[Sampled] = output.sampled
        else:
            sampled = output
        if row.drafts:
            sampled = _verified(row, sampled)
            result.accepted += len(sampled) - 1
        for one in sampled:
            if one.fault:
                self._end_faulted(request, one.fault, result)
                return
        request.computed += len(sampled) if row.drafts else len(row.tokens)
        if request.computed > request.farthest:
            request.farthest = request.computed
            request.preemptions = 0
        full = request.computed >= (request.stored + 1) * self._limits.block_size
        if full and self._tables.store(request) and (request.sending or request.room is not None):
            result.advanced.append(request)
        if request.room is not None:
            self._process_prefill(request, sampled, result)
        elif row.drafts or len(sampled) == 1:
            result.emissions.append(self._append(request, sampled))
        elif sampled:
            result.emissions += self.append_tokens(
                request, {c: (s,) for c, s in zip(request.choices, sampled, strict=True)}
            )

    def append_tokens(self, request: Request, sampled: Mapping[int, Sequence[Sampled]]) -> list[Emission]:
        """Appends the tokens of each choice; several choices fork."""
        if not any(sampled.get(choice) for choice in request.choices):
            self._tables.store(request)
            return []
        return [self._append(branch, sampled[branch.choice]) for branch in self._fork(request)]

    def _score(self, request: Request, output: Scored, result: StepResult) -> None:
        """Adds prompt logprobs without those that were reported before the request was preempted."""
        start = request.computed + 1
        reported = request.scored - start
        if reported < len(output.logprobs):
            result.scored.append(ScoredTokens(request, request.scored, output.logprobs.after(reported)))
            request.scored = start + len(output.logprobs)

    def _end_faulted(self, request: Request, fault: str, result: StepResult) -> None:
        """Ends a request for which no token could be sampled. Its KV may be the reason, so it leaves the cache."""
        self._tables.pool.forget(request.blocks)
        self._registry.end(request)
        result.faulted.append((request, fault))

    def _process_prefill(self, request: Request, sampled: Sequence[Sampled], result: StepResult) -> None:
        if sampled:
            request.first = dict(zip(request.choices, sampled, strict=True))
        if not request.remaining:
            self._registry.finish_prefill(request)
            result.prefilled.append(request)

    def _append(self, request: Request, sampled: Sequence[Sampled]) -> Emission:
        index, finish = request.outputs, None
        for one in sampled:
            request.tokens.append(one.token)
            finish = self._limits.finish(request)
            if finish is not None:
                sampled = sampled[: request.outputs - index]
                request.computed = min(request.computed, len(request.tokens))
                break
        if request.computed > request.prompt_len + index:  # a hand-off or drafts brought the KV of these tokens, too
            self._tables.store(request)
        if finish is not None:
            request.finish = finish
            self._lengths.add_ended(request)
            self._registry.end(request)
        return Emission(request, request.choices[0], index, tuple(sampled), finish)

    def _fork(self, request: Request) -> list[Request]:
        """Returns one request per choice on the same blocks; `request` itself is the first choice's."""
        self._tables.store(request)
        first, *others = request.choices
        request.choices = (first,)
        branches = [request]
        for choice in others:
            branch = self._tables.share(request, choice)
            branch.number = request.number
            partial = branch.computed % self._tables.block_size > 0
            branch.borrowed_blocks = len(branch.blocks) - partial  # windows soon have others
            self._registry.run(branch)
            branches.append(branch)
        return branches


def _verified(row: Row, sampled: Sequence[Sampled]) -> Sequence[Sampled]:
    """The tokens that follow right ones only: up to the first that is not its draft. A fault after it is not theirs."""
    count = 1
    while count <= row.drafts and sampled[count - 1].token == row.tokens[count]:
        if sampled[count - 1].fault or sampled[count].fault:
            break
        count += 1
    return sampled[:count]
