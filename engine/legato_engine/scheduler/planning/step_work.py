"""The content of a step, in the numbers that its duration follows from."""

from typing import NamedTuple

from legato_engine.scheduler.batch import Batch
from legato_engine.scheduler.planning.chunk_budget import pairs


class StepWork(NamedTuple):
    """Decode rows, their context tokens and drafts; prompt tokens, and pairs of one and a token that it attends to."""

    rows: int
    context: int
    drafts: int
    tokens: int
    pairs: float


def work_of(batch: Batch) -> StepWork:
    """Rows that decode count as such; all others are prompts."""
    rows, context, drafts, tokens, attended = 0, 0, 0, 0, 0.0
    for row in batch.rows:
        if len(row.tokens) == 1 + row.drafts and row.draws:  # decodes, without a call for each row
            rows += 1
            context += row.start
            drafts += row.drafts
        else:
            tokens += len(row.tokens)
            attended += pairs(len(row.tokens), row.start)
    return StepWork(rows, context, drafts, tokens, attended)


def scored_in(batch: Batch) -> int:
    """Number of prompt tokens whose logprobs are requested."""
    return sum([len(row.targets.tokens) for row in batch.rows if row.targets is not None])
