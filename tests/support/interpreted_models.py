"""Tiny random models, computed by Triton's kernels in the interpreter."""

from dataclasses import replace

from tiny_families import FAMILIES
from tiny_models import llama, prompt

from legato_engine.backends.cuda.device import Interpreted
from legato_engine.runner.runner import Runner
from legato_engine.weights.checkpoint import Checkpoint

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


def load(checkpoint: Checkpoint, **changes: object) -> Runner:
    given = {"block_size": 16, "kv_cache_bytes": 4 << 20, "dtype": "float32", "max_length": 256, "max_batch": 8}
    return Runner.load(checkpoint, **given | {"gpu": Interpreted(2), "chunk_tokens": 64} | changes)


def prompts(vocab: int, lengths: tuple[int, ...] = (5, 40, 17, 71)) -> list[list[int]]:
    return [prompt(seed, length, vocab) for seed, length in enumerate(lengths)]
