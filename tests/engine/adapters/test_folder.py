"""Adapters are accepted, or refused with the reason."""

import json
import re

import lora_folders
import pytest
import torch
from tiny_models import llama

from legato_engine.adapters.folder import open_adapter
from legato_engine.errors import (
    CorruptModel,
    MissingTensor,
    ModelNotFound,
    UnsupportedFormat,
    UnsupportedModel,
    WrongShape,
)
from legato_engine.weights.expected import projections

MODEL = llama(hidden_size=32, heads=2, kv_heads=1, head_dim=16, intermediate_size=48, vocab_size=64)
UP, KEYS = "model.layers.0.mlp.up_proj", "model.layers.0.self_attn.k_proj"


def opened(folder, max_rank=16, own_max_rank=None):
    return open_adapter(folder, projections(MODEL), max_rank, own_max_rank)


def without(ending):
    def change(tensors):
        for name in [name for name in tensors if name.endswith(ending)]:
            del tensors[name]

    return change


def renamed(before, after):
    def change(tensors):
        for name in [name for name in tensors if before in name]:
            tensors[name.replace(before, after)] = tensors.pop(name)

    return change


def extra(name, *shape, dtype=torch.float32):
    added = {f"base_model.model.{name}": torch.zeros(*shape, dtype=dtype)}
    return {"change": lambda tensors: tensors.update(added)}


def test_matrices_are_scaled_and_by_projection(tmp_path):
    found = opened(lora_folders.write(tmp_path, MODEL, rank=4, targets=("q_proj", "down_proj"), lora_alpha=2))
    assert (found.rank, found.scale) == (4, 0.5)
    pairs = found.read()
    assert set(pairs) == {f"model.layers.{i}.{name}" for i in (0, 1) for name in ("self_attn.q_proj", "mlp.down_proj")}
    pair = pairs["model.layers.1.mlp.down_proj"]
    assert (pair.a.shape, pair.b.shape) == ((4, 48), (32, 4))
    assert found.values == sum(pair.a.numel() + pair.b.numel() for pair in pairs.values())
    plain = opened(lora_folders.write(tmp_path, MODEL, rank=4, targets=("q_proj", "down_proj"), lora_alpha=4)).read()
    torch.testing.assert_close(pair.b, plain["model.layers.1.mlp.down_proj"].b / 2)
    assert opened(lora_folders.write(tmp_path, MODEL, rank=16, lora_alpha=8, use_rslora=True)).scale == 2.0


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_an_adapter_of_a_multimodal_base_fits_its_text_model(prefix, tmp_path):
    plain = opened(lora_folders.write(tmp_path / "text", MODEL)).read()
    change = renamed("base_model.model.model.", f"base_model.model.{prefix}")
    found = opened(lora_folders.write(tmp_path / "multimodal", MODEL, change=change)).read()
    assert found.keys() == plain.keys()
    assert all(torch.equal(found[name].b, plain[name].b) for name in plain)


def test_a_digest_tells_apart_what_computes_otherwise(tmp_path):
    folders = [
        lora_folders.write(tmp_path / "a", MODEL),
        lora_folders.write(tmp_path / "b", MODEL, seed=1),
        lora_folders.write(tmp_path / "c", MODEL, lora_alpha=3),
    ]
    assert len({opened(folder).digest for folder in folders}) == 3
    assert opened(folders[0]).digest == opened(lora_folders.write(tmp_path / "d", MODEL)).digest


def test_some_layers_alone_are_taken_where_the_config_says_so(tmp_path):
    change = without(("layers.1.self_attn.q_proj.lora_A.weight", "layers.1.self_attn.q_proj.lora_B.weight"))
    asked = {"targets": ("q_proj",), "change": change}
    assert len(opened(lora_folders.write(tmp_path, MODEL, layers_to_transform=[0], **asked)).read()) == 1
    with pytest.raises(MissingTensor, match=r"model\.layers\.1\.self_attn\.q_proj\.lora_A\.weight is missing"):
        opened(lora_folders.write(tmp_path, MODEL, **asked))


