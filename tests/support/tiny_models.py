"""Tiny models: their configs, random weights in memory, as floats or as codes, and processors that compute them."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from packed_weights import packed

from legato_engine import processor
from legato_engine.models.config import ModelConfig
from legato_engine.processor import Processor
from legato_engine.weights.checkpoint import Checkpoint
from legato_engine.weights.expected import expected_shapes
from legato_engine.weights.packed import Packed

LLAMA = ModelConfig(
    architecture="LlamaForCausalLM", layers=2, hidden_size=96, heads=6, kv_heads=2, head_dim=32,
    intermediate_size=160, vocab_size=320, max_length=1024, rope_theta=10000.0, rope_scaling=None,
    rms_norm_eps=1e-5, tie_word_embeddings=False, sliding_window=None, attention_bias=False, mlp_bias=False,
)  # fmt: skip
# On each, `auto` computes in these formats.
PROCESSORS = {
    "codes": Processor(avx512=True, bf16=False, amx=False, tiles_described=True),
    "int8": Processor(avx512=True, bf16=False, amx=False, tiles_described=True, vnni=True),
    "int8-bf16": Processor(avx512=True, bf16=True, amx=False, tiles_described=True, vnni=True),
    "int8-avx2": Processor(avx512=False, bf16=False, amx=False, tiles_described=True, avx2=True),
    "tiles": Processor(avx512=True, bf16=True, amx=True, tiles_described=True),
}
Tensors = dict[str, torch.Tensor]


def llama(**changes: Any) -> ModelConfig:
    return replace(LLAMA, **changes)


def prompt(seed: int, length: int, vocab: int = 300) -> list[int]:
    return torch.randint(vocab, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def on(form: str, *given: Any) -> Any:
    """A parameter `form` and others, for processors that have what its kernels need."""
    here, needed = processor.detect(), PROCESSORS[form]
    missing = [name for name in ("vnni", "bf16", "amx", "avx2") if getattr(needed, name) and not getattr(here, name)]
    skip = pytest.mark.skipif(bool(missing), reason=f"this processor has no {', '.join(missing)}")
    return pytest.param(form, *given, marks=skip)


class RandomCheckpoint(Checkpoint):
    """Weights drawn once from a fixed seed: matrices as codes of the type that `kinds` says for their name, or as
    float32 for None. `change` edits those of float32.
    """

    def __init__(
        self,
        config: ModelConfig,
        change: Callable[[Tensors], None] = lambda tensors: None,
        kinds: Callable[[str], str | None] = lambda name: None,
    ) -> None:
        self.path, self.config, self.fingerprint = Path("random"), config, "random"
        draw = torch.Generator().manual_seed(7)
        self._tensors: Tensors = {}
        self._packed: dict[str, Packed] = {}
        for name, shape in expected_shapes(config).items():
            if len(shape) == 2 and (kind := kinds(name)) is not None:
                self._packed[name] = packed(kind, *shape, draw)
            else:
                spread = 0.15 if len(shape) == 2 else 0.1
                self._tensors[name] = torch.randn(shape, generator=draw) * spread + (len(shape) == 1)
        change(self._tensors)

    def spans(self) -> Mapping[Path, list[Any]]:
        return {}

    def names(self) -> frozenset[str]:
        return frozenset((*self._tensors, *self._packed))

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._packed[name].codes.shape if name in self._packed else self._tensors[name].shape)

    def tensor(self, name: str) -> torch.Tensor:
        return self._packed[name].floats() if name in self._packed else self._tensors[name]

    def packed(self, name: str) -> Packed | None:
        return self._packed.get(name)
