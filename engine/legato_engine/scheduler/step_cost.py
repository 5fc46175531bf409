"""What a step takes, learned from the steps before: so many prompt tokens fit beside the decodes into a given time.

The model is the usual one for chunked prefill (SGLang's dynamic chunks and others fit its prompt part to a profile):
a step takes a fixed time, and more for each decode row, each token of their context, each prompt token and each pair
of a prompt token and its context. Here the five coefficients follow from running steps, without a profile, so that
they also follow a machine that becomes slower. Pure: times are passed in.
"""

from itertools import combinations_with_replacement

from legato_engine.scheduler.chunk_budget import LEAST_CHUNK, ChunkBudget

COLD_STEPS = 2  # of each kind: the first ones load code and touch memory for the first time
FORGET = 1 / 32  # weight of a new step against all before it, of its kind
RIDGE = 1e-3  # relative: directions in which the steps so far say nothing are split evenly
REACH = 2  # a chunk is at most so many times the largest one measured: farther, the fit is a guess

_DECODE, _PROMPT = 3, 5  # features of a step: 1, rows, context[, tokens, pairs]


class StepCost:
    """Least squares of relative errors over recent steps, with coefficients that are not negative.

    Relative errors: a step that took ten times as long for a reason of its own weighs a hundredth, and small steps,
    which show the fixed part, weigh as much as large ones. Steps with and without prompts are forgotten apart, so that
    a long phase of one kind leaves what is known of the other.
    """

    def __init__(self) -> None:
        self._decode = _Moments(_DECODE)
        self._prompt = _Moments(_PROMPT)
        self._largest = 0
        self._fit: list[float] | None = None

    def measured(self, rows: int, context: int, tokens: int, pairs: float, seconds: float) -> None:
        """A step took `seconds`: it decoded `rows` with `context` tokens before them in all, and computed `tokens` of
        prompts with so many `pairs` of a token and one that it attends to."""
        if seconds <= 0:
            return
        self._fit = None
        if not tokens:
            self._decode.add((1.0, rows, context), seconds)
        elif self._prompt.add((1.0, rows, context, tokens, pairs), seconds):
            self._largest = max(self._largest, tokens)

    def budget(self, tokens: int, rows: int, context: int, seconds: float) -> ChunkBudget:
        """For prompts beside `rows` that decode with `context` tokens before them in all, so that the step takes
        `seconds`: at most `tokens`, and LEAST_CHUNK as long as no prompt was measured."""
        fixed, per_row, per_context, per_token, per_pair = self._coefficients()
        left = seconds - fixed - per_row * rows - per_context * context
        most = max(LEAST_CHUNK, REACH * self._largest)
        return ChunkBudget(min(tokens, most), left, per_token, per_pair)

    def _coefficients(self) -> list[float]:
        if self._fit is None:
            self._fit = _solve(self._normal())
        return self._fit

    def _normal(self) -> list[list[float]]:
        """The normal equations of both kinds of steps together, with the right side as the last column."""
        equations = [[0.0] * (_PROMPT + 1) for _ in range(_PROMPT)]
        for moments in (self._decode, self._prompt):
            for (i, j), value in moments.items():
                if i < _PROMPT:
                    equations[i][j] += value
                if i != j < _PROMPT:
                    equations[j][i] += value
        for i in range(_PROMPT):
            equations[i][i] *= 1 + RIDGE
        return equations


class _Moments:
    """Exponentially weighted sums of the products of steps' features, each over the step's seconds. The last "feature"
    is the seconds themselves, so 1."""

    def __init__(self, features: int) -> None:
        columns = [*range(features), _PROMPT]
        self._pairs = list(combinations_with_replacement(range(features + 1), 2))
        self._places = [(columns[i], columns[j]) for i, j in self._pairs]
        self._sums = [0.0] * len(self._pairs)
        self._cold = COLD_STEPS

    def add(self, features: tuple[float, ...], seconds: float) -> bool:
        """Whether it counts."""
        if self._cold:
            self._cold -= 1
            return False
        x = [feature / seconds for feature in features]
        x.append(1.0)
        self._sums = [
            total + FORGET * (x[i] * x[j] - total) for total, (i, j) in zip(self._sums, self._pairs, strict=True)
        ]
        return True

    def items(self) -> list[tuple[tuple[int, int], float]]:
        return list(zip(self._places, self._sums, strict=True))


def _solve(equations: list[list[float]]) -> list[float]:
    """Coefficients that are not negative: where some would be, the most negative one is 0, and so on."""
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
    """Gauss without pivoting: the matrix is symmetric and, with its ridge, positive definite."""
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
