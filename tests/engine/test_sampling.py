"""Sampling: every parameter against a slow reference, the distribution, and independence of the batch. Tests with
`choose` are for the sampler of a GPU, too, whose kernels are interpreted."""

import functools
import math
from collections import Counter

import msgspec
import numpy as np
import pytest
import random_draws
import torch
from budget import times
from counted_tokens import WatchedTokens
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from random_draws import draw, params, some_draws

from legato_engine.backends.cuda.device import Interpreted
from legato_engine.kernels.torch import sampling as filters
from legato_engine.sampling.adjust import adjust
from legato_engine.sampling.device_sampler import DeviceSampler
from legato_engine.sampling.sampler import NOT_FINITE, NOTHING_LEFT, sample
from legato_engine.sampling.uniform import uniform
from legato_engine.scheduler.batch import Draw
from legato_protocol.sampling.limits import LOGIT_BIAS, MAX_LOGPROBS, RANGES

VOCAB = 50

# The interpreter warns where distances between infinities are computed, which no result depends on.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value|overflow:RuntimeWarning")


device_sampler = functools.cache(lambda vocab: DeviceSampler(Interpreted(), vocab, 16))


def sample_on_device(logits, draws, rows):
    sampler = device_sampler(logits.shape[1])
    return sampler.collect(sampler.launch(logits, draws, rows, {}))


@pytest.fixture(params=[sample, sample_on_device], ids=["processor", "device"])
def choose(request):
    return request.param


def random_logits(rows: int, vocab: int = VOCAB, seed: int = 0) -> torch.Tensor:
    return random_draws.random_logits(rows, vocab, seed)


def reference(logits: list[float], given: Draw) -> list[float]:
    """The distribution to draw from, token by token and in plain Python, as vLLM defines it."""
    p, output = given.params, Counter(given.tokens[given.prompt_len :])
    values = penalized([x + p.logit_bias.get(token, 0.0) for token, x in enumerate(logits)], given)
    if sum(output.values()) < p.min_tokens:
        values = [-math.inf if token in p.stop_token_ids else x for token, x in enumerate(values)]
    values = [x if may_follow(token, given) else -math.inf for token, x in enumerate(values)]
    if p.temperature == 0:
        best = max(range(len(values)), key=lambda token: values[token])
        return [float(token == best) for token in range(len(values))]
    weights = [math.exp((x - max(values)) / p.temperature) for x in values]
    weights = [w if w >= p.min_p * max(weights) else 0.0 for w in weights]
    order = sorted(range(len(weights)), key=lambda token: -weights[token])
    if p.top_k:
        order = order[: p.top_k]
    total, before, kept = sum(weights[token] for token in order), 0.0, set()
    for token in order:
        if before < p.top_p * total or not kept:
            kept.add(token)
        before += weights[token]
    weights = [w if token in kept else 0.0 for token, w in enumerate(weights)]
    return [w / sum(weights) for w in weights]


def penalized(logits: list[float], given: Draw) -> list[float]:
    p, values = given.params, list(logits)
    for token in set(given.tokens):
        values[token] *= p.repetition_penalty ** (-1 if values[token] > 0 else 1)
    for token, count in Counter(given.tokens[given.prompt_len :]).items():
        values[token] -= p.frequency_penalty * count + p.presence_penalty
    return values


def may_follow(token: int, given: Draw) -> bool:
    """True if `allowed_token_ids` and `bad_words` let the output go on with it."""
    p, output = given.params, [*given.tokens[given.prompt_len :], token]
    said = [tuple(output[at:]) for at in range(len(output))]
    return (not p.allowed_token_ids or token in p.allowed_token_ids) and not any(word in said for word in p.bad_words)


def inverted(distribution: list[float], at: float) -> int:
    """The token whose share of [0, 1], in the order of ids, holds `at`."""
    total = 0.0
    for token, share in enumerate(distribution):
        total += share
        if total >= at and share > 0:
            return token
    return max(token for token, share in enumerate(distribution) if share > 0)


