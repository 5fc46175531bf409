"""Sampling on a GPU, with kernels that are interpreted: the processor's tokens, and steps that overlap. Tests of
single parameters are in test_sampling.py."""

import functools
import itertools
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import random_draws
import torch
from budget import times
from hypothesis import given, settings
from hypothesis import strategies as st
from random_draws import draw, some_draws

from legato_engine.backends.cuda.device import Interpreted
from legato_engine.errors import KernelFailed
from legato_engine.kernels.gpu.errors import TritonError
from legato_engine.kernels.gpu.sampling import draw as triton_draw
from legato_engine.sampling import constrain
from legato_engine.sampling.constrain import Masks
from legato_engine.sampling.device_sampler import DeviceSampler
from legato_engine.sampling.sampler import sample
from legato_engine.scheduler.batch import Draw, Sampled

# The interpreter warns where distances between infinities are computed, which no result depends on.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value|overflow:RuntimeWarning")

VOCAB = 100


def random_logits(rows, seed=0):
    return random_draws.random_logits(rows, VOCAB, seed)


def mask_of(*allowed: int) -> bytes:
    bits = np.zeros(32 * -(-VOCAB // 32), np.bool_)
    bits[list(allowed)] = True
    return np.packbits(bits, bitorder="little").tobytes()


def by_processor(logits: torch.Tensor, draws: list[Draw], rows: list[int], masks: Masks) -> list[Sampled]:
    logits = logits.clone()
    constrain.apply(logits, masks)
    return sample(logits, draws, rows)


def logprobs(one: Sampled) -> list[float]:
    return [each.logprob for each in (one.logprobs, *one.logprobs.top)] if one.logprobs else []


@settings(max_examples=times(8), deadline=None)
@given(
    draws=st.lists(some_draws(VOCAB), min_size=1, max_size=7),
    seed=st.integers(0, 1000),
    masks=st.dictionaries(st.integers(0, 2), st.sampled_from([b"", mask_of(1, 8, 50), mask_of(9), mask_of()])),
    data=st.data(),
)
def test_any_batch_has_the_tokens_of_the_processor(draws, seed, masks, data):
    """More draws than are made together, several of one row, masked rows, any parameters."""
    logits = random_logits(3, seed)
    rows = data.draw(st.lists(st.integers(0, 2), min_size=len(draws), max_size=len(draws)))
    sampler = DeviceSampler(Interpreted(), VOCAB, 4)
    pending = sampler.launch(logits.clone(), draws, rows, masks)
    tokens = pending.sampled.tolist()
    found, expected = sampler.collect(pending), by_processor(logits, draws, rows, masks)
    assert tokens == [one.token for one in found]
    assert [(one.token, one.fault) for one in found] == [(one.token, one.fault) for one in expected]
    for one, other in zip(found, expected, strict=True):
        assert logprobs(one) == pytest.approx(logprobs(other), abs=1e-5)
        assert not one.logprobs or len({top.token for top in one.logprobs.top}) == len(one.logprobs.top)


def test_steps_may_be_launched_before_others_are_collected():
    """Each keeps its parameters and its tokens until then, and memory is used again after it."""
    sampler, addresses = DeviceSampler(Interpreted(), VOCAB, 4), set()
    steps = [(random_logits(2, seed), [draw(seed=seed, logprobs=1), draw(temperature=0.0)]) for seed in range(6)]
    expected = [[one.token for one in by_processor(*step, [0, 1], {})] for step in steps]
    pending = [sampler.launch(*steps[0], [0, 1], {})]
    for step in range(1, 6):
        pending.append(sampler.launch(*steps[step], [0, 1], {}))
        addresses.add(pending[-1].sampled.data_ptr())
        before = pending[0].sampled.clone()
        found = sampler.collect(pending.pop(0))
        assert [one.token for one in found] == expected[step - 1] == before.tolist()
    assert [one.token for one in sampler.collect(pending[0])] == expected[5]
    assert len(addresses) == 2


def test_only_collect_waits_and_only_for_its_own_launch(monkeypatch):
    device, marks, waited = Interpreted(), itertools.count(1), []
    monkeypatch.setattr(device, "mark", lambda: functools.partial(waited.append, next(marks)))
    sampler = DeviceSampler(device, VOCAB, 4)
    pending = [sampler.launch(random_logits(1), [draw(logprobs=2, logit_bias={1: 1.0})], [0], {}) for _ in range(2)]
    assert waited == []
    sampler.collect(pending[1])
    assert waited == [2]
    assert next(marks) == 3


class Recorder(list[Any]):
    """Stands for all kernels: keeps what they are launched with."""

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*args: Any, **options: Any) -> None:
            self.append((grid, [arg.data_ptr() if isinstance(arg, torch.Tensor) else arg for arg in args], options))

        return launch


def test_batches_of_one_padded_size_launch_the_same(monkeypatch):
    """The same grids and addresses, whatever is asked for: nothing is allocated but when more is needed than before."""
    launches = Recorder()
    for name in ("survey", "weigh", "gather", "choose"):
        monkeypatch.setattr(triton_draw, name, launches)
    sampler, logits = DeviceSampler(Interpreted(), VOCAB, 16), random_logits(8)
    random, steps = np.random.default_rng(0), []
    for _ in range(100):
        count = int(random.integers(5, 9))
        draws = [draw(top_p=float(random.random()), seed=int(random.integers(99))) for _ in range(count)]
        sampler.collect(sampler.launch(logits, draws, random.permutation(8)[:count].tolist(), {}))
        steps.append(list(launches))
        launches.clear()
    assert [grid[0] for grid, _, _ in steps[0]] == [8] * 4
    assert all(step == steps[0] for step in steps)


def test_a_kernel_that_cannot_be_compiled_is_reported(monkeypatch):
    fails = Mock(side_effect=TritonError("no compiler"))
    monkeypatch.setattr("legato_engine.kernels.gpu.sampling.sample.pick", fails)
    with pytest.raises(KernelFailed, match="no compiler"):
        DeviceSampler(Interpreted(), VOCAB, 4).warm_up()
