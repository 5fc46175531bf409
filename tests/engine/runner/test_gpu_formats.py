"""Formats that a GPU does not compute are refused before any weight is read, with those that it does."""

from dataclasses import replace

import pytest
import torch
from interpreted_models import LLAMA
from tiny_models import RandomCheckpoint

from legato_engine.backends.cuda.device import Interpreted
from legato_engine.errors import NoDevice, TooLittleMemory, UnusableFormat
from legato_engine.runner.plan import RunnerOptions
from legato_engine.runner.runner import Runner
from legato_engine.runner.sizing import Memory

COMPUTES = (
    "interpreter computes head sizes that are multiples of 8 from 16 to 256, up to 16 query heads for each KV head, "
    "and blocks of 16, 32, 64 tokens"
)


class Unread(RandomCheckpoint):
    """Its shapes are known; whoever reads a weight fails."""

    def tensor(self, name):
        raise AssertionError(f"{name} was read")


def load(config=LLAMA, **changes):
    given = {"block_size": 16, "kv_cache_bytes": 1 << 20, "dtype": "auto", "max_length": 64, "gpu": Interpreted()}
    return Runner.load(Unread(config), RunnerOptions(**given | changes))


@pytest.mark.parametrize(
    ("sizes", "changes", "message"),
    [
        *(({"head_dim": dim}, {}, f"a head size of {dim} is not supported; {COMPUTES}") for dim in (8, 20, 264)),
        ({"heads": 34}, {}, f"17 query heads for each KV head are not supported; {COMPUTES}"),
        *(({}, {"block_size": n}, f"a block size of {n} tokens is not supported; {COMPUTES}") for n in (8, 128)),
        ({}, {"dtype": "bfloat16"}, "bfloat16 is not computed by interpreter; supported: auto, float16, float32"),
        ({}, {"kv_dtype": "float32"}, "KV cannot be float32 with float16"),
    ],
)
def test_refused(sizes, changes, message):
    with pytest.raises(UnusableFormat, match=message):
        load(replace(LLAMA, **sizes), **changes)


def test_too_little_memory_of_the_device():
    """Said with what weights and workspace take, and what would fit."""
    told = (
        r"weights take 1 MiB, workspace about .* the KV cache 512 MiB; 512 MiB are available: give a kvCacheMemory of"
    )
    with pytest.raises(TooLittleMemory, match=told):
        load(kv_cache_bytes=512 << 20, memory=Memory(512 << 20))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu():
    with pytest.raises(
        NoDevice, match=r"device cuda was asked for, but torch (finds none here|.* without it): use cpu"
    ):
        load(gpu=None, device="cuda")
