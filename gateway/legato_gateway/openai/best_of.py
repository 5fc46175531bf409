"""OpenAI's `best_of`: more answers are made than are told, and the likeliest of them are told."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from legato_gateway.errors import BadRequest
from legato_gateway.openai.schemas import CompletionBody
from legato_gateway.serving.writer import CollectedChoice


@dataclass(frozen=True, slots=True)
class BestOf:
    """Of the `made` answers of each prompt, `told` are told."""

    made: int
    told: int

    @property
    def ranks(self) -> bool:
        """Whether answers have to be compared, by their tokens' log probabilities."""
        return self.made > self.told

    def chosen(self, answers: Sequence[CollectedChoice]) -> list[CollectedChoice]:
        """Those that are told, in a new numbering: of each prompt the best first, and of equals the one made first.

        The mean counts the token that ends an answer, too. It tells nothing of an answer without any, which comes last.
        """
        found: list[CollectedChoice] = []
        for start in range(0, len(answers), self.made):
            best = sorted(answers[start : start + self.made], key=_mean_logprob, reverse=True)
            found += best[: self.told]
        return [replace(answer, index=index) for index, answer in enumerate(found)]


def of(body: CompletionBody) -> BestOf:
    """Raises BadRequest for fewer answers than are asked for, and for a stream: the best are known at the end."""
    told = body.n or 1
    made = told if body.best_of is None else body.best_of
    if made < told:
        raise BadRequest(f"best_of is {made}, less than n = {told}", param="best_of")
    if made > told and body.stream:
        raise BadRequest(f"best_of is {made}, more than n = {told}: this cannot be streamed", param="best_of")
    return BestOf(made, told)


def _mean_logprob(answer: CollectedChoice) -> float:
    found = [token.logprobs.logprob for token in answer.tokens if token.logprobs is not None]
    return math.fsum(found) / len(found) if found else -math.inf
