"""A worker's runner from its settings: what is computed before it serves, and which adapters are taken later."""

from dataclasses import replace

import lora_folders
import pytest
import tiny_llama
import torch

from legato_engine import memory
from legato_engine.errors import EngineError, UnsupportedModel
from legato_engine.runner import loading
from legato_engine.runner.runner import Runner
from legato_engine.settings import WorkerSettings
from legato_protocol.adapter_list import AdapterEntry

MODEL = tiny_llama.config()
SETTINGS = WorkerSettings("unified", "u0", "m", kv_cache_memory=4 << 20, dtype="BFloat16", transport="None")
LISTED = replace(SETTINGS, adapters_file="adapters.json", max_adapter_rank=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("model")
    tiny_llama.write(made)
    return made


@pytest.fixture
def load(folder):
    return lambda settings: loading.load(settings, folder, lambda _what, _share: None)


@pytest.fixture
def adapter(tmp_path):
    return lora_folders.write(tmp_path / "sql", MODEL, rank=4)


@pytest.fixture
def adapted(monkeypatch):
    """The tokens of each row with an adapter that is computed, and how many layers that adds to."""
    rows, logits = [], Runner.logits

    def noted(runner, given, *before):
        rows.extend((len(row.tokens), len(row.adapter.updates)) for row in given if row.adapter is not None)
        return logits(runner, given, *before)

    monkeypatch.setattr(Runner, "logits", noted)
    return rows


def test_steps_with_an_adapter_are_computed_before_the_first_request_for_one(load, adapter, adapted):
    """Also where there is none yet: else a kernel would be compiled while requests wait."""
    load(SETTINGS)
    assert adapted == []
    layers = 4 * MODEL.layers  # q, k and v are one linear layer, gate and up another
    load(LISTED)
    assert adapted == [(1, layers), (SETTINGS.tokens_per_block, layers)]
    adapted.clear()
    load(replace(SETTINGS, adapters=(("sql", str(adapter)),)))
    assert adapted == [(1, layers), (SETTINGS.tokens_per_block, layers)]


def test_an_adapter_of_a_list_is_taken_within_its_own_bound(load, adapter):
    model = load(LISTED)
    assert model.adapters == ()
    opened = model.open_adapter(AdapterEntry("sql", str(adapter), max_rank=4))
    assert opened.name == "sql"
    assert opened.load().nbytes > 0
    with pytest.raises(UnsupportedModel, match=r"r is 4; at most 3 is allowed for it \(maxRank\)"):
        model.open_adapter(AdapterEntry("sql", str(adapter), max_rank=3))


def test_an_adapter_of_a_flag_that_cannot_be_used_ends_the_start(load, adapter):
    with pytest.raises(UnsupportedModel, match=r"r is 4; at most 3 is allowed here \(model.maxAdapterRank\)"):
        load(replace(SETTINGS, adapters=(("sql", str(adapter)),), max_adapter_rank=3))


@pytest.fixture
def allowed(monkeypatch, load):
    """The bytes that a worker with these settings may take, of what a GPU and the host have."""

    def found(settings, *, free, total, host=0):
        def refuse(*_args, available, **_kwargs):
            raise EngineError(str(available))

        monkeypatch.setattr(Runner, "load", refuse)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, total))
        monkeypatch.setattr(memory, "available", lambda: host)
        with pytest.raises(EngineError) as raised:
            load(settings)
        return int(str(raised.value))

    return found


GPU = replace(SETTINGS, device="cuda", kv_cache_memory=None)


@pytest.mark.parametrize(
    ("free", "share", "bytes_"),
    [
        (80, 1, 80),
        (60, 1, 60),  # what others hold cannot be had
        (80, 2, 40),
        (44, 2, 40),  # as much for the one that starts second, or again, as for the first
        (30, 2, 30),  # other programs hold memory, too
        (80, 3, 26),
    ],
)
def test_auto_is_a_share_of_all_of_a_gpu_s_memory_as_far_as_it_is_free(allowed, free, share, bytes_):
    assert allowed(replace(GPU, memory_share=share), free=free, total=80) == bytes_


def test_a_kv_cache_of_a_given_size_may_take_what_is_free(allowed):
    assert allowed(replace(GPU, memory_share=2, kv_cache_memory=1), free=70, total=80) == 70


def test_auto_is_a_share_of_what_the_host_has_left(allowed):
    """Also on a machine with a GPU."""
    settings = replace(SETTINGS, kv_cache_memory=None, memory_share=2)
    assert allowed(settings, free=80, total=80, host=10) == 5
    assert allowed(replace(settings, kv_cache_memory=1), free=80, total=80, host=10) == 10