REFUSED = {
    "another kind": (UnsupportedModel, {"peft_type": "IA3"}, "peft_type 'IA3' is not supported"),
    "DoRA": (UnsupportedModel, {"use_dora": True}, "use_dora True is not supported"),
    "biases": (UnsupportedModel, {"bias": "lora_only"}, "bias 'lora_only' is not supported"),
    "whole modules": (UnsupportedModel, {"modules_to_save": ["lm_head"]}, "modules_to_save ['lm_head'] is not"),
    "ranks by layer": (UnsupportedModel, {"rank_pattern": {"q_proj": 2}}, "rank_pattern {'q_proj': 2} is not"),
    "another base's weights": (UnsupportedModel, {"init_lora_weights": "pissa_niter_4"}, "changes the base's weights"),
    "a rank beyond the bound": (UnsupportedModel, {"rank": 17}, "r is 17; at most 16 is allowed"),
    "no rank": (CorruptModel, {"r": 0}, "not a valid r: 0"),
    "a rank that is no number": (CorruptModel, {"r": True}, "not a valid r: True"),
    "no alpha": (CorruptModel, {"lora_alpha": None}, "not a valid lora_alpha: None"),
    "infinite alpha": (CorruptModel, {"lora_alpha": float("inf")}, "not a valid lora_alpha: inf"),
    "another rank than it says": (WrongShape, {"r": 8}, "lora_A.weight has shape [4, 48]; this model, and r in"),
    "half a pair": (MissingTensor, {"change": without("layers.0.mlp.up_proj.lora_B.weight")}, "up_proj.lora_B.weight"),
    "a layer too many": (UnsupportedModel, {"change": renamed("layers.1.", "layers.2.")}, "model.layers.2.mlp.down"),
    "a layer too few": (MissingTensor, {"change": without(("A.weight", "layers.1"))}, "is missing"),
    "an embedding": (
        UnsupportedModel,
        extra("lm_head.lora_A.weight", 4, 32),
        "lm_head is not a projection of this model",
    ),
    "an expert": (
        UnsupportedModel,
        extra("model.layers.0.mlp.experts.3.up_proj.lora_A.weight", 4, 32),
        "experts.3.up_proj belongs to an expert: adapters of experts are not supported",
    ),
    "other tensors": (UnsupportedModel, extra(f"{UP}.lora_magnitude_vector", 4), "magnitude_vector is not supported"),
    "another base": (WrongShape, extra(f"{KEYS}.lora_B.weight", 32, 4), "ask for [16, 4]: of another base?"),
    "whole numbers": (
        UnsupportedFormat,
        extra(f"{KEYS}.lora_B.weight", 16, 4, dtype=torch.int8),
        "type I8; supported: F",
    ),
    "nothing": (MissingTensor, {"change": dict.clear, "target_modules": "all-linear"}, "there are no tensors in it"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_with_its_path(name, tmp_path):
    error, asked, text = REFUSED[name]
    folder = lora_folders.write(tmp_path / "lora", MODEL, **asked)
    with pytest.raises(error, match=re.escape(text)) as caught:
        opened(folder)
    assert str(folder) in str(caught.value)


def test_a_bound_of_its_own_holds_beside_that_of_all(tmp_path):
    folder = lora_folders.write(tmp_path / "lora", MODEL, rank=4)
    assert opened(folder, own_max_rank=4).rank == 4
    with pytest.raises(UnsupportedModel, match=r"r is 4; at most 3 is allowed for it \(maxRank\)"):
        opened(folder, own_max_rank=3)
    with pytest.raises(UnsupportedModel, match=r"r is 4; at most 3 is allowed here \(model.maxAdapterRank\)"):
        opened(folder, max_rank=3, own_max_rank=4)


@pytest.mark.parametrize("file", ["adapter_config.json", "adapter_model.safetensors"])
def test_files_that_are_missing_or_damaged(file, tmp_path):
    path = lora_folders.write(tmp_path / "lora", MODEL) / file
    for content, said in (
        (path.read_bytes()[:-20], ""),
        (b"version https://git-lfs.github.com/spec/v1", ".*git lfs pull"),
    ):
        path.write_bytes(content)
        with pytest.raises(CorruptModel, match=re.escape(str(path)) + said):
            opened(path.parent)
    path.unlink()
    with pytest.raises(ModelNotFound, match=re.escape(str(path))):
        opened(path.parent)


def test_files_that_changed_since_they_were_opened_are_not_read(tmp_path):
    folder = lora_folders.write(tmp_path, MODEL)
    found = opened(folder)
    lora_folders.write(tmp_path, MODEL, seed=1)
    with pytest.raises(CorruptModel, match="have changed since this worker read them"):
        found.read()
    lora_folders.write(tmp_path, MODEL)
    config = folder / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"lora_alpha": 3}))
    with pytest.raises(CorruptModel, match="have changed"):
        found.read()


def test_values_that_are_no_numbers_are_not_read(tmp_path):
    name = f"base_model.model.{UP}.lora_A.weight"
    found = opened(lora_folders.write(tmp_path, MODEL, change=lambda tensors: tensors[name].fill_(float("nan"))))
    with pytest.raises(CorruptModel, match=rf"{re.escape(name)} has values that are not finite"):
        found.read()