CASES = [
    {},
    *({"temperature": temperature} for temperature in (0.0, 0.3, 2.5)),
    *({"top_k": count} for count in (1, 5, VOCAB + 9)),
    *({"top_p": share} for share in (0.01, 0.7)),
    *({"min_p": share} for share in (0.2, 1.0)),
    {"top_k": 10, "top_p": 0.8, "min_p": 0.02, "temperature": 1.7},
    {"presence_penalty": 1.5},
    {"frequency_penalty": -1.1, "temperature": 0.0},
    {"repetition_penalty": 1.8},
    {"repetition_penalty": 0.6, "presence_penalty": 0.5, "frequency_penalty": 0.7, "temperature": 0.0},
    {"logit_bias": {4: 100.0}},
    {"logit_bias": {4: -100.0, 9: 3.0, VOCAB + 3: 50.0}, "temperature": 0.0},
    *({"min_tokens": least, "stop_token_ids": tuple(range(40)), "temperature": 0.0} for least in (3, 4, 6)),
    {"min_tokens": 2, "stop_token_ids": tuple(range(40))},
    {"allowed_token_ids": (7, 3, 49, 7)},
    {"allowed_token_ids": (7, 3, 49), "temperature": 0.0, "logit_bias": {9: 100.0}},
    {"bad_words": tuple((token,) for token in range(45)), "temperature": 0.0},
    {
        "bad_words": ((9, 4), (5, 9, 8), (5, 5, 9, 1), (5, 9), (11, 5, 5, 9, 2)),
        "logit_bias": dict.fromkeys((4, 8, 1, 2), 50.0),
    },
    {"allowed_token_ids": (4, 8, 1), "bad_words": ((9, 4), (5, 9, 8)), "top_k": 3, "presence_penalty": 1.0},
]


@pytest.mark.parametrize("case", CASES)
def test_every_parameter_means_what_the_reference_says(case, choose):
    logits, draws = random_logits(8), [draw((5, 5, 9), choice=row, **case) for row in range(8)]
    tokens = [sampled.token for sampled in choose(logits, draws, range(8))]
    asked = zip(logits.tolist(), draws, uniform(draws).tolist(), strict=True)
    assert tokens == [inverted(reference(row, one), number) for row, one, number in asked]


@pytest.mark.parametrize(
    "penalties",
    [
        {"repetition_penalty": 1.3},
        {"frequency_penalty": 0.7},
        {"presence_penalty": 1.1},
        {"repetition_penalty": 1.3, "frequency_penalty": -0.4},
    ],
    ids=str,
)
def test_penalties_read_each_token_once(penalties, choose):
    """However long the sequence is; and they are those of all of them."""
    tokens = WatchedTokens([3, 3, 7, 11] * 100 + [5, 9, 5])
    given = Draw(0, 0, params(**penalties), tokens, 400)
    choose(random_logits(1), [given], [0])
    assert tokens.read == set(range(0 if "repetition_penalty" in penalties else 400, 403))
    for seed, token in enumerate((9, 20, 3)):
        tokens.append(token)
        tokens.read.clear()
        logits = random_logits(1, seed=seed)
        (sampled,) = choose(logits, [given], [0])
        assert tokens.read == {len(tokens) - 1}
        assert sampled.token == inverted(reference(logits[0].tolist(), given), uniform([given]).item())


