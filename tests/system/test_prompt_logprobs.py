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
    """Log probabilities of all tokens, at each place but the first."""
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


def test_evaluations_get_those_of_prompts_and_what_follows_them(service: Any, oracle: torch.nn.Module) -> None:
    """As lm-evaluation-harness's `local-completions` asks: several prompts, echoed, with one token more or none. It is
    too large to be a dependency of tests."""
    prompts = [PROMPT[:5], PROMPT[40:80], PROMPT[300:330]]
    for most in (1, 0):
        body = {"model": "smollm2", "prompt": prompts, "max_tokens": most, "logprobs": 1, "echo": True}
        answer = service.http.post("/v1/completions", json={**body, "temperature": 0, "seed": 1234})
        for choice, prompt in zip(answer.json()["choices"], prompts, strict=True):
            rows, parts = logprobs(oracle, prompt), choice["logprobs"]
            assert parts["token_logprobs"][1 : len(prompt)] == own(rows, prompt)
            likeliest = [max(place.values()) for place in parts["top_logprobs"][1 : len(prompt)]]
            assert likeliest == pytest.approx(rows.max(1).values.tolist(), abs=NEAR)
