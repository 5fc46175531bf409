"""What lm-evaluation-harness's `local-completions` sends and reads, against a service with prefill and decode apart.

Its requests and its arithmetic (lm_eval/models/openai_completions.py) are written down here: the harness itself is too
large to be a dependency of tests.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from huggingface_oracle import huggingface_model, smollm2_path

from legato_engine.weights.opening import open_weights
from legato_gateway.tokenizer.tokens import ModelTokenizer

Answers = list[tuple[float, bool]]  # sum of logprobs, and whether each token is the likeliest
NEAR = 0.02  # of a sum of logprobs, each within 2e-3
QUESTIONS = [
    ("The capital of France is", " Paris"),
    ("The capital of France is", " London"),
    ("Water freezes at zero degrees", " Celsius, and boils at one hundred."),
    ("1, 2, 3, 4, 5, 6,", " 7, 8, 9"),
    ("日本の首都は", "東京です。"),
    ("He said: That is all.", "<|im_end|>"),
]


@pytest.fixture(scope="module")
def service(shared_service: Callable[..., Any]) -> Any:
    return shared_service(chunk=64)


@pytest.fixture(scope="module")
def tokens() -> ModelTokenizer:
    return ModelTokenizer.load(smollm2_path())


@pytest.fixture(scope="module")
def oracle() -> torch.nn.Module:
    torch.set_num_threads(1)  # beside a service, more would wait for one another
    checkpoint = open_weights(smollm2_path())
    return huggingface_model(checkpoint, checkpoint.config)


def logprobs(oracle: torch.nn.Module, prompt: Sequence[int]) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = oracle(input_ids=torch.tensor([list(prompt)])).logits[0].log_softmax(1)
    return found


def loglikelihoods(
    service: Any, pairs: Sequence[tuple[list[int], list[int]]], **fields: Any
) -> list[tuple[float, bool]]:
    """As `create_payload` and `parse_logprobs` of the harness: one token is made, and cut off."""
    prompts = [context + continuation for context, continuation in pairs]
    body = {"prompt": prompts, "model": "smollm2", "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
    answer = service.http.post("/v1/completions", json={**body, "temperature": 0} | fields)
    assert answer.status_code == 200, answer.text
    end = -1 if fields.get("max_tokens", 1) else None
    found = []
    for choice, (context, _) in zip(sorted(answer.json()["choices"], key=lambda c: c["index"]), pairs, strict=True):
        own = choice["logprobs"]["token_logprobs"][len(context) : end]
        top = choice["logprobs"]["top_logprobs"][len(context) : end]
        found.append((sum(own), all(one == max(best.values()) for one, best in zip(own, top, strict=True))))
    return found


def expected(oracle: torch.nn.Module, context: list[int], continuation: list[int]) -> tuple[float, bool]:
    rows = logprobs(oracle, context + continuation)[len(context) - 1 : -1]
    own = rows.gather(1, torch.tensor(continuation)[:, None])[:, 0]
    return float(own.sum()), bool((rows.argmax(1) == torch.tensor(continuation)).all())


@pytest.mark.parametrize("fields", [{}, {"max_tokens": 0}], ids=["one token", "none"])
def test_loglikelihoods_are_those_of_transformers(
    service: Any, tokens: Any, oracle: Any, fields: dict[str, Any]
) -> None:
    """Also of a continuation after which the model ends its answer, and when all of it is cached."""
    pairs = [(tokens.encode(context), tokens.encode(continuation)) for context, continuation in QUESTIONS]
    truth = [expected(oracle, *pair) for pair in pairs]
    found = loglikelihoods(service, pairs, **fields)
    assert [total for total, _ in found] == pytest.approx([total for total, _ in truth], abs=NEAR)
    assert [greedy for _, greedy in found] == [greedy for _, greedy in truth]
    assert found[0][0] > found[1][0] + 1, "Paris it is"


def test_long_prompts_are_whole_wherever_they_are_computed(service: Any, tokens: Any, oracle: Any) -> None:
    """Eight chunks on the prefill worker, then all of it again although both workers have its blocks cached."""
    prompt = tokens.encode(" ".join(f"Fact {i}: {i * 7919 % 1000} is a number." for i in range(60)))[:450]
    rows = logprobs(oracle, prompt)[:-1]
    truth = rows.gather(1, torch.tensor(prompt[1:])[:, None])[:, 0].tolist()
    for _ in range(2):
        answer = service.client.completions.create(
            model="smollm2", prompt=prompt, max_tokens=2, n=2, temperature=0, extra_body={"prompt_logprobs": 3}
        )
        record = service.record(answer.id)
        assert record["prefill"] == "test-prefill-0", "it was handed off"
        assert answer.usage.prompt_tokens_details.cached_tokens == 0
        for choice in answer.choices:
            first, *listed = choice.prompt_logprobs
            assert first is None
            own = [place[str(token)] for place, token in zip(listed, prompt[1:], strict=True)]
            assert [one["logprob"] for one in own] == pytest.approx(truth, abs=2e-3)
            assert all(3 <= len(place) <= 4 for place in listed)
        likeliest = [min(place.values(), key=lambda one: one["rank"]) for place in listed]
        assert [one["logprob"] for one in likeliest] == pytest.approx(rows.max(1).values.tolist(), abs=2e-3)


def test_a_killed_worker_leaves_nothing_out(service: Any, tokens: Any, oracle: Any) -> None:
    """The prefill worker, while it computes the prompt or right after."""
    prompt = tokens.encode(" ".join(f"Item {i} costs {i * 104729 % 1000}." for i in range(80)))[:600]
    rows = logprobs(oracle, prompt)[:-1]
    truth = rows.gather(1, torch.tensor(prompt[1:])[:, None])[:, 0].tolist()
    stream = service.stream(prompt, 1, logprobs=0, echo=True, temperature=0)
    service.until(lambda: service.worker("test-prefill-0").get("running"), "the prompt is computed")
    epoch = service.epoch("test-prefill-0")
    for process in service.processes("test-prefill-0"):
        process.kill()
    assert stream.result()
    first, *told = stream.logprobs[: len(prompt)]
    assert first is None
    assert [min(place.values()) for place in told] == pytest.approx(truth, abs=2e-3), "nothing but the token's own"
    service.until_connected("test-prefill-0", not_epoch=epoch)
    service.until_idle()


def test_chats_have_them_beside_their_choices(service: Any, oracle: Any) -> None:
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


def test_only_allowed_words_are_said(service: Any, tokens: Any) -> None:
    """Through a hand-off, and as the tokenizer spells them."""
    complete = service.client.completions.create
    ask = {"model": "smollm2", "prompt": "The capital of France is the city of" + " old" * 20, "temperature": 0}
    ids = tokens.encode(" Rome")[:1] + tokens.encode(" Oslo")[:1]
    answer = complete(**ask, max_tokens=6, logprobs=0, extra_body={"allowed_token_ids": ids})
    assert set(answer.choices[0].logprobs.tokens) <= {tokens.token_bytes(id).decode() for id in ids}
    capital = "Q: What is the capital of France, and of no other country? A: The capital of France is"
    ask = {"model": "smollm2", "prompt": capital, "temperature": 0, "max_tokens": 24}
    assert "Paris" in complete(**ask).choices[0].text
    without = complete(**ask, extra_body={"bad_words": ["Paris"]}).choices[0].text
    assert without
    assert "Paris" not in without
