"""Reasoning on real workers, prefill and decode apart, for the official client: of a model that was never taught to end
it, so it reasons until it is stopped."""

import json
import signal
import struct
from collections.abc import Callable
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from legato_cli import model
from legato_protocol import gguf_header

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}"
)
STORY = " ".join(f"Chapter {i}: the fox counted {i * 37 % 101} stones." for i in range(6))
QUESTION: Any = [{"role": "user", "content": f"{STORY} Which are prime?"}]
SCHEMA: Any = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0, "maximum": 100},
    "minItems": 4,
    "maxItems": 6,
}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "stones", "schema": SCHEMA}}


def write_model(builtin: Path, path: Path) -> None:
    """The built-in model with another template, and two of its special tokens as marks, which it never writes itself.

    The tensors begin at a multiple of 32 bytes behind all this, so the template is filled up to keep them there.
    """
    data = builtin.read_bytes()
    with builtin.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as whole:
        old = str(gguf_header.parse(whole).metadata["tokenizer.chat_template"])
    changes = {"<reponame>": "<think>", "<filename>": "</think>"}
    missing = len(old.encode()) - len(TEMPLATE.encode()) + sum(len(k) - len(v) for k, v in changes.items())
    changes[old] = TEMPLATE + "{#" + " " * ((missing - 4) % 32) + "#}"
    for before, after in changes.items():
        assert data.count(_spelled(before)) == 1
        data = data.replace(_spelled(before), _spelled(after))
    path.write_bytes(data)


def _spelled(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


@pytest.fixture(scope="module")
def service(start: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("model") / "reasoning.gguf"
    write_model(model.resolve("builtin:smollm2-135m-instruct", lambda text: None), path)
    return start(chunk=64, source=f"{{path: {path}}}")


def ask(service: Any, **options: Any) -> Any:
    given = {"model": "smollm2", "messages": QUESTION, "temperature": 0, "max_tokens": 120} | options
    extra = {key: given.pop(key) for key in ("thinking_token_budget", "chat_template_kwargs") if key in given}
    return service.client.chat.completions.create(**given, extra_body=extra)


def told(choices: Any, field: str) -> str:
    return "".join(getattr(choice.delta, field, None) or "" for choice in choices)


def test_a_budget_ends_reasoning_and_the_answer_matches(service: Any) -> None:
    answer = ask(service, thinking_token_budget=9, response_format=FORMAT)
    (choice,) = answer.choices
    assert choice.finish_reason == "stop"
    assert choice.message.reasoning_content
    assert answer.usage.completion_tokens_details.reasoning_tokens == 9
    jsonschema.validate(json.loads(choice.message.content), SCHEMA)
    assert service.record(answer.id)["prefill"] not in ("", "local"), "workers apart agree where it ends"
    chunks = list(ask(service, thinking_token_budget=9, response_format=FORMAT, stream=True))
    choices = [choice for chunk in chunks for choice in chunk.choices]
    assert told(choices, "reasoning_content") == choice.message.reasoning_content
    assert told(choices, "content") == choice.message.content
    service.until_idle()


def test_choices_end_their_reasoning_each_for_itself(service: Any) -> None:
    options: Any = {"n": 3, "temperature": 1.0, "seed": 7, "thinking_token_budget": 12, "response_format": FORMAT}
    answers = [ask(service, **options) for _ in range(2)]
    messages = [[choice.message.model_dump() for choice in answer.choices] for answer in answers]
    assert messages[0] == messages[1], "seeded"
    assert len({message["reasoning"] for message in messages[0]}) == 3
    assert all(json.loads(message["content"]) for message in messages[0])
    assert 0 < answers[0].usage.completion_tokens_details.reasoning_tokens <= 36


def test_requests_switch_reasoning_off(service: Any) -> None:
    for off in ({"reasoning_effort": "none"}, {"chat_template_kwargs": {"enable_thinking": False}}):
        answer = ask(service, response_format=FORMAT, **off)
        assert getattr(answer.choices[0].message, "reasoning_content", None) is None
        jsonschema.validate(json.loads(answer.choices[0].message.content), SCHEMA)
    cut = ask(service, reasoning_effort="high", max_tokens=20)
    assert cut.choices[0].message.content is None
    assert cut.usage.completion_tokens_details.reasoning_tokens == 20


def test_a_killed_worker_changes_no_answer(service: Any) -> None:
    options: Any = {"thinking_token_budget": 40, "response_format": FORMAT, "temperature": 1.0, "seed": 11}
    truth = ask(service, **options).choices[0].message
    (name,) = [worker["worker"] for worker in service.workers("decode")]
    epoch, stream = service.epoch(name), iter(ask(service, **options, stream=True))
    choices = [choice for _ in range(10) for choice in next(stream).choices]
    for process in service.processes(name):
        process.send_signal(signal.SIGKILL)
    choices += [choice for chunk in stream for choice in chunk.choices]
    assert told(choices, "reasoning_content") == truth.reasoning_content
    assert told(choices, "content") == truth.content
    service.until_connected(name, not_epoch=epoch)
