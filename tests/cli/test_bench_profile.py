"""A profile is what running workers say of themselves."""

from typing import Any

import pytest

from legato_cli.bench import profile, workload
from legato_engine.runner.profile import StepTimes

TOKENS = workload.TokenRange(10, 1000)
PREFILL = {"per_step": 0.5, "per_token": 0.02, "per_pair": 0.001, "chunk_tokens": 512, "context": 9.0}
DECODE = {"per_step": 0.25, "per_row": 0.01, "per_context": 0.003}


def worker(role: str, prefill: Any = None, decode: Any = None, blocks: int = 100) -> dict[str, Any]:
    return {"role": role, "block_size": 16, "total_blocks": blocks, "prefill_cost": prefill, "decode_cost": decode}


def test_prompts_cost_what_prefill_workers_say_and_decoding_what_the_others_say() -> None:
    local = {**PREFILL, "per_token": 9.0}  # a few short prompts that decode workers computed themselves
    workers = [worker("prefill", PREFILL), worker("decode", local, DECODE), worker("decode", None, DECODE, blocks=90)]
    made = profile.of_workers([*workers, worker("decode")], "a test")
    assert made.step == StepTimes(0.25, 0.01, 0.003, 0.02, 0.001)
    assert (made.source, made.kv_tokens, made.start_seconds) == ("a test", 1440, 0.0)


def test_equal_workers_are_averaged_and_unified_ones_tell_both() -> None:
    slower = {name: 3 * value for name, value in DECODE.items()}
    made = profile.of_workers([worker("unified", PREFILL, DECODE), worker("unified", PREFILL, slower)], "a test")
    assert made.step == StepTimes(0.5, 0.02, 0.006, 0.02, 0.001)


@pytest.mark.parametrize(
    ("workers", "said"),
    [([worker("decode", None, DECODE)], "what prompts cost"), ([worker("prefill", PREFILL)], "what decoding costs")],
)
def test_what_nobody_measured_is_not_written(workers: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        profile.of_workers(workers, "a test")


@pytest.mark.anyio
async def test_without_a_service_there_is_no_profile() -> None:
    with pytest.raises(ValueError, match="no profile: no service is running"):
        await profile.read(None, None)


@pytest.mark.parametrize("context", [16, 300, 4096])
def test_loads_fit_the_context_and_repeat_nothing(context: int) -> None:
    requests = [request for _, _, each in profile.loads(context, TOKENS, 1) for request in each]
    assert all(len(request.prompt) + request.output_tokens <= context for request in requests)
    assert all(2 * len(request.prompt) <= context for request in requests)
    if context > 100:
        assert len({request.prompt for request in requests}) == len(requests)
        assert len({len(request.prompt) for request in requests}) > 1
