"""A kernel that cannot be compiled: the worker does not start, or torch's own operators compute where that is asked."""

import weakref
from dataclasses import replace

import pytest
import tiny_llama
import torch

from legato_engine.backends.cuda import backend
from legato_engine.backends.cuda.device import Interpreted
from legato_engine.errors import KernelFailed, UnusableFormat
from legato_engine.kernels.gpu.configurations import Configuration
from legato_engine.runner import backends, loading
from legato_engine.runner.runner import Runner
from legato_engine.scheduler.batch import Draw, Row
from legato_engine.settings import WorkerSettings
from legato_protocol.sampling.parameters import SamplingParams

SETTINGS = WorkerSettings("unified", "u0", "m", kv_cache_memory=4 << 20, dtype="Float16", device="cuda", max_batch=2)
TORCH = replace(SETTINGS, on_kernel_failure="Torch")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("model")
    tiny_llama.write(made)
    return made


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    monkeypatch.setattr(backends, "gpu", lambda name: Interpreted())
    monkeypatch.setattr(backends, "gpu_uuids", lambda name, ranks: ())


@pytest.fixture
def broken(monkeypatch):
    """A table with a width that no kernel can be compiled for."""
    chosen = backend.choose

    def choose(kernel, shape, chip):
        return Configuration({"WIDTH": 1000}) if kernel == "silu_mul" else chosen(kernel, shape, chip)

    monkeypatch.setattr(backend, "choose", choose)


def load(settings, folder):
    return loading.load(replace(settings, transport="None"), folder, lambda _what, _share: None).runner


def first_logits(runner):
    tokens = list(range(30))
    params = SamplingParams(max_tokens=1, seed=0, temperature=0.0)
    with torch.inference_mode():
        return runner.logits((Row(tokens, 0, [1, 2], (Draw(0, 30, params, tokens, 30),)),)).clone()


def test_a_worker_stops(folder, broken):
    message = r"Triton 3\.\d.* cannot compile or start a kernel on interpreter: .*power of 2"
    with pytest.raises(KernelFailed, match=message):
        load(SETTINGS, folder)


def test_torch_computes_where_it_is_asked_to_and_has_other_numerics(folder, request):
    """Workers of the two exchange no KV; they compute the same but for rounding."""
    whole = load(TORCH, folder)
    request.getfixturevalue("broken")
    fallback = load(TORCH, folder)

    assert (whole.fallback, whole.weights_fallback) == ("", "")
    assert "power of 2" in fallback.fallback
    assert "by torch's own operators, which are slower: Triton" in fallback.formats
    assert whole.kv_revision != fallback.kv_revision
    torch.testing.assert_close(first_logits(whole), first_logits(fallback), atol=0.05, rtol=0.02)


@pytest.mark.parametrize("policy", ["Auto", "Torch", "Stop"])
def test_on_a_cpu_torch_computes_what_kernels_do_not_support_unless_that_is_to_stop(folder, monkeypatch, policy):
    monkeypatch.setattr(backends, "gpu", lambda name: None)
    settings = replace(SETTINGS, device="cpu", dtype="Auto", block_size=6, on_kernel_failure=policy)
    if policy == "Stop":
        with pytest.raises(UnusableFormat, match=r"no compiled kernels: .* not a multiple of"):
            load(settings, folder)
    else:
        assert "not a multiple of" in load(settings, folder).fallback


@pytest.fixture
def loads(monkeypatch):
    """For each runner that was loaded: how many of before there were, and how often torch had emptied its cache."""
    found, runners, emptied, loaded = [], [], [], Runner.load

    def load(*args, **kwargs):
        found.append((sum(runner() is not None for runner in runners), len(emptied)))
        runner = loaded(*args, **kwargs)
        runners.append(weakref.ref(runner))
        return runner

    monkeypatch.setattr(Runner, "load", load)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(sum(r() is not None for r in runners)))
    yield found
    assert not any(emptied), "the cache was emptied while a runner was in it"


def test_the_first_runner_is_gone_before_the_second_is_loaded(folder, broken, loads):
    """Both would not fit a GPU, all of which the first has taken."""
    load(TORCH, folder)
    assert loads == [(0, 0), (0, 1)]
