"""The first question of the README, with the format that this processor gets by default: it is answered correctly.

The built-in model is small: that no rounding decides such an answer is a property of the question, too.
"""

from legato_engine.runner.plan import RunnerOptions
from legato_engine.runner.runner import Runner

QUESTION = [{"role": "user", "content": "Name the capital of France."}]


def test_the_default_format_answers_the_readmes_question(smollm2, smollm2_tokenizer, sequences):
    text = smollm2_tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True, tokenize=False)
    prompt = smollm2_tokenizer.encode(text, add_special_tokens=False)
    runner = Runner.load(
        smollm2, RunnerOptions(block_size=16, kv_cache_bytes=64 << 20, dtype="Auto", threads=1, max_length=512)
    )
    run = sequences(runner, [prompt], 8)
    run.prefill(0, chunk=512)
    run.decode([0])
    assert "Paris" in smollm2_tokenizer.decode(run.outputs[0])
