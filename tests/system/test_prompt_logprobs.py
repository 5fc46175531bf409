"""Log-probabilities of prompts, which prefill and decode workers compute together: none is left out, and each agrees
with transformers."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import wordy_model
from huggingface_oracle import huggingface_model

from legato_engine.weights.opening import open_weights

NEAR = 2e-3
PROMPT = [1000 + i * 7919 % 40_000 for i in range(450)]


@pytest.fixture(scope="module")
def oracle() -> torch.nn.Module:
    torch.set_num_threads(1)  # beside a service, more would wait for one another
    checkpoint = open_weights(wordy_model.path())
    return huggingface_model(checkpoint, checkpoint.config)


def logprobs(oracle: torch.nn.Module, prompt: Sequence[int]) -> torch.Tensor:
    """Of all tokens, at each place but the first."""
    with torch.inference_mode():
        found: torch.Tensor = oracle(input_ids=torch.tensor([list(prompt)])).logits[0].log_softmax(1)[:-1]
    return found


def own(rows: torch.Tensor, prompt: Sequence[int]) -> Any:
    return pytest.approx(rows.gather(1, torch.tensor(prompt[1:])[:, None])[:, 0].tolist(), abs=NEAR)


def test_long_prompts_are_whole_wherever_they_are_computed(service: Any, oracle: torch.nn.Module) -> None:
    """Eight chunks on the prefill worker, then all of it again although both workers have its blocks cached."""
    rows = logprobs(oracle, PROMPT)
    for _ in range(2):
        answer = service.client.completions.create(
            model="smollm2", prompt=PROMPT, max_tokens=2, n=2, temperature=0, extra_body={"prompt_logprobs": 3}
        )
        assert service.record(answer.id)["prefill"] == "test-prefill-0", "it was handed off"
        assert answer.usage.prompt_tokens_details.cached_tokens == 0
        for choice in answer.choices:
            first, *listed = choice.prompt_logprobs
            assert first is None
            told = [place[str(token)]["logprob"] for place, token in zip(listed, PROMPT[1:], strict=True)]
            assert told == own(rows, PROMPT)
            assert all(3 <= len(place) <= 4 for place in listed)
        likeliest = [min(place.values(), key=lambda one: one["rank"]) for place in listed]
        assert [one["logprob"] for one in likeliest] == pytest.approx(rows.max(1).values.tolist(), abs=NEAR)


def test_a_killed_worker_leaves_nothing_out(service: Any, oracle: torch.nn.Module) -> None:
    """The prefill worker, while it computes the prompt or right after."""
    prompt = PROMPT[::-1] * 6
    stream = service.stream(prompt, 1, logprobs=0, echo=True, temperature=0)
    service.until(lambda: service.worker("test-prefill-0").get("running"), "the prompt is computed", 0.002)
    epoch = service.epoch("test-prefill-0")
    for process in service.processes("test-prefill-0"):
        process.kill()
    assert stream.result()
    first, *told = stream.logprobs[: len(prompt)]
    assert first is None
    assert [min(place.values()) for place in told] == own(logprobs(oracle, prompt), prompt), "the token's own only"
    service.until_connected("test-prefill-0", not_epoch=epoch)
    service.until_idle()


def test_chats_have_them_beside_their_choices(service: Any) -> None:
    answer = service.client.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": "Name the capital of France."}],
        max_tokens=1,
        extra_body={"prompt_logprobs": 0},
    )
    listed = answer.prompt_logprobs
    assert len(listed) == answer.usage.prompt_tokens
    assert listed[0] is None
    assert all(one["rank"] >= 1 and one["logprob"] <= 0 for place in listed[1:] for one in place.values())
