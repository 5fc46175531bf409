#!/usr/bin/env python3
"""Rounds the built-in model to each quantized format, and compares the logprobs of real text.

    PYTHONPATH=tests/support python benchmarks/engine/quantization_error.py

Weights of linear layers are rounded to nearest, without calibration, packed as the tools of each format do, and read by
the engine. transformers then computes in float32, so that only the format's own rounding counts; rows with inputs round
the inputs of linear layers, too. The text is Python's own documentation of its language, in pieces of 500 tokens. An
error is the mean absolute difference of the text's logprobs to the original weights', which are the dequantized 4-bit
codes of the built-in file.
"""

import argparse
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from pydoc_data.topics import topics
from tempfile import TemporaryDirectory

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import quantized_folders as folders
import torch
from gguf import GGMLQuantizationType as Type
from gguf import quants
from huggingface_oracle import SDPA_E4M3, huggingface_model, sizes
from quantized_folders import KINDS, Kind, Stored
from safetensors.torch import save_file

from legato_cli.models import model
from legato_engine import processor
from legato_engine.runner import formats
from legato_engine.weights import gguf_blocks
from legato_engine.weights.checkpoint import Checkpoint
from legato_engine.weights.opening import open_weights
from legato_gateway.tokenizer import gguf

Rounding = Callable[[torch.Tensor], torch.Tensor]
BLOCK_SIZE, PIECE = 16, 500
GROUP = 64  # divides the 576 inputs of SmolLM2-135M, which 128 does not


def bfloat16(x: torch.Tensor) -> torch.Tensor:
    return x.bfloat16().float()


def float8(x: torch.Tensor) -> torch.Tensor:
    """A scale per token, or per output of a weight."""
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-12) / folders.LARGEST
    return (x / scale).to(folders.FLOAT8).float() * scale


def int8(x: torch.Tensor) -> torch.Tensor:
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127
    return (x / scale).round() * scale


def int8_groups(x: torch.Tensor) -> torch.Tensor:
    """A scale per token and 32 inputs, as CPUs compute from codes."""
    return int8(x.unflatten(-1, (-1, 32))).flatten(-2)


def block(kind: Type) -> Kind:
    """A GGUF type. The `gguf` library rounds and dequantizes; the folder has its values in float32."""

    def pack(weight: torch.Tensor) -> Stored:
        values = torch.from_numpy(quants.dequantize(quants.quantize(weight.numpy(), kind), kind))
        return Stored({"weight": values}, values)

    return Kind({}, pack)


def rounded(change: Rounding) -> Kind:
    return Kind({}, lambda weight: Stored({"weight": change(weight)}, change(weight)))


def some(parts: Sequence[str]) -> Kind:
    """FP8 for layers whose names contain one of `parts`."""
    return Kind({"only": parts}, rounded(float8).pack)


@dataclass(frozen=True, slots=True)
class Case:
    weights: Kind | None = None  # None: the original ones
    inputs: Rounding | None = None
    quantization: str = "None"  # engine.quantization
    bits: float | None = None  # per weight in memory; None: as the checkpoint is kept
    attention: str = "sdpa"  # or with KV in e4m3


