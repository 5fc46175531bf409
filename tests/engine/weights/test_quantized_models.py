"""Models of quantized weights, from their codes or dequantized: greedy tokens are transformers'."""

from pathlib import Path

import interpreted_models
import pytest
import quantized_folders as folders
import tiny_files as files
import torch
from gguf import GGMLQuantizationType as Type
from tiny_models import PROCESSORS, prompt

from legato_engine.backends.cuda.device import Interpreted
from legato_engine.runner import formats, sizing
from legato_engine.runner.plan import RunnerOptions
from legato_engine.runner.runner import Runner
from legato_engine.scheduler.batch import Draw, Row
from legato_engine.weights.checkpoint import Checkpoint
from legato_engine.weights.opening import open_weights
from legato_protocol.sampling.parameters import SamplingParams

# As llama.cpp mixes them: some matrices of a Q4_K file have more bits.
MIXED = {"attn_v": Type.Q6_K, "ffn_down": Type.Q5_K, "token_embd": Type.Q6_K, "attn_q": Type.Q8_0, "ffn_up": Type.Q5_1}


@pytest.mark.parametrize("experts", [0, 4])
def test_greedy_tokens_are_those_of_transformers(sequences, oracle_of, tmp_path: Path, experts: int) -> None:
    others = {other: files.tiny(other, experts=experts) for other in MIXED.values()}
    tensors = files.tiny(Type.Q4_K, experts=experts)
    tensors |= {name: others[other][name] for name in tensors for part, other in MIXED.items() if part in name}
    metadata = {"expert_count": experts, "expert_used_count": 2} if experts else {}
    checkpoint = open_weights(files.write_gguf(tmp_path / "tiny.gguf", tensors, **metadata))
    given = {"block_size": 16, "kv_cache_bytes": 8 << 20, "dtype": "auto", "threads": 1, "max_length": 128}
    runner = Runner.load(checkpoint, RunnerOptions(instructions=PROCESSORS["codes"], **given))
    prompts = [prompt(count, count, files.VOCAB) for count in (1, 7, 40, 90)]

    run = sequences(runner, prompts, new_tokens=8)
    run.prefill(0, 1)
    run.prefill(1, 4)
    run.prefill_together((2, 3))
    run.decode(range(4))

    values = sum(
        checkpoint.shape(name)[0] * checkpoint.shape(name)[-1] for name in checkpoint.names() if "norm" not in name
    )
    assert runner.weight_bytes < 1.2 * values
    for given, output in zip(prompts, run.outputs, strict=True):
        oracle_of(checkpoint).check(given, output)


DEQUANTIZED, KEPT = "of 14 weights, 14 dequantized to float32", "of 14 weights, 14 kept as codes"
DENSE_FOLDERS = [
    ("fp8, blocks", "auto", f"fp8 (FP8, a scale per block of 128×128, for dynamic activations): {DEQUANTIZED}"),
    ("float-quantized, channel", "auto", DEQUANTIZED),
    ("int-quantized", "auto", KEPT),
    ("pack-quantized W4A16, bfloat16", "auto", KEPT),
    ("pack-quantized W8A16", "auto", KEPT),
    ("gptq", "auto", f"gptq (4-bit integers, a scale per 128 inputs): {KEPT}"),
    ("gptq", "float32", DEQUANTIZED),
    ("gptq, act order", "auto", DEQUANTIZED),
    ("gptq, 8 bits", "auto", KEPT),
    ("awq", "auto", KEPT),
]
DENSE, MOE = "LlamaForCausalLM", "Qwen3MoeForCausalLM"
GPT_OSS = "gpt-oss in MXFP4"
EXPERTS_DEQUANTIZED, EXPERTS_KEPT = (text.replace("14", "32") for text in (DEQUANTIZED, KEPT))
FOLDERS = [
    *((*row, DENSE) for row in DENSE_FOLDERS),
    ("fp8, blocks", "auto", EXPERTS_DEQUANTIZED, MOE),
    ("pack-quantized W4A16, bfloat16", "auto", EXPERTS_KEPT, MOE),
    ("gptq", "auto", EXPERTS_KEPT, MOE),
    ("awq", "auto", EXPERTS_KEPT, MOE),
    (GPT_OSS, "auto", "mxfp4 (FP4, a scale per 32 inputs): of 36 weights, 36 kept as codes", ""),
    (GPT_OSS, "float32", "of 36 weights, 36 dequantized to float32", ""),
]


def written(path: Path, name: str, architecture: str = DENSE) -> Checkpoint:
    if name == GPT_OSS:
        folders.write_gpt_oss(path)
    else:
        folders.write(path, ODD if name == "odd groups" else folders.KINDS[name], architecture=architecture)
    return open_weights(path)


