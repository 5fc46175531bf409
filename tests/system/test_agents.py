"""Coding agents' loops of tools against real workers, prefill and decode separate.

Real are the fields of the requests, the SDKs, which stream as the agents do, and that each answer is sent back with the
results of its calls. Forced are the calls: the model means nothing, so five requests name the tool in `tool_choice`,
where agents say `auto`, and the temperature is 0. The tools are not run. The last request forces nothing, and its user
interrupts the answer. `transcripts` has the tools called, and tokens of the prompts when it was written.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import agent_requests
import anthropic
import openai
import pytest

TRANSCRIPTS = Path(__file__).parent / "transcripts"
CLAUDE_CODE_TURNS = ("Read", "Grep", "Bash", "Edit", "Bash")
CODEX_TURNS = ("exec_command", "update_plan", "apply_patch", "exec_command", "mcp__notes.search")


def claude_code(service: Any) -> list[dict[str, Any]]:
    messages = list(agent_requests.RESUMED)
    transcript: list[dict[str, Any]] = []
    with anthropic.Anthropic(base_url=service.url, api_key="unused", timeout=120.0, max_retries=0) as client:
        for number, name in enumerate(CLAUDE_CODE_TURNS):
            choice: Any = {"type": "tool", "name": name}
            asked: Any = {**agent_requests.CLAUDE_CODE, "extra_body": {"temperature": 0}}
            with client.beta.messages.stream(**asked, messages=messages, tool_choice=choice) as stream:
                answer: Any = stream.get_final_message()
                ignored = stream.response.headers["x-legato-ignored"]
            (call,) = answer.content
            failed = {"is_error": True} if number % 4 == 3 else {}
            result = {"type": "tool_result", "tool_use_id": call.id, "content": f"Result {number}.", **failed}
            last = {**result, **agent_requests.CACHED}
            messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": [last]}]
            assert answer.stop_reason == "tool_use"
            usage = answer.usage
            prompt = usage.input_tokens + usage.cache_read_input_tokens
            transcript.append({"called": call.name, "prompt": prompt, "cached": usage.cache_read_input_tokens})
        with client.beta.messages.stream(**agent_requests.CLAUDE_CODE, messages=messages) as stream:
            assert next(event.type for event in stream) == "message_start"
    return [{"sdk": f"anthropic {anthropic.__version__}", "ignored": ignored}, *transcript]


def codex(service: Any) -> list[dict[str, Any]]:
    items = list(agent_requests.CODEX_INPUT)
    transcript: list[dict[str, Any]] = []
    for number, name in enumerate(CODEX_TURNS):
        choice = {"type": "custom" if name == "apply_patch" else "function", "name": name.rpartition(".")[2]}
        asked = {**agent_requests.CODEX, "input": items, "tool_choice": choice, "temperature": 0}
        answer: Any = service.client.responses.with_raw_response.create(**asked)
        events = list(answer.parse())
        (call,) = [event.item for event in events if event.type == "response.output_item.done"]
        custom = call.type == "custom_tool_call"
        kind = "custom_tool_call_output" if custom else "function_call_output"
        items += [
            call.model_dump(exclude={"id", "status"}, exclude_none=True),
            {"type": kind, "call_id": call.call_id, "output": f"Result {number}."},
        ]
        assert call.input if custom else json.loads(call.arguments)
        usage = events[-1].response.usage
        called = ".".join(filter(None, (getattr(call, "namespace", None), call.name)))
        cached = usage.input_tokens_details.cached_tokens
        transcript.append({"called": called, "prompt": usage.input_tokens, "cached": cached})
    with service.client.responses.create(**agent_requests.CODEX, input=items, tool_choice="auto") as stream:
        assert next(event.type for event in stream) == "response.created"
    return [{"sdk": f"openai {openai.__version__}", "ignored": answer.headers["x-legato-ignored"]}, *transcript]


@pytest.mark.parametrize("loop", [claude_code, codex])
def test_an_agent_s_loop_of_five_turns(service: Any, loop: Callable[[Any], list[dict[str, Any]]]) -> None:
    transcript = loop(service)
    recorded = [json.loads(line) for line in (TRANSCRIPTS / f"{loop.__name__}.jsonl").read_text().splitlines()]
    assert transcript[0]["ignored"] == recorded[0]["ignored"]
    assert [turn["called"] for turn in transcript[1:]] == [turn["called"] for turn in recorded[1:]]
    assert len(transcript[1:]) == 5
    assert all(turn["cached"] >= 0.9 * turn["prompt"] for turn in transcript[2:])
    service.until_idle()
