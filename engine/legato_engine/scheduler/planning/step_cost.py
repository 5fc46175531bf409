"""The duration of a step as a function of its content, fitted to recent steps: it limits chunks of prompts.

The model is the usual one for chunked prefill (SGLang's dynamic chunks and others fit its prompt part to a profile): a
step takes a fixed time, and additional time for each decode row, each token of their context, each prompt token and
each pair of a prompt token and its context. Here the five coefficients are fitted online, without a profile, so that
they adapt to a machine that becomes slower. Pure: times are passed in.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations_with_replacement

from legato_engine.scheduler.planning.chunk_budget import LATE_CHUNK, ChunkBudget
from legato_protocol.wire.load import DecodeCoefficients, PrefillCoefficients

COLD_STEPS = 2  # ignored steps of each kind: the first ones load code and touch memory for the first time
FORGET = 1 / 32  # weight of a new step relative to all earlier ones of its kind
RIDGE = 1e-3  # relative; coefficients that the steps do not determine share the cost evenly
FAR = 50  # tokens of context; steps with less hardly affect the cost of pairs, which matters for long prompts
REMEMBERED = 0.1  # lowest weight of a size, relative to a new step: other sizes may not determine all coefficients
ROW_SPREAD = 0.2  # rows; steps that differ by less hardly affect the cost of a row
CONTEXT_SPREAD = 100  # tokens of context; likewise for the cost of a context token
REFIT = 8  # steps after which `expected` fits again, which takes tens of microseconds
REACH = 2  # largest chunk relative to the largest measured one: the fit does not extrapolate well

_DECODE, _PROMPT = 3, 5  # features of a step: 1, rows, context[, tokens, pairs]
_FIXED, _ROWS, _CONTEXT, _TOKENS, _PAIRS = range(_PROMPT)


class StepCost:
    """Non-negative least squares of relative errors over recent steps.

    Errors are relative, so that an outlier that took ten times as long weighs a hundredth, and small steps, which show
    the fixed cost, weigh as much as large ones. Steps with and without prompts are forgotten separately, so that a long
    phase of one kind does not erase the other.

    Recent steps predict the next one. The cost of prompts in steps of other sizes follows from steps of all sizes; no
    size (in powers of two) is forgotten completely, since a single size does not determine the fixed cost. The same
    holds for the cost of decodes with other numbers of rows. Until the number of rows varies, all cost is fixed.
    """

    def __init__(self) -> None:
        self._decode = _Moments(_DECODE)
        self._prompt = _Moments(_PROMPT)
        self._sizes: dict[int, _Moments] = {}
        self._rows: dict[int, _Moments] = {}  # of pure decode steps, by powers of two of their rows
        self._fewest_rows = self._most_rows = 0  # of steps that decode; 0 before the first
        self._steps = {False: 0, True: 0}  # without and with prompts
        self._tokens = 0.0  # of recent steps with prompts: mean
        self._pairs = 0.0
        self._largest = 0
        self._per_scored = 0.0  # mean additional seconds of a prompt token whose logprob is requested
        self._scored = 0.0  # tokens in that mean
        self._next_fit: list[float] | None = None
        self._prefill_fit: list[float] | None = None
        self._decode_fit: list[float] | None = None
        self._expected_fit = [0.0] * _PROMPT
        self._since_expected = REFIT

    def measure(self, rows: int, context: int, tokens: int, pairs: float, seconds: float) -> None:
        """Adds a step that took `seconds`.

        It decoded `rows` with `context` tokens in all, and computed `tokens` of prompts with `pairs` of a prompt
        token and a token that it attends to.
        """
        if seconds <= 0 or self._is_cold(tokens > 0):
            return
        self._next_fit = self._prefill_fit = self._decode_fit = None
        self._since_expected += 1
        if rows:
            self._fewest_rows = min(rows, self._fewest_rows or rows)
            self._most_rows = max(rows, self._most_rows)
        if tokens:
            self._measure_prompts((1.0, rows, context, tokens, pairs), tokens, pairs, seconds)
        else:
            self._measure_decodes(rows, context, seconds)

    def measure_scores(self, tokens: int, seconds: float) -> None:
        """Adds the time that logprobs of `tokens` of prompts took; `measure` gets the rest of their step."""
        if tokens:
            self._scored = self._scored * (1 - FORGET) + tokens
            self._per_scored += (seconds / tokens - self._per_scored) * tokens / self._scored

    def budget(self, tokens: int, rows: int, context: int, seconds: float) -> ChunkBudget:
        """The budget for prompts in a step of `seconds` that also decodes `rows` with `context` tokens in all.

        It is at most `tokens`, and LATE_CHUNK until a prompt was measured.
        """
        fixed, per_row, per_context, per_token, per_pair = self._next_step()
        decoding = fixed + per_row * rows + per_context * context
        most = min(tokens, max(LATE_CHUNK, REACH * self._largest))
        return ChunkBudget(most, seconds - decoding, decoding, per_token, per_pair, self._per_scored)

    def expected(self, rows: int, context: int, tokens: int, pairs: float, scored: int = 0) -> float:
        """Seconds that a step should take, described as in `measure`; 0 before a step of its kind was measured.

        Logprobs of `scored` of its prompt tokens are requested.
        """
        if not (self._sizes if tokens else self._most_rows):
            return 0.0
        if self._since_expected >= REFIT:
            self._expected_fit, self._since_expected = self._next_step(), 0
        features = (1, rows, context, tokens, pairs)
        step = sum(cost * feature for cost, feature in zip(self._expected_fit, features, strict=True))
        return step + self._per_scored * scored

    def prefill(self, chunk_tokens: int) -> PrefillCoefficients | None:
        """The cost of prompts in steps of at most `chunk_tokens` without decodes; None before one was measured."""
        if not self._sizes:
            return None
        if self._prefill_fit is None:
            self._prefill_fit = _solve(_normal((self._decode, 1.0), *_remembered(self._sizes), far=FAR))
        fixed, _, _, per_token, per_pair = self._prefill_fit
        chunk = min(chunk_tokens, REACH * max(LATE_CHUNK, self._largest))
        return PrefillCoefficients(fixed, per_token, per_pair, chunk, self._pairs / self._tokens)

    def decode(self) -> DecodeCoefficients | None:
        """The cost of decodes; None before one was measured."""
        if not self._most_rows:
            return None
        if self._decode_fit is None:
            self._decode_fit = _solve(_decode_normal(_remembered(self._rows), self._prompt))
        per_step, per_row, per_context, _, _ = self._decode_fit
        only_rows = self._most_rows if self._most_rows == self._fewest_rows else 0
        return DecodeCoefficients(per_step, per_row, per_context, only_rows)

    def plain(self, rows: int, context: int) -> float:
        """Seconds of a step that only decodes, as in `decode`; 0 before one was measured."""
        cost = self.decode()
        return 0.0 if cost is None else cost.per_step + cost.per_row * rows + cost.per_context * context

    def _is_cold(self, prompts: bool) -> bool:
        self._steps[prompts] += 1
        return self._steps[prompts] <= COLD_STEPS

    def _measure_decodes(self, rows: int, context: int, seconds: float) -> None:
        of_rows = self._rows.setdefault(rows.bit_length(), _Moments(_DECODE))
        for moments in (self._decode, *self._rows.values()):
            moments.fade()
        for moments in (self._decode, of_rows):
            moments.add((1.0, rows, context), seconds)

    def _measure_prompts(self, features: tuple[float, ...], tokens: int, pairs: float, seconds: float) -> None:
        self._largest = max(self._largest, tokens)
        size = self._sizes.setdefault(tokens.bit_length(), _Moments(_PROMPT))
        for moments in (self._prompt, *self._sizes.values()):
            moments.fade()
        self._prompt.add(features, seconds)
        size.add(features, seconds)
        self._tokens += (tokens - self._tokens) / self._prompt.count
        self._pairs += (pairs - self._pairs) / self._prompt.count

    def _next_step(self) -> list[float]:
        if self._next_fit is None:
            self._next_fit = _solve(_normal((self._decode, 1.0), (self._prompt, 1.0)))
        return self._next_fit


class _Moments:
    """Weighted means of the products of steps' features, each divided by the step's seconds.

    The last "feature" is the seconds, so 1. Recent steps weigh more.
    """

    def __init__(self, features: int) -> None:
        columns = [*range(features), _PROMPT]
        self._pairs = list(combinations_with_replacement(range(features + 1), 2))
        self._places = [(columns[i], columns[j]) for i, j in self._pairs]
        self._means = [0.0] * len(self._pairs)
        self.count = 0.0  # steps: older ones count less

    def fade(self) -> None:
        """Reduces the weight of all steps so far, before a new one of this kind."""
        self.count *= 1 - FORGET

    def add(self, features: tuple[float, ...], seconds: float) -> None:
        """Adds a step with these features that took `seconds`."""
        self.count += 1
        weight = 1 / self.count
        x = [feature / seconds for feature in features]
        x.append(1.0)
        self._means = [
            mean + weight * (x[i] * x[j] - mean) for mean, (i, j) in zip(self._means, self._pairs, strict=True)
        ]

    def add_to(self, equations: list[list[float]], weight: float) -> None:
        """Adds these means to normal equations."""
        for (i, j), mean in zip(self._places, self._means, strict=True):
            if i < _PROMPT:
                equations[i][j] += weight * mean
            if i != j < _PROMPT:
                equations[j][i] += weight * mean


def _remembered(sizes: Mapping[int, _Moments]) -> list[tuple[_Moments, float]]:
    """Moments of all sizes with their weights; no size is forgotten completely."""
    return [(size, FORGET * max(REMEMBERED, size.count)) for size in sizes.values()]


def _sums(*kinds: tuple[_Moments, float]) -> list[list[float]]:
    """The normal equations of weighted kinds of steps; the last column is the right side."""
    equations = [[0.0] * (_PROMPT + 1) for _ in range(_PROMPT)]
    for moments, weight in kinds:
        moments.add_to(equations, weight)
    return equations


def _decode_normal(sizes: Sequence[tuple[_Moments, float]], prompt: _Moments) -> list[list[float]]:
    """The normal equations for the cost of decodes. Rows and context cost nothing unless steps show otherwise.

    The fixed cost follows from steps without prompts; before the first, it is split evenly with the cost of tokens.
    """
    equations = _sums(*sizes, (prompt, 1.0))
    steps = equations[_FIXED][_FIXED]
    if not sizes:
        equations[_FIXED][_FIXED] *= 1 + RIDGE
    equations[_ROWS][_ROWS] += ROW_SPREAD**2 * steps
    equations[_CONTEXT][_CONTEXT] += CONTEXT_SPREAD**2 * steps
    for i in (_TOKENS, _PAIRS):
        equations[i][i] *= 1 + RIDGE
    return equations


def _normal(*kinds: tuple[_Moments, float], far: float = 0) -> list[list[float]]:
    """The normal equations of weighted kinds of steps, regularized.

    Pairs cost nothing unless steps show otherwise, and steps with less than `far` tokens of context hardly do.
    """
    equations = _sums(*kinds)
    for i in range(_PROMPT):
        equations[i][i] *= 1 + RIDGE
    equations[_PAIRS][_PAIRS] += far**2 * equations[_TOKENS][_TOKENS]
    return equations


def _solve(equations: list[list[float]]) -> list[float]:
    """Non-negative coefficients: while some would be negative, the most negative one is fixed at 0."""
    free = [i for i in range(len(equations)) if equations[i][i] > 0]
    while True:
        solution = _eliminate([[equations[i][j] for j in (*free, -1)] for i in free])
        lowest = min(range(len(free)), key=lambda k: solution[k] * equations[free[k]][free[k]] ** 0.5, default=None)
        if lowest is None or solution[lowest] >= 0:
            break
        del free[lowest]
    coefficients = [0.0] * len(equations)
    for i, value in zip(free, solution, strict=True):
        coefficients[i] = value
    return coefficients


def _eliminate(rows: list[list[float]]) -> list[float]:
    """Gaussian elimination without pivoting: the matrix is symmetric and, with its ridge, positive definite."""
    size = len(rows)
    for i in range(size):
        for below in rows[i + 1 :]:
            factor = below[i] / rows[i][i]
            for j in range(i, size + 1):
                below[j] -= factor * rows[i][j]
    solution = [0.0] * size
    for i in reversed(range(size)):
        known = sum(rows[i][j] * solution[j] for j in range(i + 1, size))
        solution[i] = (rows[i][size] - known) / rows[i][i]
    return solution
