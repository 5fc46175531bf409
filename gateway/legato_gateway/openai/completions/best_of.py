"""OpenAI's `best_of`: makes more answers than requested, and sends the likeliest of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from legato_gateway.errors import BadRequest
from legato_gateway.openai.schemas import CompletionBody
from legato_gateway.serving.prepared_request import CollectedChoice


@dataclass(frozen=True, slots=True)
class BestOf:
    """Numbers of answers per prompt: `made` by workers, and `sent` to the client."""

    made: int
    sent: int

    @property
    def ranks(self) -> bool:
        """True if answers must be compared, by their tokens' log probabilities."""
        return self.made > self.sent

    def chosen(self, answers: Sequence[CollectedChoice]) -> list[CollectedChoice]:
        """Returns the answers to send, numbered again: by prompt, the best first, and among equals the first made.

        The mean includes the token that ends an answer. An answer without any token comes last.
        """
        ranked: list[CollectedChoice] = []
        for start in range(0, len(answers), self.made):
            best = sorted(answers[start : start + self.made], key=_mean_logprob, reverse=True)
            ranked += best[: self.sent]
        return [replace(answer, index=index) for index, answer in enumerate(ranked)]


def parse(body: CompletionBody) -> BestOf:
    """Raises BadRequest for fewer answers than requested, and for streams: the best are known at the end."""
    sent = body.n or 1
    made = sent if body.best_of is None else body.best_of
    if made < sent:
        raise BadRequest(f"best_of is {made}, less than n = {sent}", param="best_of")
    if made > sent and body.stream:
        raise BadRequest(f"best_of is {made}, more than n = {sent}: this cannot be streamed", param="best_of")
    return BestOf(made, sent)


def _mean_logprob(answer: CollectedChoice) -> float:
    logprobs = [token.logprobs.logprob for token in answer.tokens if token.logprobs is not None]
    return math.fsum(logprobs) / len(logprobs) if logprobs else -math.inf
