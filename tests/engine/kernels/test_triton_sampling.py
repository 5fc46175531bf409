"""Sampling by Triton's kernels against the kernel for processors, torch, and plain arithmetic."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from budget import times
from hypothesis import given, settings
from hypothesis import strategies as st

from legato_engine.kernels.cpu import sampling as by_numba
from legato_engine.kernels.gpu.configurations import Configuration, choose
from legato_engine.kernels.gpu.sampling import sample as by_triton
from legato_engine.kernels.gpu.sampling.sample import MOST_TOPS, Draws, Results, SamplingMemory

CPU = torch.device("cpu")
SMALL = Configuration({"TILE": 128, "CHUNK": 64, "PIVOTS": 8, "ENTRIES": 16}, warps=4)
SHIPPED = choose("sampling", {}, "interpreter")


def some_logits(rows: int, vocab: int, seed: int, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * spread


def some_draws(count: int, **columns: Any) -> Draws:
    """Plain ones, from a row each, but for what is given: one value for all, or a list."""
    plain = {
        "rows": (torch.int32, range(count)), "numbers": (torch.float64, 0.5), "top_ps": (torch.float64, 1.0),
        "temperatures": (torch.float32, 1.0), "log_min_ps": (torch.float32, -math.inf),
        "repetitions": (torch.float32, 1.0), "top_ks": (torch.int32, 0), "tops": (torch.int32, -1),
        "changes": (torch.int32, -1), "restricted": (torch.int32, 0),
    }  # fmt: skip
    values = {name: columns.get(name, value) for name, (_, value) in plain.items()}
    lists = {name: [value] * count if isinstance(value, int | float) else value for name, value in values.items()}
    return Draws(**{name: torch.tensor(list(lists[name]), dtype=kind) for name, (kind, _) in plain.items()})


def results_for(count: int) -> Results:
    ids = torch.full((count, MOST_TOPS), -7, dtype=torch.int32)
    return Results(ids[:, 0].clone(), ids[:, 0].clone(), ids[:, 0].float(), ids, ids.float())


def picked(
    logits: torch.Tensor, draws: Draws, work: SamplingMemory | None = None, config: Configuration = SMALL
) -> Results:
    count = len(draws.rows)
    work, results = work or SamplingMemory(count, logits.shape[1], CPU, config), results_for(count)
    random = draws.temperatures > 0
    filtered = random & ((draws.top_ks > 0) | (draws.top_ps < 1))
    by_triton.pick(logits, draws, work, results, drawn=bool(random.any()), filtered=bool(filtered.any()), config=config)
    if (draws.tops > 0).any():
        by_triton.rank(logits, draws, work, results, config)
    return results


def drawn_by_numba(logits: torch.Tensor, draws: Draws) -> list[int]:
    tokens, sound = np.zeros(len(draws.rows), np.int64), np.zeros(len(draws.rows), np.bool_)
    given = (draws.rows.long(), draws.temperatures, draws.top_ks.long(), draws.top_ps, draws.log_min_ps.exp())
    by_numba.draw(logits.numpy(), *[column.numpy() for column in (*given, draws.numbers)], tokens, sound)
    return tokens.tolist()


# The interpreter warns where distances between infinities are computed, which no result depends on.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value|overflow:RuntimeWarning")

VOCABS = (63, 100, 500)
NUMBERS = st.floats(2.0**-53, 1.0)
MIXED = st.fixed_dictionaries(
    {
        "numbers": NUMBERS,
        "temperatures": st.sampled_from([0.05, 0.8, 1.0, 7.0]),
        "top_ks": st.sampled_from([0, 1, 2, 40, 62]),
        "top_ps": st.sampled_from([0.0, 1e-6, 0.3, 0.95, 0.999999, 1.0]),
        "log_min_ps": st.sampled_from([-math.inf, math.log(1e-9), math.log(0.05), 0.0]),
    }
)


@settings(max_examples=times(6), deadline=None)
@given(
    mixed=st.lists(MIXED, min_size=3, max_size=3),
    spread=st.sampled_from([0.0, 1e-4, 0.5, 3.0, 60.0]),
    seed=st.integers(0, 99),
    ties=st.booleans(),
    vocab=st.sampled_from(VOCABS),
)
def test_draws_the_tokens_that_the_kernel_for_processors_draws(
    mixed: list[dict[str, float]], spread: float, seed: int, ties: bool, vocab: int
) -> None:
    logits = some_logits(3, vocab, seed, spread)
    logits[:, ::7] = -math.inf  # as masks leave them
    if ties:
        logits = (logits * 2).round() / 2
    draws = some_draws(3, **{name: [one[name] for one in mixed] for name in mixed[0]})
    results = picked(logits, draws)
    assert results.states.tolist() == [by_triton.FINE] * 3
    assert results.tokens.tolist() == drawn_by_numba(logits, draws)


@pytest.mark.parametrize("config", [SMALL, Configuration({"TILE": 32, "CHUNK": 16, "PIVOTS": 4}, warps=1)], ids=str)
def test_sizes_of_tiles_change_no_token(config: Configuration) -> None:
    """Also where all tokens have to be looked at, and one part or many hold what stays."""
    logits = some_logits(3, 200, 1, 0.01)
    draws = some_draws(3, top_ks=[0, 180, 0], top_ps=[0.999, 0.9, 1.0], numbers=[0.1, 0.5, 0.99])
    assert picked(logits, draws, config=config).tokens.tolist() == drawn_by_numba(logits, draws)


LARGE = 2 * SHIPPED.tiles["TILE"] + 1808  # a vocabulary of several parts of the shipped size


def test_draws_from_each_of_several_parts() -> None:
    """Draws of every kind; where logits are alike, more tokens stay than are compared at a time."""
    tile = SHIPPED.tiles["TILE"]
    logits = some_logits(2, LARGE, 8, 1.0)
    logits[1] = (logits[1] * 4).round() / 4
    logits[1, [5, tile, LARGE - 1]] = 9.0
    kinds = [{}, {"top_ps": 0.9}, {"top_ks": 3000}, {"top_ks": 2000, "top_ps": 0.8}, {"log_min_ps": math.log(0.02)}]
    plain = {"rows": 0, "numbers": 0.5, "top_ps": 1.0, "top_ks": 0, "log_min_ps": -math.inf}
    mixed = [plain | kind | {"numbers": number} for kind in kinds for number in (0.1, 0.6, 0.99)]
    mixed += [plain | {"rows": 1, "top_ks": 2, "numbers": number} for number in (0.2, 0.5, 0.8)]
    draws = some_draws(len(mixed), **{name: [one[name] for one in mixed] for name in plain})
    tokens = picked(logits, draws, config=SHIPPED).tokens.tolist()
    assert tokens == drawn_by_numba(logits, draws)
    assert [token // tile for token in tokens] == [0, 1, 2] * (len(kinds) + 1)
    assert tokens[-3:] == [5, tile, LARGE - 1]


def test_greedy_draws_logprobs_masks_and_entries_of_several_parts() -> None:
    logits = (some_logits(2, LARGE, 9) * 2).round() / 2
    bits = np.random.default_rng(9).integers(0, 2**32, (1, -(-LARGE // 32)), dtype=np.uint32)
    expected = logits.clone()
    by_numba.mask(expected.numpy(), np.array([1]), bits)
    by_triton.mask(logits, torch.tensor([1], dtype=torch.int32), torch.from_numpy(bits.view(np.int32)), SHIPPED)
    assert torch.equal(logits, expected)

    draws = some_draws(3, rows=[0, 1, 0], temperatures=0.0, tops=MOST_TOPS, changes=[-1, -1, 0])
    entries = entries_of(*[(2, token, 50.0 + token, 0.0, 0) for token in range(1, LARGE, 30)])
    assert entries.shape[1] > SHIPPED.tiles["ENTRIES"]
    work = SamplingMemory(3, LARGE, CPU, SHIPPED)
    by_triton.change(logits, draws, entries, work, SHIPPED)
    changed = logits[0].clone()
    changed[1::30] += 50 + torch.arange(1, LARGE, 30)
    assert torch.equal(work.changed[0], changed)
    results = picked(logits, draws, work, SHIPPED)
    assert results.tokens.tolist() == [*logits.numpy().argmax(1), int(changed.argmax())]
    assert {token // SHIPPED.tiles["TILE"] for token in results.top_ids[0].tolist()} == {0, 1, 2}
    check_logprobs(results, logits, draws)


def check_logprobs(results: Results, logits: torch.Tensor, draws: Draws) -> None:
    """Logprobs of the tokens, and as many alternatives as asked for, are those of the rows as given."""
    for index, (row, count) in enumerate(zip(draws.rows.tolist(), draws.tops.tolist(), strict=True)):
        if count < 0:
            assert results.logprobs[index] == -7
            continue
        logprobs = logits[row].log_softmax(0)
        assert results.logprobs[index].item() == pytest.approx(logprobs[results.tokens[index]].item(), abs=1e-5)
        best = np.lexsort((np.arange(len(logprobs)), -logits[row].numpy()))[:count]
        assert results.top_ids[index, :count].tolist() == best.tolist()
        torch.testing.assert_close(results.top_logprobs[index, :count], logprobs[best], atol=1e-5, rtol=0)
        assert set(results.top_ids[index, count:].tolist()) <= {-7}


@pytest.mark.parametrize("filters", [{}, {"top_ps": 1 - 1e-15}], ids=str)
def test_sums_are_as_exact_as_float64(filters: dict[str, float]) -> None:
    """500 tokens tie, and a border is 1e-12 away from each number: sums in float32 would often miss it."""
    borders = (3, 249, 495)
    numbers = [border / 500 + shift for border in borders for shift in (-1e-12, 1e-12)]
    draws = some_draws(len(numbers), rows=[0] * len(numbers), numbers=numbers, **filters)
    found = picked(torch.zeros(1, 500), draws).tokens.tolist()
    assert found == [token for border in borders for token in (border - 1, border)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_greedy_takes_the_lowest_id_of_those_that_tie(dtype: torch.dtype) -> None:
    logits = some_logits(6, 500, 2, spread=1.0).round().to(dtype)
    assert (logits == logits.amax(1, keepdim=True)).sum() > 12  # also within a tile
    draws = some_draws(6, temperatures=0.0)
    assert picked(logits, draws).tokens.tolist() == [int(row.argmax()) for row in logits.float().numpy()]


def entries_of(*entries: tuple[int, int, float, float, int], padding: int = 3) -> torch.Tensor:
    columns = list(zip(*entries, *[(-1, 0, 0.0, 0.0, 0)] * padding, strict=True))
    kinds = (np.int32, np.int32, np.float32, np.float32, np.int32)
    arrays = [np.array(values, kind) for values, kind in zip(columns, kinds, strict=True)]
    return torch.from_numpy(np.stack([array.view(np.int32) for array in arrays]))