@pytest.mark.parametrize(("name", "dtype", "text", "architecture"), FOLDERS)
def test_greedy_tokens_of_quantized_folders_are_those_of_transformers(
    sequences, oracle_of, tmp_path: Path, name: str, dtype: str, text: str, architecture: str
) -> None:
    checkpoint = written(tmp_path, name, architecture)
    given = {"block_size": 16, "kv_cache_bytes": 8 << 20, "dtype": dtype, "threads": 1, "max_length": 128}
    runner = Runner.load(checkpoint, RunnerOptions(instructions=PROCESSORS["codes"], **given))
    prompts = [prompt(count, count, files.VOCAB) for count in (1, 7, 40)]

    run = sequences(runner, prompts, new_tokens=32)
    run.prefill_together((0, 1, 2))
    run.decode(range(3))

    chosen = formats.choose(dtype, PROCESSORS["codes"], None, checkpoint.config, 16)
    vectors = sum(4 * shape[0] for shape in map(checkpoint.shape, checkpoint.names()) if len(shape) == 1)  # not counted
    needed = sizing.needs(checkpoint, chosen, 512, 64).weights - vectors
    assert runner.weight_bytes == pytest.approx(needed, rel=0.01)
    assert text in runner.formats
    for given, output in zip(prompts, run.outputs, strict=True):
        oracle_of(checkpoint).check(given, output)


ON_GPUS = [
    ("fp8, blocks", "14 kept as codes, activations of 16 bits (more than 128 rows: weights dequantized"),
    ("pack-quantized W4A16, asymmetric", "14 kept as codes (more than 128 rows: weights dequantized"),
    ("gptq, act order", "14 kept as codes"),
    ("gptq, 8 bits, asymmetric", "14 kept as codes"),
    (GPT_OSS, "36 kept as codes"),
    ("odd groups", "14 dequantized to float32, without a kernel on interpreter: model.layers.0.mlp.down_proj.weight"),
]
ODD = folders.Kind(folders.FP8 | {"weight_block_size": [128, 24]}, folders.dense((128, 24), "weight_scale_inv"))


@pytest.mark.parametrize(("name", "text"), ON_GPUS)
def test_a_gpu_computes_from_codes(sequences, oracle_of, tmp_path: Path, name: str, text: str) -> None:
    checkpoint, gpu = written(tmp_path, name), Interpreted(2)
    runner = interpreted_models.load(checkpoint, max_length=64, gpu=gpu)
    run = sequences(runner, [prompt(1, 40, files.VOCAB)], new_tokens=3)
    run.prefill(0, 40)
    run.decode([0])
    assert f"of {len(checkpoint.quantized())} weights, {text}" in runner.formats
    chosen = formats.choose("float32", PROCESSORS["codes"], gpu, checkpoint.config, 16)
    assert runner.weight_bytes == pytest.approx(sizing.needs(checkpoint, chosen, 512, 64).weights, rel=0.02)
    oracle_of(checkpoint).check(run.prompts[0], run.outputs[0])


@pytest.mark.parametrize(("name", "dtype", "text"), [
    ("fp8, blocks", "float32", "by Triton"), ("float-quantized, tensor", "bfloat16", "by torch._scaled_mm"),
])  # fmt: skip
def test_larger_steps_have_activations_in_fp8(tmp_path: Path, name: str, dtype: str, text: str) -> None:
    """Steps of up to 32 rows do not. Workers with and without such activations do not exchange KV."""
    folders.write(tmp_path, folders.KINDS[name])
    checkpoint, gpus = open_weights(tmp_path), [Interpreted(2, chip) for chip in ("sm_80", "sm_89")]
    for gpu in gpus:
        gpu.dtypes = (torch.float32, torch.bfloat16)
    without, applied = (interpreted_models.load(checkpoint, dtype=dtype, max_length=64, gpu=gpu) for gpu in gpus)
    assert f"14 kept as codes (more than 32 rows: FP8 activations, {text})" in applied.formats
    assert without.kv_revision != applied.kv_revision
    for count, least, most in ((32, 0, 1e-5), (40, 0.01, 0.3)):
        tokens = prompt(1, count, files.VOCAB)
        rows = (Row(tokens, 0, [1, 2, 3], (Draw(0, count, SamplingParams(max_tokens=1, seed=0), tokens, count),)),)
        expected = without.logits(rows)
        away = (applied.logits(rows) - expected).norm() / expected.norm()
        assert least <= away <= most
