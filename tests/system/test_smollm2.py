"""A model that means what it says, in a service with prefill and decode in separate processes: the README's example,
and log-probabilities that agree with transformers.

The questions are those of lm-evaluation-harness's `local-completions`. Its requests and its arithmetic
(lm_eval/models/openai_completions.py) are written down here: it is too large to be a dependency of tests.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import client_scripts
import pytest
import torch
from huggingface_oracle import huggingface_model, smollm2_path

from legato_engine.weights.opening import open_weights
from legato_gateway.tokenizer.tokens import ModelTokenizer

NEAR = 0.02  # of a sum of logprobs, each within 2e-3
CHAT: Any = [{"role": "user", "content": "Name the capital of France."}]
CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
QUESTIONS = [
    ("The capital of France is", " Paris"),
    ("The capital of France is", " London"),
    ("Water freezes at zero degrees", " Celsius, and boils at one hundred."),
    ("1, 2, 3, 4, 5, 6,", " 7, 8, 9"),
    ("日本の首都は", "東京です。"),
    ("He said: That is all.", "<|im_end|>"),
]


@pytest.fixture(scope="module")
def service(start: Callable[..., Any]) -> Any:
    return start(source="{builtin: smollm2-135m-instruct}")


@pytest.fixture(scope="module")
def tokens() -> ModelTokenizer:
    return ModelTokenizer.load(smollm2_path())


@pytest.fixture(scope="module")
def oracle() -> torch.nn.Module:
    torch.set_num_threads(1)  # beside a service, more would wait for one another
    checkpoint = open_weights(smollm2_path())
    return huggingface_model(checkpoint, checkpoint.config)


def test_the_capital_of_france_comes_by_hand_off(service: Any) -> None:
    headers = {"x-legato-explain": "true"}
    answer = service.client.chat.completions.with_raw_response.create(
        model="smollm2", messages=CHAT, temperature=0, extra_headers=headers
    )
    assert "Paris" in answer.parse().choices[0].message.content
    assert answer.parse().choices[0].finish_reason == "stop"
    route = json.loads(answer.headers["x-legato-route"])
    assert (route["prefill"], route["decode"]) == ("test-prefill-0", "test-decode-0")
    assert route["transport"].startswith("ucx")
    (handoff,) = service.record(answer.parse().id)["handoffs"]
    assert handoff["source"] == "test-prefill-0"
    assert handoff["blocks"] >= 1
    assert handoff["bytes"] == handoff["blocks"] * 16 * 30 * 2 * 3 * 64 * 4


def test_the_model_is_told_of_what_tools_returned(service: Any) -> None:
    said = [
        {"role": "user", "content": "What is the weather in Paris?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "It is raining in Paris."},
    ]
    create = service.client.chat.completions.create
    answer = create(model="smollm2", messages=said, tools=[TOOL], max_tokens=40, temperature=0)
    assert "rain" in answer.choices[0].message.content


@pytest.mark.timeout(client_scripts.SECONDS + 60)
def test_langchain_calls_tools_with_the_arguments_that_it_was_asked_for(service: Any, tmp_path: Path) -> None:
    client_scripts.run("langchain", service.url, tmp_path, "-k", "tool_call")


def test_only_allowed_words_are_said(service: Any, tokens: ModelTokenizer) -> None:
    """Through a hand-off, and as the tokenizer spells them."""
    capital = "Q: What is the capital of France, and of no other country? A: The capital of France is"
    ask: Any = {"model": "smollm2", "prompt": capital, "temperature": 0, "max_tokens": 8, "logprobs": 0}
    ids = tokens.encode(" Rome")[:1] + tokens.encode(" Oslo")[:1]
    answer = service.client.completions.create(**ask, extra_body={"allowed_token_ids": ids})
    assert set(answer.choices[0].logprobs.tokens) <= {tokens.token_bytes(id).decode() for id in ids}
    assert "Paris" in service.client.completions.create(**ask).choices[0].text
    without = service.client.completions.create(**ask, extra_body={"bad_words": ["Paris"]}).choices[0].text
    assert without
    assert "Paris" not in without


def loglikelihoods(service: Any, pairs: Sequence[tuple[list[int], list[int]]], most: int) -> list[tuple[float, bool]]:
    """As `create_payload` and `parse_logprobs` of the harness: what is made after the prompt is cut off."""
    prompts = [context + continuation for context, continuation in pairs]
    body = {"prompt": prompts, "model": "smollm2", "max_tokens": most, "logprobs": 1, "seed": 1234, "echo": True}
    answer = service.http.post("/v1/completions", json={**body, "temperature": 0})
    assert answer.status_code == 200, answer.text
    found = []
    for choice, (context, _) in zip(sorted(answer.json()["choices"], key=lambda c: c["index"]), pairs, strict=True):
        own = choice["logprobs"]["token_logprobs"][len(context) : -most or None]
        top = choice["logprobs"]["top_logprobs"][len(context) : -most or None]
        found.append((sum(own), all(one == max(best.values()) for one, best in zip(own, top, strict=True))))
    return found


def expected(oracle: torch.nn.Module, context: list[int], continuation: list[int]) -> tuple[float, bool]:
    with torch.inference_mode():
        logits: torch.Tensor = oracle(input_ids=torch.tensor([context + continuation])).logits[0]
    rows = logits.log_softmax(1)[len(context) - 1 : -1]
    own = rows.gather(1, torch.tensor(continuation)[:, None])[:, 0]
    return float(own.sum()), bool((rows.argmax(1) == torch.tensor(continuation)).all())


def test_loglikelihoods_are_those_of_transformers(
    service: Any, tokens: ModelTokenizer, oracle: torch.nn.Module
) -> None:
    """Also of a continuation after which the model ends its answer, and when all of it is cached."""
    pairs = [(tokens.encode(context), tokens.encode(continuation)) for context, continuation in QUESTIONS]
    truth = [expected(oracle, *pair) for pair in pairs]
    for most in (1, 0):
        found = loglikelihoods(service, pairs, most)
        assert [total for total, _ in found] == pytest.approx([total for total, _ in truth], abs=NEAR)
        assert [greedy for _, greedy in found] == [greedy for _, greedy in truth]
    assert found[0][0] > found[1][0] + 1, "Paris it is"
