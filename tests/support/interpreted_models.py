"""Tiny random models, computed by Triton's kernels in the interpreter."""

import sys
from dataclasses import replace
from pathlib import Path

import torch
from tiny_families import FAMILIES
from tiny_models import RandomCheckpoint, llama, prompt

from legato_engine.backends.cuda.device import Interpreted
from legato_engine.models.config import ModelConfig
from legato_engine.runner.plan import RunnerOptions
from legato_engine.runner.runner import Runner
from legato_engine.weights.checkpoint import Checkpoint
from legato_engine.weights.grouped import Grouped, GroupedForm

sys.path.append(str(Path(__file__).parents[1] / "gpu"))
import made_codes

LLAMA = llama(hidden_size=64, heads=4, intermediate_size=96, max_length=512)
MODELS = {
    "llama": LLAMA,
    "tied": replace(LLAMA, tie_word_embeddings=True, kv_heads=4),
    "mistral": replace(LLAMA, architecture="MistralForCausalLM", sliding_window=24),
    "qwen 2": replace(LLAMA, architecture="Qwen2ForCausalLM", sliding_window=24, full_attention=(0,)),
    "qwen 3": replace(LLAMA, architecture="Qwen3ForCausalLM", head_dim=64),
    "biases": replace(LLAMA, attention_bias=True, mlp_bias=True, vocab_size=333),
    "odd sizes": replace(LLAMA, hidden_size=60, head_dim=24, heads=3, kv_heads=1, intermediate_size=100),
    **FAMILIES,
}


class RandomCodes(RandomCheckpoint):
    """A Llama whose linear layers are random codes, in a form of `made_codes.FORMS`."""

    def __init__(self, form: str, config: ModelConfig = LLAMA) -> None:
        super().__init__(config)
        self._form = form

    def quantized(self) -> frozenset[str]:
        return frozenset(name for name in self.names() if name.endswith("_proj.weight"))

    def grouped_form(self, name: str) -> GroupedForm | None:
        return made_codes.form_of(self._form, self.shape(name)[1]) if name in self.quantized() else None

    def grouped(self, name: str, _place: torch.device | None = None) -> Grouped | None:
        return made_codes.made(self._form, *self.shape(name)) if name in self.quantized() else None


def random_weights(name: str) -> Checkpoint:
    """Weights of MODELS, or random codes in a form of `made_codes.FORMS`."""
    return RandomCheckpoint(MODELS[name]) if name in MODELS else RandomCodes(name)


def load(checkpoint: Checkpoint, **changes: object) -> Runner:
    given = {"block_size": 16, "kv_cache_bytes": 4 << 20, "dtype": "float32", "max_length": 256, "max_batch": 8}
    return Runner.load(checkpoint, RunnerOptions(**given | {"gpu": Interpreted(2), "chunk_tokens": 64} | changes))


def prompts(vocab: int, lengths: tuple[int, ...] = (5, 40, 17, 71)) -> list[list[int]]:
    return [prompt(seed, length, vocab) for seed, length in enumerate(lengths)]
