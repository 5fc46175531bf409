"""Coding agents' loops of tools against real workers, prefill and decode separate.

Real are the fields of the requests, the SDKs, which stream as the agents do, and that each answer is sent back with the
results of its calls. Forced are the calls: the model means nothing, so requests name the tool in `tool_choice`, where
agents say `auto`, and the temperature is 0. The tools are not run. The last request forces nothing, and its user
interrupts the answer.
"""

import json
from collections.abc import Callable
from typing import Any

import agent_requests
import anthropic
import pytest

CLAUDE_CODE_TURNS = ("Read", "Bash", "TodoWrite", "Skill")
CODEX_TURNS = ("exec_command", "apply_patch", "mcp__notes.search", "update_plan")
CODEX_IGNORED = "text.verbosity, reasoning.summary, tools[4].description, tools[3].format, tools[5], tools[6]"
Turn = tuple[str, float]  # the tool that was called, and the share of the prompt that was cached


def claude_code(service: Any) -> tuple[list[Turn], str]:
    """Returns the turns of a loop, and the fields that were ignored."""
    messages = list(agent_requests.RESUMED)
    turns: list[Turn] = []
    with anthropic.Anthropic(base_url=service.url, api_key="unused", timeout=120.0, max_retries=0) as client:
        for number, name in enumerate(CLAUDE_CODE_TURNS):
            choice: Any = {"type": "tool", "name": name}
            asked: Any = {**agent_requests.CLAUDE_CODE, "extra_body": {"temperature": 0}}
            with client.beta.messages.stream(**asked, messages=messages, tool_choice=choice) as stream:
                answer: Any = stream.get_final_message()
                ignored = stream.response.headers["x-legato-ignored"]
            (call,) = answer.content
            failed = {"is_error": True} if number == 2 else {}
            result = {"type": "tool_result", "tool_use_id": call.id, "content": f"Result {number}.", **failed}
            last = {**result, **agent_requests.CACHED}
            messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": [last]}]
            assert answer.stop_reason == "tool_use"
            usage = answer.usage
            prompt = usage.input_tokens + usage.cache_read_input_tokens
            turns.append((call.name, usage.cache_read_input_tokens / prompt))
        with client.beta.messages.stream(**agent_requests.CLAUDE_CODE, messages=messages) as stream:
            assert next(event.type for event in stream) == "message_start"
    return turns, ignored


def codex(service: Any) -> tuple[list[Turn], str]:
    """Returns the turns of a loop, and the fields that were ignored."""
    items = list(agent_requests.CODEX_INPUT)
    turns: list[Turn] = []
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
        turns.append((called, usage.input_tokens_details.cached_tokens / usage.input_tokens))
    with service.client.responses.create(**agent_requests.CODEX, input=items, tool_choice="auto") as stream:
        assert next(event.type for event in stream) == "response.created"
    return turns, answer.headers["x-legato-ignored"]


@pytest.mark.parametrize(
    ("loop", "names", "ignored"),
    [
        (claude_code, CLAUDE_CODE_TURNS, "context_management, tools[8].defer_loading, tools[9]"),
        (codex, CODEX_TURNS, CODEX_IGNORED),
    ],
    ids=["claude_code", "codex"],
)
def test_an_agent_s_loop(
    service: Any, loop: Callable[[Any], tuple[list[Turn], str]], names: tuple[str, ...], ignored: str
) -> None:
    turns, ignored_here = loop(service)
    assert ignored_here == ignored
    assert tuple(called for called, _ in turns) == names
    assert all(cached >= 0.9 for _, cached in turns[1:])
    service.until_idle()
