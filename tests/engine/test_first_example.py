"""The first question of the README, with the format that this processor gets by default: that it is answered rightly.

The built-in model is small: that no rounding decides such an answer is a property of the question, too.
"""

from transformers import PreTrainedTokenizerFast

from legato_engine.kvcache.block_pool import BlockPool
from legato_engine.kvcache.events import EventLog
from legato_engine.runner.runner import Runner
from legato_engine.scheduler.limits import SchedulerLimits
from legato_engine.scheduler.request import Request
from legato_engine.scheduler.scheduler import Scheduler
from legato_protocol.sampling_params import SamplingParams

QUESTION = [{"role": "user", "content": "Name the capital of France."}]


def test_the_default_format_answers_the_readmes_question(smollm2, smollm2_tokenizer: PreTrainedTokenizerFast) -> None:
    text = smollm2_tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True, tokenize=False)
    prompt = smollm2_tokenizer.encode(text, add_special_tokens=False)
    runner = Runner.load(smollm2, block_size=16, kv_cache_bytes=64 << 20, dtype="Auto", threads=1, max_length=512)
    limits = SchedulerLimits("unified", 16, max_length=512)
    scheduler = Scheduler(limits, BlockPool(runner.num_blocks, EventLog("epoch")), "revision")
    params = SamplingParams(max_tokens=8, seed=1, temperature=0.0)
    request = Request("r", 1, list(prompt), len(prompt), params, 1e9)
    scheduler.add(request, 0.0)
    while (batch := scheduler.schedule(0.0)) is not None:
        scheduler.process(batch, runner.step(batch), 0.0)
    assert "Paris" in smollm2_tokenizer.decode(request.tokens[len(prompt) :])