@settings(max_examples=times(30), deadline=None)
@given(
    st.lists(
        st.builds(
            draw,
            st.lists(st.integers(0, 9)).map(tuple),
            repetition_penalty=st.sampled_from([1.0, 0.5, 1.7]),
            frequency_penalty=st.sampled_from([0.0, 0.5, -1.3]),
            presence_penalty=st.sampled_from([0.0, 0.9, -0.2]),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_penalized_logits_are_those_of_the_reference(draws):
    logits = random_logits(len(draws), 12)
    logits[:, 3] = -math.inf
    expected = [penalized(row, one) for row, one in zip(logits.tolist(), draws, strict=True)]
    adjust(logits, draws)
    assert logits.tolist() == [pytest.approx(row, rel=1e-5, abs=1e-6) for row in expected]


@settings(max_examples=times(30), deadline=None)
@given(
    allowed=st.sets(st.integers(0, 7)).map(tuple),
    words=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3).map(tuple), max_size=6).map(tuple),
    output=st.lists(st.integers(0, 5), max_size=6).map(tuple),
    temperature=st.sampled_from([0.0, 1.0]),
)
def test_only_tokens_that_may_follow_are_sampled(allowed, words, output, temperature):
    """There are eight; 40 choices take each that may follow, or say that there is none."""
    changes = {"allowed_token_ids": allowed, "bad_words": words, "temperature": temperature}
    draws = [draw(output, choice=choice, **changes) for choice in range(40)]
    logits = torch.zeros(1, 8)
    sampled = sample(logits, draws, [0] * 40)
    left = {token for token in range(8) if may_follow(token, draws[0])}
    assert {one.fault for one in sampled} == ({""} if left else {NOTHING_LEFT})
    assert not left or {one.token for one in sampled} <= left
    assert not logits.any(), "they are left as they are"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "changes",
    [
        {"logit_bias": {3: 100.0}, "bad_words": ((4,),)},
        {"logit_bias": {3: -100.0}, "allowed_token_ids": (3, 5)},
        {"repetition_penalty": 1.1, "bad_words": ((4,),)},
        {"frequency_penalty": -2.0, "allowed_token_ids": (9, 5)},
        {"presence_penalty": 2.0, "allowed_token_ids": (9,)},
    ],
)
def test_tokens_that_a_grammar_has_masked_stay_so_under_bias_and_penalties(changes, temperature, choose):
    """Also where nothing else is left: that is reported, and no token is sampled that may not follow."""
    logits = torch.full((1, VOCAB), -math.inf)
    logits[0, 4] = 1.0  # the grammar lets this one follow; 3 stands in the prompt, 9 in the output
    (sampled,) = choose(logits, [draw((9,), temperature=temperature, **changes)], [0])
    assert sampled.fault == NOTHING_LEFT


def test_a_prompt_is_no_part_of_a_bad_word(choose):
    """As in vLLM: what was said counts, not what was asked."""
    changes = {"temperature": 0.0, "bad_words": ((11, 4),), "logit_bias": {4: 100.0}}
    first, later = choose(torch.zeros(2, VOCAB), [draw(**changes), draw((11,), **changes)], [0, 1])
    assert first.token == 4 != later.token


def test_frequencies_follow_the_distribution():
    """Chi-square over 5,000 draws that differ in position alone; the seed is fixed, so this cannot flake."""
    count = 5000
    logits = random_logits(1, 12)
    draws = [replace(draw(temperature=1.3, seed=42), position=position) for position in range(count)]
    drawn = Counter(sampled.token for sampled in sample(logits, draws, [0] * count))
    expected = [share * count for share in reference(logits[0].tolist(), draws[0])]
    chi_square = sum((drawn[token] - e) ** 2 / e for token, e in enumerate(expected))
    assert chi_square < 31.3  # 99.9 % point for 11 degrees of freedom


@pytest.mark.parametrize("key", ["seed", "choice", "position"])
def test_random_numbers_are_even_and_new_for_every_key(key):
    values = [{key: number} for number in range(8000)]
    numbers = uniform([replace(draw(), **({"params": params(**v)} if key == "seed" else v)) for v in values])
    assert len(set(numbers.tolist())) == len(numbers)
    assert numbers.min() > 0
    assert numbers.max() <= 1
    bins = np.bincount((numbers * 16).astype(int).clip(max=15), minlength=16)
    assert ((bins - 500) ** 2 / 500).sum() < 37.7  # 99.9 % point for 15 degrees of freedom
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.03


