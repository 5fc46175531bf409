"""A worker's runner from its settings: what is computed before it serves, and which adapters are taken later."""

import re
from dataclasses import replace

import lora_folders
import pytest
import tiny_llama
import torch
import wordy_model
from huggingface_oracle import smollm2_path

from legato_engine import memory
from legato_engine.errors import DifferentTokens, EngineError, UnsupportedModel
from legato_engine.runner import compilation, loading
from legato_engine.runner.runner import Runner
from legato_engine.runner.sizing import Memory
from legato_engine.scheduler.batch import Batch, Row
from legato_engine.settings import WorkerSettings

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
    """The tokens of each row with an adapter that is computed, and the bytes of its matrices."""
    rows, logits = [], Runner.logits

    def noted(runner, given, *before):
        rows.extend((len(row.tokens), row.adapter.nbytes) for row in given if row.adapter is not None)
        return logits(runner, given, *before)

    monkeypatch.setattr(Runner, "logits", noted)
    return rows


def test_steps_with_many_tokens_stop_between_layers(load):
    """As prompts do, on cores where other workers have tokens to compute."""
    model, stops = load(SETTINGS), []
    model.between_layers(lambda: stops.append(1))
    model.runner.step(Batch((Row([0] * 64, 0, range(64 // SETTINGS.tokens_per_block)),)))
    assert len(stops) == MODEL.layers


def test_steps_with_an_adapter_are_computed_before_the_first_request_for_one(load, adapter, adapted):
    """Also where there is none yet: else a kernel would be compiled while requests wait."""
    load(SETTINGS)
    assert adapted == []
    load(LISTED)
    sizes = [1, *[SETTINGS.tokens_per_block] * (2 + 64 // SETTINGS.tokens_per_block)]
    assert [tokens for tokens, _ in adapted] == sizes
    of_rank_1 = adapted[0][1]
    adapted.clear()
    load(replace(SETTINGS, adapters=(("sql", str(adapter)),)))
    assert adapted == [(tokens, 4 * of_rank_1) for tokens in sizes]  # of all projections, too
    assert of_rank_1 > 0


def test_a_draft_model_shares_the_memory_of_the_kv_cache(load):
    drafting = replace(SETTINGS, kv_cache_memory=16 << 20, dtype="Auto", speculation="Draft", speculation_model="small")
    made = loading.load(drafting, wordy_model.path(), lambda _what, _share: None, wordy_model.path())
    alone = loading.load(replace(drafting, speculation="None"), wordy_model.path(), lambda _what, _share: None)
    assert made.draft is not None
    assert (made.draft.max_length, made.runner.num_blocks) == (made.max_length, alone.runner.num_blocks // 2)
    assert "draft model" in made.runner.formats
    assert made.runner.kv_revision == alone.runner.kv_revision


def test_a_draft_model_with_other_tokens_is_refused(load):
    said = r"token 3 is '<repo_name>' there and '</arg_value>' here \(49,152 tokens there, 49,152 here\)"
    with pytest.raises(DifferentTokens, match=said):
        loading.load(SETTINGS, smollm2_path(), lambda _what, _share: None, wordy_model.path())


def test_weights_are_rounded_as_the_settings_say(load):
    rounded = load(replace(SETTINGS, quantization="Int8"))
    assert "engine.quantization (8-bit integers, a scale per output" in rounded.runner.formats
    assert rounded.weights != load(SETTINGS).weights


def test_an_adapter_of_a_flag_that_cannot_be_used_ends_the_start(load, adapter):
    with pytest.raises(UnsupportedModel, match=r"r is 4; at most 3 is allowed here \(model.maxAdapterRank\)"):
        load(replace(SETTINGS, adapters=(("sql", str(adapter)),), max_adapter_rank=3))


AUTO = replace(SETTINGS, kv_cache_memory=None)
GPU = replace(AUTO, device="cuda")


@pytest.mark.parametrize(
    ("settings", "share", "free", "host", "room"),
    [
        (GPU, 1, 80, 0, Memory(80)),
        (GPU, 1, 60, 0, Memory(60)),  # memory in use by others is not available
        (GPU, 2, 80, 0, Memory(40)),
        (GPU, 2, 44, 0, Memory(40)),  # the same for the first worker, the second, and one that restarts
        (GPU, 2, 30, 0, Memory(30)),  # other programs use memory, too
        (GPU, 3, 80, 0, Memory(26)),
        (replace(GPU, kv_cache_memory=1), 2, 70, 0, Memory(70)),  # a given size may take all free memory
        (AUTO, 2, 80, 10, Memory(5, shared=True)),  # on the host, also where there is a GPU
        (AUTO, None, 80, 10, Memory(10)),  # of a container
        (replace(AUTO, kv_cache_memory=1), 2, 80, 10, Memory(10)),
    ],
)
def test_auto_is_a_share_of_all_memory_as_far_as_it_is_free(monkeypatch, load, settings, share, free, host, room):
    """A GPU has 80 bytes."""

    def refuse(_checkpoint, options, _report):
        raise EngineError(str(options.memory))

    monkeypatch.setattr(Runner, "load", refuse)
    monkeypatch.setattr(compilation, "begin", lambda *_: compilation.OnCpu())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, 80))
    monkeypatch.setattr(memory, "available", lambda: host)
    with pytest.raises(EngineError, match=f"^{re.escape(str(room))}$"):
        load(replace(settings, memory_share=share))
