"""A model of quantized types, each of another form of codes, computed from these: greedy tokens are transformers'."""

from pathlib import Path

import tiny_files as files
from gguf import GGMLQuantizationType as Type
from tiny_models import PROCESSORS, prompt

from legato_engine.runner.runner import Runner
from legato_engine.weights.opening import open_weights

# As llama.cpp mixes them: some matrices of a Q4_K file have more bits.
MIXED = {"attn_v": Type.Q6_K, "ffn_down": Type.Q5_K, "token_embd": Type.Q6_K, "attn_q": Type.Q8_0, "ffn_up": Type.Q5_1}


def test_greedy_tokens_are_those_of_transformers(sequences, oracle_of, tmp_path: Path) -> None:
    others = {other: files.tiny(other) for other in MIXED.values()}
    tensors = files.tiny(Type.Q4_K) | {
        name: others[other][name] for name in files.TENSORS for part, other in MIXED.items() if part in name
    }
    checkpoint = open_weights(files.write_gguf(tmp_path / "tiny.gguf", tensors))
    given = {"block_size": 16, "kv_cache_bytes": 8 << 20, "dtype": "auto", "threads": 1, "max_length": 128}
    runner = Runner.load(checkpoint, instructions=PROCESSORS["codes"], **given)
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
