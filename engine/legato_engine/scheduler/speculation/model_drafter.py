"""Draft: a small model drafts tokens (Leviathan, Kalman, Matias: Fast Inference from Transformers via Speculative
Decoding, 2023), with the random numbers, penalties and grammar of the sequence that it drafts for.

Its steps are planned here, one before each step that verifies drafts. It reads a sequence only once drafts are wanted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, repeat
from math import exp
from operator import mul
from weakref import WeakKeyDictionary

from legato_engine.kvcache.block_pool import BlockPool
from legato_engine.scheduler.batch import DraftRow, Sampled
from legato_engine.scheduler.planning.draws import draw_next
from legato_engine.scheduler.requests.request import Request
from legato_engine.scheduler.speculation.draft_cost import FORGET, LEARNED
from legato_engine.scheduler.speculation.draft_kv import DraftKV
from legato_engine.scheduler.speculation.drafter import NO_DRAFT, Draft
from legato_engine.scheduler.speculation.pass_cost import PassCost

EXPECTED = 0.9  # chance that a draft is right, before any was verified: high, so that a draft model is tried
# Chances of drafts by the draft model's own probability of the token, before any was verified.
CHANCES: Mapping[float, float] = {0.3: 0.3, 0.5: 0.45, 0.7: 0.6, 0.9: 0.8, 1.0: 0.95}


@dataclass(frozen=True, slots=True)
class DraftLimits:
    """A draft model's number of logits, and the longest sequence that it computes."""

    vocab_size: int
    max_length: int


@dataclass(slots=True)
class _Drafted:
    """The last draft of a sequence: `probabilities` of its `tokens` by the draft model, after `known` ones."""

    right: float  # chance that a draft is right after right ones: a mean of recent ones
    unknown: bool = False  # the draft model lacks one of the tokens
    known: int = 0
    blocks: Sequence[int] = ()
    tokens: tuple[int, ...] = ()
    probabilities: tuple[float, ...] = ()


class ModelDrafter:
    """Implements `Drafter` by drafts of earlier steps of the draft model."""

    def __init__(self, pool: BlockPool, block_size: int, limits: DraftLimits) -> None:
        self.cost = PassCost()
        self._kv = DraftKV(pool, block_size)
        self._limits = limits
        self._block_size = block_size
        self._sequences: WeakKeyDictionary[Request, _Drafted] = WeakKeyDictionary()
        self._chances = list(CHANCES.values())
        self._right = EXPECTED  # as `_Drafted.right`, of all sequences: a new one begins with it

    def propose(self, request: Request, most: int) -> Draft:
        """The part of the last draft that follows all known tokens; most often it was made just before."""
        drafted = self._sequences.get(request)
        if drafted is None or drafted.known != len(request.tokens) or most <= 0:
            return NO_DRAFT
        each = [self._chances[_level(probability)] for probability in drafted.probabilities[:most]]
        return Draft(drafted.tokens[:most], list(accumulate(each, mul)))

    def expect(self, request: Request, most: int) -> Draft:
        """A draft of `most` tokens, with the chances of recent drafts of the sequence."""
        known = len(request.tokens)
        if most <= 0 or known + most > self._limits.max_length:
            return NO_DRAFT
        drafted = self._follow(request)
        if drafted.unknown:
            return NO_DRAFT
        return Draft((0,) * most, list(accumulate(repeat(drafted.right, most), mul)))

    def skip(self, request: Request) -> None:
        """No draft of the sequence pays: moves its chance towards EXPECTED, so that it is tried again later."""
        self._right += (EXPECTED - self._right) * FORGET
        if (drafted := self._sequences.get(request)) is not None:
            drafted.right += (EXPECTED - drafted.right) * FORGET

    def missing(self, request: Request) -> int:
        """Known tokens that the draft model has to read before it drafts, at least the last one."""
        known = len(request.tokens)
        return known - min(self._kv.ready(request.blocks), known - 1)

    def row(self, request: Request, missing: int, tokens: int, count: int) -> DraftRow | None:
        """The row that reads the first `tokens` of the `missing` ones and, if these are all, drafts `count`.

        None for tokens that the draft model does not have."""
        start = len(request.tokens) - missing
        read = request.tokens[start : start + tokens]
        if max(read) >= self._limits.vocab_size:
            self._sequences[request].unknown = True
            return None
        return DraftRow(read, start, request.blocks, count if tokens == missing else 0, draw_next(request))

    def written(self, row: DraftRow) -> set[int]:
        """The blocks that a row writes to."""
        size = self._block_size
        return set(row.blocks[row.start // size : -(-(row.start + len(row.tokens)) // size)])

    def take(self, request: Request, row: DraftRow, sampled: Sequence[Sampled]) -> None:
        """Takes the draft of a computed row; ignored if the request has ended."""
        known = row.start + len(row.tokens)
        self._kv.fill(row.blocks, row.start, known)
        if row.count and request.blocks is row.blocks:
            drafted = self._sequences[request]
            drafted.known, drafted.blocks, drafted.tokens = known, row.blocks, tuple([one.token for one in sampled])
            drafted.probabilities = tuple([exp(one.logprobs.logprob) for one in sampled if one.logprobs is not None])

    def _follow(self, request: Request) -> _Drafted:
        """Learns from the tokens that came where the last draft was, verified or not."""
        drafted = self._sequences.get(request)
        if drafted is None:
            drafted = self._sequences[request] = _Drafted(self._right)
        if not drafted.tokens or len(request.tokens) == drafted.known:
            return drafted
        right = 0
        actual = request.tokens[drafted.known : drafted.known + len(drafted.tokens)]
        for token, drafted_token, probability in zip(actual, drafted.tokens, drafted.probabilities, strict=False):
            level, equal = _level(probability), token == drafted_token
            self._chances[level] += (equal - self._chances[level]) * LEARNED
            drafted.right += (equal - drafted.right) * LEARNED
            self._right += (equal - self._right) * LEARNED / 4
            if not equal:
                break
            right += 1
        computed = drafted.known + min(right, len(drafted.tokens) - 1)  # of its last token, there is no KV
        if drafted.blocks is request.blocks and self._kv.ready(request.blocks) == drafted.known:
            self._kv.fill(request.blocks, drafted.known, computed)
        drafted.tokens = ()
        return drafted


def _level(probability: float) -> int:
    """The place in `CHANCES` of a token with this probability."""
    return min(sum(probability > most for most in CHANCES), len(CHANCES) - 1)
