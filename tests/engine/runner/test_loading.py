"""A worker's runner from its settings: what is computed before it serves, and which adapters are taken later."""

import json
from dataclasses import replace

import lora_folders
import pytest
from safetensors.torch import save_file

from legato_engine.errors import UnsupportedModel
from legato_engine.models.config import from_huggingface
from legato_engine.runner import loading
from legato_engine.runner.runner import Runner
from legato_engine.settings import WorkerSettings
from legato_protocol.adapter_list import AdapterEntry

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_hidden_layers": 2,
    "intermediate_size": 96,
    "vocab_size": 64,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}
MODEL = from_huggingface(CONFIG, "here")
SETTINGS = WorkerSettings("unified", "u0", "m", kv_cache_memory=4 << 20, dtype="BFloat16", transport="None")
LISTED = replace(SETTINGS, adapters_file="adapters.json", max_adapter_rank=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("model")
    (made / "config.json").write_text(json.dumps(CONFIG))
    weights = lora_folders.RandomCheckpoint(MODEL)
    save_file({name: weights.tensor(name) for name in weights.names()}, made / "model.safetensors")
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