CASES: Mapping[str, Case] = {
    "original": Case(),
    "bfloat16 weights and inputs": Case(rounded(bfloat16), bfloat16),
    "original weights, inputs in 8-bit groups of 32": Case(inputs=int8_groups),
    "`engine.quantization: FP8`, weights only": Case(rounded(lambda weight: weight), quantization="FP8"),
    "the same with inputs in FP8": Case(rounded(lambda weight: weight), float8, "FP8"),
    "original weights, inputs in FP8": Case(inputs=float8),
    "`engine.quantization: Int8`, weights only": Case(rounded(lambda weight: weight), quantization="Int8"),
    "the same with inputs in 8 bits": Case(rounded(lambda weight: weight), int8, "Int8"),
    "FP8 of one layer of 30": Case(some(["layers.15."])),
    "FP8 without `down_proj` and `v_proj`": Case(some(["q_proj", "k_proj", "o_proj", "gate_proj", "up_proj"])),
    "`fp8`, blocks of 128×128": Case(KINDS["fp8, blocks"]),
    "`fp8`, tensor": Case(KINDS["fp8, tensor, static"]),
    "`gptq`, 8 bits, groups of 64": Case(KINDS["gptq, 8 bits"]),
    "`gptq`, 4 bits, groups of 64": Case(Kind(folders.gptq_config(4, GROUP), folders.gptq(4, GROUP))),
    "`pack-quantized` W4A16, groups of 32": Case(
        Kind(folders.compressed("pack-quantized", "group", bits=4, group=32), folders.packed(4, 32))
    ),
    "`awq`, groups of 64": Case(Kind(folders.AWQ | {"group_size": GROUP}, folders.awq(GROUP))),
    "`engine.kvCacheDtype: FP8`": Case(attention=SDPA_E4M3),
    **{
        f"GGUF {kind.name}": Case(block(kind), bits=gguf_blocks.KINDS[kind].bits)
        for kind in (Type.Q8_0, Type.Q5_1, Type.Q5_0, Type.Q4_0)
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4000, help="a multiple of 500 (default: %(default)s)")
    parser.add_argument("--only", default="", help="formats whose name contains this text (default: all)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--gguf",
        type=Path,
        nargs="*",
        default=[],
        help="the same model in other types, as llama.cpp's `llama-quantize --allow-requantize` writes it",
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    path = model.resolve("builtin:smollm2-135m-instruct", print)
    original, pieces = open_weights(path), text(path, args.tokens)
    oracle = Oracle(original)
    truth = oracle.logprobs(pieces, None)
    print("| format | bits per weight in memory | rounding of weights | error | perplexity |\n" + "| --- " * 5 + "|")
    for name, case in CASES.items():
        if args.only not in name:
            continue
        with TemporaryDirectory() as folder:
            checkpoint = original if case.weights is None else quantize(original, case, Path(folder))
            off = oracle.load(checkpoint)
            logprobs = oracle.logprobs(pieces, case.inputs, case.attention)
            show(name, case.bits or held_bits(checkpoint), off, logprobs, truth)
    for file in args.gguf:
        checkpoint = open_weights(file)
        off = oracle.load(checkpoint)
        show(f"GGUF {file.stem} by llama.cpp", held_bits(checkpoint), off, oracle.logprobs(pieces, None), truth)


class Oracle:
    """transformers' model, with the linear layers of a checkpoint."""

    def __init__(self, original: Checkpoint) -> None:
        self._model = huggingface_model(original, original.config)
        self._linear = {
            name: module
            for name, module in self._model.named_modules()
            if isinstance(module, torch.nn.Linear) and name.endswith("_proj")
        }
        self._weights = {name: module.weight.data for name, module in self._linear.items()}
        self._inputs: Rounding | None = None
        for module in self._linear.values():
            module.register_forward_pre_hook(lambda _, given: self._inputs and (self._inputs(given[0]),))

    def load(self, checkpoint: Checkpoint) -> float:
        """Returns how far the weights are off: the root of the mean square, relative to the original weights."""
        off = total = 0.0
        for name, module in self._linear.items():
            module.weight.data = checkpoint.tensor(f"{name}.weight").float()
            off += float((module.weight.data - self._weights[name]).square().sum())
            total += float(self._weights[name].square().sum())
        return float((off / total) ** 0.5)

    def logprobs(
        self, pieces: Sequence[Sequence[int]], inputs: Rounding | None, attention: str = "sdpa"
    ) -> torch.Tensor:
        """Logprobs of all tokens but the first of each piece, with rounded inputs of linear layers."""
        self._inputs = inputs
        self._model.config._attn_implementation = attention  # type: ignore[union-attr]
        with torch.inference_mode():
            return torch.cat([self._piece(piece) for piece in pieces])

    def _piece(self, piece: Sequence[int]) -> torch.Tensor:
        logprobs = self._model(torch.tensor([piece[:-1]])).logits[0].log_softmax(-1)
        return logprobs.gather(1, torch.tensor(piece[1:])[:, None])[:, 0]


def text(path: Path, tokens: int) -> list[list[int]]:
    """Token ids in pieces of PIECE + 1, of which all but the first are scored."""
    ids = gguf.from_gguf(path).tokenizer.encode("\n".join(topics.values())[: 10 * tokens]).ids
    pieces = [ids[first : first + PIECE + 1] for first in range(0, tokens, PIECE)]
    assert all(len(piece) == PIECE + 1 for piece in pieces), "the text is too short"
    return pieces


def quantize(original: Checkpoint, case: Case, path: Path) -> Checkpoint:
    """Writes a folder whose linear layers have this format, other weights being float32, and opens it."""
    assert case.weights is not None
    config, tensors, packed = dict(case.weights.config), {}, {}
    only = config.pop("only", [""])
    for name in sorted(original.names()):
        weight = original.vector(name)
        if name.endswith("_proj.weight") and any(part in name for part in only):
            stored = case.weights.pack(weight)
            packed[name] = stored.values
            tensors |= {
                f"{name.removesuffix('weight')}{part}": each.contiguous() for part, each in stored.tensors.items()
            }
        else:
            tensors[name] = weight
    save_file(tensors, path / "model.safetensors")
    declared = {"quantization_config": config} if config else {}
    described = {"architectures": [original.config.architecture]} | sizes(original.config)
    (path / "config.json").write_text(json.dumps(described | declared))
    checkpoint = open_weights(path, case.quantization)
    if case.quantization == "None":
        assert all(torch.equal(checkpoint.tensor(name), values) for name, values in packed.items())
    return checkpoint


def held_bits(checkpoint: Checkpoint) -> float:
    """Bits per weight of linear layers in this processor's memory, scales included."""
    chosen = formats.choose("Auto", processor.detect(), None, checkpoint.config, BLOCK_SIZE)
    sizes = {name: prod(checkpoint.shape(name)) for name in checkpoint.names() if name.endswith("_proj.weight")}
    held = sum(size * chosen.value_bytes(checkpoint, name) for name, size in sizes.items())
    return 8 * held / sum(sizes.values())


def show(name: str, bits: float, off: float, logprobs: torch.Tensor, truth: torch.Tensor) -> None:
    error, perplexity = float((logprobs - truth).abs().mean()), float((-logprobs.mean()).exp())
    print(f"| {name} | {bits:.3g} | {off:.2%} | {error:.4f} | {perplexity:.2f} |", flush=True)


if __name__ == "__main__":
    main()
