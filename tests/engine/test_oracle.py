"""Greedy float32 output of the real model is that of transformers. Tiny models: core/test_oracle_serving."""

from legato_engine.runner.plan import RunnerOptions
from legato_engine.runner.runner import Runner


def test_the_real_model(oracle_of, smollm2, prompts, sequences):
    """Prompts of all kinds, each computed whole, then decoded in one batch."""
    runner = Runner.load(
        smollm2, RunnerOptions(block_size=16, kv_cache_bytes=128 << 20, dtype="float32", threads=1, max_length=512)
    )
    run = sequences(runner, prompts, 8)
    for index in range(len(prompts)):
        run.prefill(index, chunk=4096)
    run.decode(range(len(prompts)))
    oracle = oracle_of(smollm2)
    for prompt, output in zip(prompts, run.outputs, strict=True):
        assert len(output) == run.new_tokens
        oracle.check(prompt, output)