def test_random_numbers_never_change():
    """Another release must continue a sequence as this one would: the numbers are pinned."""
    keys = [(0, 0, 0), (1, 0, 17), (2**64 - 1, 3, 4096), (-1, 3, 4096)]
    numbers = uniform([Draw(choice, at, params(seed=seed), [0], 1) for seed, choice, at in keys])
    assert numbers.tolist() == [0.4749028454424141, 0.2851196984842953, 0.014268638817159451, 0.014268638817159451]


@settings(max_examples=times(25), deadline=None)
@given(st.lists(some_draws(1000), min_size=1, max_size=6), st.integers(0, 1000), st.randoms())
def test_a_token_does_not_depend_on_its_batch(draws, seed, random):
    """A single draw gets the token that it gets in a batch, in any order and from any row."""
    rows, logits = range(len(draws)), random_logits(len(draws), 1000, seed)  # more than the filters sort at first
    together = sample(logits, draws, rows)
    order = random.sample(rows, len(rows))
    assert sample(logits[order], [draws[i] for i in order], rows) == [together[i] for i in order]
    assert [sample(logits[i : i + 1], [draws[i]], [0])[0] for i in rows] == together


def test_logprobs_are_those_of_the_unchanged_logits(choose):
    logits = random_logits(3)
    asked = [{"logit_bias": {4: 100.0}, "logprobs": 2}, {}, {"logprobs": 0}]
    first, second, third = choose(logits, [draw(temperature=0.0, **one) for one in asked], [2, 1, 0])
    expected = logits[2].log_softmax(0)
    best = expected.topk(2)
    assert first.token == 4
    assert first.logprobs.logprob == pytest.approx(expected[4].item())
    assert [top.token for top in first.logprobs.top] == best.indices.tolist()
    assert [top.logprob for top in first.logprobs.top] == pytest.approx(best.values.tolist())
    assert (second.logprobs, third.logprobs.top) == (None, ())
    assert msgspec.msgpack.encode(first.logprobs)


@settings(max_examples=times(50), deadline=None)
@given(
    spread=st.sampled_from([0.0, 1e-4, 0.5, 3.0, 60.0]),
    seed=st.integers(0, 99),
    ties=st.booleans(),
    temperature=st.sampled_from([0.05, 0.8, 1.0, 7.0]),
    top_k=st.sampled_from([0, 1, 2, 40, 700, 2999, 3000, 5000]),
    top_p=st.sampled_from([1e-6, 0.3, 0.95, 0.999999, 1.0]),
    min_p=st.sampled_from([0.0, 0.0, 1e-9, 0.05, 1.0]),
)
def test_both_ways_to_draw_agree(spread: float, seed: int, ties: bool, **mixed: float) -> None:
    """By torch for any device, and by the kernel for processors: whatever the shape of the distribution."""
    logits = random_logits(4, 3000, seed) * spread
    logits[:, ::7] = -math.inf  # as masks leave them
    if ties:
        logits = (logits * 2).round() / 2
    draws = [draw(choice=row, **mixed) for row in range(4)]
    numbers = torch.from_numpy(uniform(draws))
    expected = filters.draw(logits, [draw.params for draw in draws], numbers).tolist()
    assert [sampled.token for sampled in sample(logits, draws, range(4))] == expected


@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 20.0])
@pytest.mark.parametrize("top_p", [0.5, 0.999])
def test_a_nucleus_of_any_size_is_found(spread, top_p):
    """Flat distributions have nuclei larger than what is sorted at first."""
    vocab = filters.FIRST_CANDIDATES * 20
    logits = random_logits(2, vocab) * spread
    above = (logits.double() - logits.amax(1, keepdim=True)).exp()
    floor = filters.thresholds(logits, above, [params(top_p=top_p), params(top_p=top_p, top_k=300)])
    assert floor is not None
    for row, count in ((0, vocab), (1, 300)):
        best = logits[row].double().sort(descending=True).values
        weights = (best - best[0]).exp().where(best >= best[count - 1], 0)
        enough = int((weights.cumsum(0) < top_p * weights.sum()).sum())
        assert floor[row].item() == pytest.approx(best[min(enough, vocab - 1)].item(), abs=1e-6)


