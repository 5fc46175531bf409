#!/usr/bin/env python3
"""Quantizes the built-in model to each format of Hugging Face folders, and compares the logprobs of real text.

    PYTHONPATH=tests/support python benchmarks/engine/quantization_error.py

Weights of linear layers are rounded to nearest, without calibration, and packed as the tools of each format do. The
text is Python's own documentation of its language, in pieces of 500 tokens. An error is the mean absolute difference
between the text's logprobs by this model and by the original one in float32. The built-in file has 4-bit codes, which
are dequantized first.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from pydoc_data.topics import topics
from tempfile import TemporaryDirectory

import quantized_folders as folders
import torch
from quantized_folders import KINDS, Kind
from safetensors.torch import save_file

from legato_cli.models import model
from legato_engine import processor
from legato_engine.models.config import ModelConfig
from legato_engine.runner import formats
from legato_engine.runner.runner import Runner
from legato_engine.scheduler.batch import Batch, Row, Scored, Targets
from legato_engine.weights.checkpoint import Checkpoint
from legato_engine.weights.opening import open_weights
from legato_gateway.tokenizer import gguf

BLOCK_SIZE, PIECE = 16, 500
GROUP = 64  # divides the 576 inputs of SmolLM2-135M, which 128 does not
FORMATS = {
    "`fp8`, blocks of 128×128": KINDS["fp8, blocks"],
    "`fp8`, tensor": KINDS["fp8, tensor, static"],
    "`float-quantized`, output": KINDS["float-quantized, channel"],
    "`int-quantized`, output": KINDS["int-quantized"],
    "`gptq`, 8 bits, groups of 64": KINDS["gptq, 8 bits"],
    "`gptq`, 4 bits, groups of 64": Kind(folders.gptq_config(4, GROUP), folders.gptq(4, GROUP)),
    "the same in the order of `desc_act`": Kind(
        folders.gptq_config(4, GROUP, desc_act=True), folders.gptq(4, GROUP, act_order=True)
    ),
    "`pack-quantized` W4A16, groups of 32": Kind(
        folders.compressed("pack-quantized", "group", bits=4, group=32), folders.packed(4, 32)
    ),
    "`awq`, groups of 64": Kind(folders.AWQ | {"group_size": GROUP}, folders.awq(GROUP)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="Auto", help="of all models but the original (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=4000, help="a multiple of 500 (default: %(default)s)")
    parser.add_argument("--only", default="", help="formats whose name contains this text (default: all)")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    path = model.resolve("builtin:smollm2-135m-instruct", print)
    original, pieces = open_weights(path), text(path, args.tokens)

    def score(checkpoint: Checkpoint, dtype: str) -> torch.Tensor:
        return logprobs(load(checkpoint, dtype, args.threads), pieces)

    truth = score(original, "float32")
    print("| format | bits per weight in memory | error | perplexity |\n" + "| --- " * 4 + "|")
    show("original, float32", 32, truth, truth)
    show("original", held_bits(original, args.dtype), score(original, args.dtype), truth)
    for name, kind in FORMATS.items():
        if args.only not in name:
            continue
        with TemporaryDirectory() as folder:
            quantize(original, kind, Path(folder))
            checkpoint = open_weights(folder)
            show(name, held_bits(checkpoint, args.dtype), score(checkpoint, args.dtype), truth)


def text(path: Path, tokens: int) -> list[list[int]]:
    """Token ids in pieces of PIECE + 1, of which all but the first are scored."""
    ids = gguf.from_gguf(path).tokenizer.encode("\n".join(topics.values())[: 10 * tokens]).ids
    pieces = [ids[first : first + PIECE + 1] for first in range(0, tokens, PIECE)]
    assert all(len(piece) == PIECE + 1 for piece in pieces), "the text is too short"
    return pieces


def quantize(original: Checkpoint, kind: Kind, path: Path) -> None:
    """Writes a folder whose linear layers have this format; other weights are float32."""
    tensors = {}
    for name in sorted(original.names()):
        weight = original.vector(name)
        if name.endswith("_proj.weight"):
            stored = kind.pack(weight).tensors
            tensors |= {f"{name.removesuffix('weight')}{part}": each.contiguous() for part, each in stored.items()}
        else:
            tensors[name] = weight
    save_file(tensors, path / "model.safetensors")
    config = huggingface_config(original.config) | {"quantization_config": dict(kind.config)}
    (path / "config.json").write_text(json.dumps(config))


def huggingface_config(config: ModelConfig) -> dict[str, object]:
    return {
        "architectures": [config.architecture],
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_length,
        "rope_theta": config.rope_theta,
        "rms_norm_eps": config.rms_norm_eps,
        "tie_word_embeddings": config.tie_word_embeddings,
    }


def load(checkpoint: Checkpoint, dtype: str, threads: int) -> Runner:
    return Runner.load(
        checkpoint,
        block_size=BLOCK_SIZE,
        kv_cache_bytes=64 << 20,
        dtype=dtype,
        threads=threads,
        max_length=PIECE + BLOCK_SIZE,
    )


def logprobs(runner: Runner, pieces: Sequence[Sequence[int]]) -> torch.Tensor:
    """Logprobs of all tokens but the first of each piece."""

    def scored(piece: Sequence[int]) -> Iterator[float]:
        blocks = range(1, 1 + runner.layout.blocks_for(PIECE))
        (output,) = runner.step(Batch((Row(piece[:-1], 0, blocks, targets=Targets(piece[1:], 1)),)))
        assert isinstance(output, Scored)
        assert not output.fault
        return (each.logprob for each in output.logprobs)

    return torch.tensor([value for piece in pieces for value in scored(piece)])


def held_bits(checkpoint: Checkpoint, dtype: str) -> float:
    """Bits per weight of linear layers in memory, scales included."""
    chosen = formats.choose(dtype, processor.detect(), None, checkpoint.config, BLOCK_SIZE)
    sizes = {name: prod(checkpoint.shape(name)) for name in checkpoint.names() if name.endswith("_proj.weight")}
    held = sum(size * chosen.value_bytes(checkpoint, name) for name, size in sizes.items())
    return 8 * held / sum(sizes.values())


def show(name: str, bits: float, found: torch.Tensor, truth: torch.Tensor) -> None:
    error, perplexity = float((found - truth).abs().mean()), float((-found.mean()).exp())
    print(f"| {name} | {bits:.3g} | {error:.4f} | {perplexity:.2f} |", flush=True)


if __name__ == "__main__":
    main()
