"""Sampling on a GPU, with kernels that are interpreted: the processor's tokens, and steps that overlap. What single
parameters mean is in test_sampling.py."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from budget import times
from hypothesis import given, settings
from hypothesis import strategies as st

from legato_engine.backends.cuda.device import Interpreted
from legato_engine.errors import KernelFailed
from legato_engine.kernels.sampling import triton_draw
from legato_engine.kernels.triton_errors import TritonError
from legato_engine.sampling import constrain
from legato_engine.sampling.constrain import Masks
from legato_engine.sampling.device_sampler import DeviceSampler
from legato_engine.sampling.sampler import NOT_FINITE, NOTHING_LEFT, sample
from legato_engine.scheduler.batch import Draw, Sampled
from legato_protocol.sampling_params import SamplingParams

# The interpreter warns where distances between infinities are computed, which no result depends on.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value|overflow:RuntimeWarning")

VOCAB = 100
PROMPT = (3, 3, 7, 11)


def draw(output: tuple[int, ...] = (), choice: int = 0, **changes: Any) -> Draw:
    tokens = PROMPT + output
    params = SamplingParams(**({"max_tokens": 8, "seed": 1} | changes))
    return Draw(choice, len(tokens), params, list(tokens), len(PROMPT))


def random_logits(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def mask_of(*allowed: int) -> bytes:
    bits = np.zeros(32 * -(-VOCAB // 32), np.bool_)
    bits[list(allowed)] = True
    return np.packbits(bits, bitorder="little").tobytes()


def by_processor(logits: torch.Tensor, draws: list[Draw], rows: list[int], masks: Masks) -> list[Sampled]:
    logits = logits.clone()
    constrain.apply(logits, masks)
    return sample(logits, draws, rows)


@st.composite
def some_draw(make: st.DrawFn) -> Draw:
    return draw(
        make(st.lists(st.integers(0, VOCAB - 1), max_size=5).map(tuple)),
        choice=make(st.integers(0, 3)),
        seed=make(st.integers(0, 2**64 - 1)),
        temperature=make(st.sampled_from([0.0, 0.2, 1.0, 1.9])),
        top_k=make(st.sampled_from([0, 1, 7, 600])),
        top_p=make(st.sampled_from([1.0, 0.95, 0.3])),
        min_p=make(st.sampled_from([0.0, 0.1])),
        presence_penalty=make(st.sampled_from([0.0, 1.0])),
        frequency_penalty=make(st.sampled_from([0.0, -0.5])),
        repetition_penalty=make(st.sampled_from([1.0, 1.3])),
        logit_bias=make(st.sampled_from([{}, {1: 5.0, 8: -3.0, VOCAB: 1.0}])),
        logprobs=make(st.sampled_from([None, 0, 3])),
        min_tokens=make(st.sampled_from([0, 5])),
        stop_token_ids=(2,),
        allowed_token_ids=make(st.sampled_from([(), (1, 2, 8, 9, 9, VOCAB)])),
        bad_words=make(st.sampled_from([(), ((1,), (2,), (5, 8))])),
    )


@settings(max_examples=times(8), deadline=None)
@given(
    draws=st.lists(some_draw(), min_size=1, max_size=7),
    seed=st.integers(0, 1000),
    masks=st.dictionaries(st.integers(0, 2), st.sampled_from([b"", mask_of(1, 8, 50), mask_of(9), mask_of()])),
    data=st.data(),
)
def test_any_batch_gets_what_the_processor_gives(
    draws: list[Draw], seed: int, masks: Masks, data: st.DataObject
) -> None:
    """More draws than are made together, several of one row, masked rows, whatever they ask for."""
    logits = random_logits(3, seed)
    rows = data.draw(st.lists(st.integers(0, 2), min_size=len(draws), max_size=len(draws)))
    sampler = DeviceSampler(Interpreted(), VOCAB, 4)
    pending = sampler.launch(logits.clone(), draws, rows, masks)
    tokens = pending.sampled.tolist()
    found, expected = sampler.collect(pending), by_processor(logits, draws, rows, masks)
    assert tokens == [one.token for one in found]
    assert [(one.token, one.fault) for one in found] == [(one.token, one.fault) for one in expected]
    for one, other in zip(found, expected, strict=True):
        assert (one.logprobs is None) == (other.logprobs is None)
        if one.logprobs and other.logprobs:
            assert one.logprobs.logprob == pytest.approx(other.logprobs.logprob, abs=1e-5)
            values = [top.logprob for top in one.logprobs.top]
            assert values == pytest.approx([top.logprob for top in other.logprobs.top], abs=1e-5)
            assert len({top.token for top in one.logprobs.top}) == len(values)


def test_masks_hold_for_logprobs_and_leave_faults_and_other_rows_alone() -> None:
    logits = random_logits(3)
    masks: Masks = {0: mask_of(4, 9), 1: "a dead end", 2: mask_of()}
    sampler = DeviceSampler(Interpreted(), VOCAB, 4)
    draws = [draw(temperature=temperature, logprobs=3) for temperature in (0.0, 1.0, 1.0)]
    first, second, third = sampler.collect(sampler.launch(logits.clone(), draws, [0, 1, 2], masks))
    assert first.logprobs is not None
    assert [top.token for top in first.logprobs.top][:2] == sorted((4, 9), key=lambda token: -logits[0, token])
    assert first.logprobs.top[2].logprob == -9999.0
    assert not second.fault
    assert third.fault == NOT_FINITE


def test_steps_may_be_launched_before_others_are_collected() -> None:
    """Each keeps its parameters and its tokens until then, and memory is used again after it."""
    sampler = DeviceSampler(Interpreted(), VOCAB, 4)
    logits = [random_logits(2, seed) for seed in range(6)]
    draws = [[draw(seed=seed, logprobs=1), draw(temperature=0.0)] for seed in range(6)]
    expected = [by_processor(given, drawn, [0, 1], {}) for given, drawn in zip(logits, draws, strict=True)]
    pending = [sampler.launch(logits[0], draws[0], [0, 1], {})]
    addresses = set()
    for step in range(1, 6):
        pending.append(sampler.launch(logits[step], draws[step], [0, 1], {}))
        addresses.add(pending[-1].sampled.data_ptr())
        before = pending[0].sampled.clone()
        found = sampler.collect(pending.pop(0))
        assert [one.token for one in found] == [one.token for one in expected[step - 1]] == before.tolist()
    assert [one.token for one in sampler.collect(pending[0])] == [one.token for one in expected[5]]
    assert len(addresses) == 2


class Late(Interpreted):
    """Says in which order the host waited for what."""

    def __init__(self) -> None:
        super().__init__()
        self.marks = 0
        self.waited: list[int] = []

    def mark(self) -> Callable[[], None]:
        self.marks += 1
        mark = self.marks
        return lambda: self.waited.append(mark)


def test_only_collect_waits_and_only_for_its_own_launch() -> None:
    device = Late()
    sampler = DeviceSampler(device, VOCAB, 4)
    pending = [sampler.launch(random_logits(1), [draw(logprobs=2, logit_bias={1: 1.0})], [0], {}) for _ in range(2)]
    assert (device.marks, device.waited) == (2, [])
    sampler.collect(pending[1])
    assert device.waited == [2]


def test_faults_are_those_of_their_draws_alone() -> None:
    logits = random_logits(2)
    logits[0, 60] = math.nan
    nothing = draw(allowed_token_ids=(VOCAB,))
    drawn = [draw(), nothing, draw(logprobs=1), draw(temperature=0.0, logprobs=0)]
    sampler = DeviceSampler(Interpreted(), VOCAB, 8)
    found = sampler.collect(sampler.launch(logits, drawn, [1, 1, 0, 1], {}))
    assert [one.fault for one in found] == ["", NOTHING_LEFT, NOT_FINITE, ""]
    assert found[2].logprobs is None
    assert sampler.collect(sampler.launch(logits, [], [], {})) == []


class Recorder:
    """Stands for a kernel: keeps what it is launched with."""

    def __init__(self, launches: list[Any]) -> None:
        self._launches = launches

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: Any, **options: Any) -> None:
            plain = [arg.data_ptr() if isinstance(arg, torch.Tensor) else arg for arg in args]
            self._launches.append((grid, plain, options))

        return launch


def test_batches_of_one_padded_size_launch_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same grids and addresses, whatever is asked for: nothing is allocated but when more is needed than before."""
    launches: list[Any] = []
    for name in ("survey", "weigh", "gather", "choose"):
        monkeypatch.setattr(triton_draw, name, Recorder(launches))
    sampler, logits = DeviceSampler(Interpreted(), VOCAB, 16), random_logits(8)
    random, steps = np.random.default_rng(0), []
    for _ in range(100):
        count = int(random.integers(5, 9))
        draws = [draw(top_p=float(random.random()), seed=int(random.integers(99))) for _ in range(count)]
        sampler.collect(sampler.launch(logits, draws, random.permutation(8)[:count].tolist(), {}))
        steps.append(list(launches))
        launches.clear()
    assert len(steps[0]) == 4
    assert all(step == steps[0] for step in steps)
    assert all(grid[0] == 8 for grid, _, _ in steps[0])


def test_a_kernel_that_cannot_be_compiled_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise TritonError("no compiler")

    monkeypatch.setattr("legato_engine.kernels.sampling.triton.pick", fails)
    with pytest.raises(KernelFailed, match="no compiler"):
        DeviceSampler(Interpreted(), VOCAB, 4).warm_up()