def test_tokens_that_tie_at_the_border_are_all_kept(choose):
    logits = torch.tensor([[1.0, 3.0, 2.0, 2.0, 2.0, 0.0]])
    draws = [replace(draw(top_k=2), position=position) for position in range(24)]
    assert {sampled.token for sampled in choose(logits, draws, [0] * 24)} == {1, 2, 3, 4}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf], ids=str)
@pytest.mark.parametrize("changes", [{"temperature": 0.0, "presence_penalty": 1.0}, {}, {"top_k": 5}])
def test_a_row_that_is_not_numbers_fails_alone(bad, changes, choose):
    """NaN anywhere, an infinite logit, or nothing but minus infinity: no token, and the other rows' tokens as ever."""
    logits = random_logits(3)
    draws = [draw(logprobs=2, **changes) for _ in range(3)]
    undisturbed = choose(logits, draws, [0, 1, 2])
    logits[1, slice(None) if bad == -math.inf else 7] = bad
    sampled = choose(logits, draws, [0, 1, 2])
    assert [bool(one.fault) for one in sampled] == [False, True, False]
    assert [sampled[0], sampled[1].logprobs, sampled[2]] == [undisturbed[0], None, undisturbed[2]]


EXTREMES = [
    *({name: bound} for name, interval in RANGES.items() for bound in interval),
    *({"presence_penalty": bound, "frequency_penalty": bound} for bound in (-2.0, 2.0)),
    *({"logit_bias": dict.fromkeys(range(VOCAB), bound)} for bound in LOGIT_BIAS),
    {"logprobs": MAX_LOGPROBS},
    {"allowed_token_ids": (VOCAB - 1,)},
    {"bad_words": tuple((token,) for token in range(VOCAB - 1))},
    {"repetition_penalty": 1e-40},  # beyond what a server allows, which may be of another version
]
TOGETHER = {name: value for one in EXTREMES[-2::-1] for name, value in one.items() if name != "allowed_token_ids"}


@pytest.mark.parametrize(("temperature", "scale"), [(0.0, 3e38), (1e-5, 3e38), (2.0, 1.0)])
def test_no_parameter_makes_a_row_of_finite_logits_fault(scale, temperature, choose):
    logits = random_logits(1).clamp(-1, 1) * scale
    draws = [draw((3, 7, 7), **{"temperature": temperature, "logprobs": 3} | one) for one in (*EXTREMES, TOGETHER)]
    sampled = choose(logits, draws, [0] * len(draws))
    assert [one.fault for one in sampled] == [""] * len(draws)
    told = [each for one in sampled if one.logprobs for each in (one.logprobs, *one.logprobs.top)]
    assert len(told) > 3 * len(draws)
    assert all(math.isfinite(one.logprob) for one in told)


def test_a_row_of_which_nothing_is_left_says_so_and_blames_no_logits(choose):
    """And one that is not finite is told apart from it."""
    stops = tuple(range(VOCAB))
    logits = random_logits(3)
    logits[2, 7] = math.nan
    draws = [draw(min_tokens=3, stop_token_ids=stops), draw(top_k=3), draw(logit_bias={7: -100.0})]
    assert [one.fault for one in choose(logits, draws, [0, 1, 2])] == [NOTHING_LEFT, "", NOT_FINITE]


def test_the_logprob_of_a_token_that_cannot_be_is_a_number(choose):
    logits = torch.full((1, VOCAB), -math.inf)
    logits[0, 4] = 1.0
    (sampled,) = choose(logits, [draw(temperature=0.0, logprobs=2)], [0])
    assert (sampled.token, sampled.logprobs.logprob, sampled.logprobs.top[1].logprob) == (4, 0.0, -9999.0)
