"""The four APIs that generate: by one adapter each, how it is asked, and what its answers say in common."""

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from response_events import read

HI = [{"role": "user", "content": "hi"}]
LOGPROBS = "message.output_text.logprobs"


@dataclass
class Said:
    """An answer, streamed or not. `finish` is stop, length or calls; `usage` is of prompt, cached and made tokens."""

    id: str = ""
    model: str = ""
    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)  # names and arguments
    finish: str = ""
    usage: tuple[int, int, int] = (0, 0, 0)
    reasoning_tokens: int | None = None
    tokens: list[tuple[str, float]] = field(default_factory=list)  # with log probabilities
    error: str = ""  # of a stream that failed


Read = Callable[[dict[str, Any]], Said]


@dataclass(frozen=True)
class API:
    """Fields that the APIs name differently are made by `fields`, by their meaning."""

    name: str
    needs: str  # the field without which nothing can be generated
    body: dict[str, Any]
    prompt: str  # what the model is shown of it
    prefix: str  # of ids
    whole: Read
    joined: Callable[[list[dict[str, Any]]], Said]
    fields: dict[str, Callable[[Any], dict[str, Any]]]

    def __str__(self) -> str:
        return self.name

    async def post(self, gateway: Any, headers: dict[str, str] | None = None, **fields: Any) -> Any:
        body = {"model": "tiny", **self.body, **fields}
        return await gateway.http.post(f"/v1/{self.name}", json=body, headers=headers)

    async def ask(self, gateway: Any, stream: bool = False, **fields: Any) -> Said:
        fields |= {"stream": True, **self.meant("usage", True)} if stream else {}
        answer = await self.post(gateway, **fields)
        assert answer.status_code == 200, answer.text
        said = self.streamed(answer.text) if stream else self.whole(answer.json())
        assert answer.headers["request-id" if self.name == "messages" else "x-request-id"] == said.id
        return said

    def streamed(self, text: str) -> Said:
        lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")]
        return self.joined([json.loads(line) for line in lines] if self.name != "responses" else read(text))

    def meant(self, what: str, value: Any) -> dict[str, Any]:
        return self.fields[what](value) if what in self.fields else {}

    def error(self, answer: Any) -> tuple[str | None, str]:
        """The field that an error names, where this API has a place for it, and its message."""
        body = answer.json()
        if self.name == "messages":
            assert body["type"] == "error"
            assert body["error"].keys() == {"type", "message"}
            return None, body["error"]["message"]
        assert {"message", "type", "param", "code"} <= body["error"].keys()
        return body["error"]["param"], body["error"]["message"]

    def names(self, answer: Any, param: str) -> bool:
        named, message = self.error(answer)
        return param in message if self.name == "messages" else named == param


FINISHES = {"tool_calls": "calls", "function_call": "calls"}
WORDS = ("auto", "none", "required")  # choices that name no tool


def _user(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def _usage(usage: dict[str, Any] | None, prompt: str, made: str) -> dict[str, Any]:
    if usage is None:
        return {}
    counts = usage[prompt], usage[f"{prompt}_details"]["cached_tokens"], usage[made]
    return {"usage": counts, "reasoning_tokens": (usage.get(f"{made}_details") or {}).get("reasoning_tokens")}


def _openai(answer: dict[str, Any], choice: dict[str, Any], usage: dict[str, Any] | None) -> Said:
    said = choice.get("message") or {"content": choice.get("text")}
    logprobs = choice.get("logprobs") or {}
    tokens = [(token["token"], token["logprob"]) for token in logprobs.get("content", ())]
    return Said(
        answer["id"],
        answer["model"],
        said.get("content") or "",
        said.get("reasoning") or "",
        [(call["function"]["name"], call["function"]["arguments"]) for call in said.get("tool_calls") or ()],
        FINISHES.get(choice["finish_reason"], choice["finish_reason"]),
        tokens=tokens or list(zip(logprobs.get("tokens", ()), logprobs.get("token_logprobs", ()), strict=True)),
        **_usage(usage, "prompt_tokens", "completion_tokens"),
    )


def _of_chunks(chunks: list[dict[str, Any]]) -> Said:
    """Puts deltas together as a client does."""
    message: dict[str, Any] = {"content": "", "reasoning": "", "tool_calls": []}
    finish, logprobs = None, {"content": [], "tokens": [], "token_logprobs": []}
    for choice in (choice for chunk in chunks for choice in chunk.get("choices", ())):
        delta = choice.get("delta") or {"content": choice.get("text")}
        for name in ("content", "reasoning"):
            message[name] += delta.get(name) or ""
        for call in delta.get("tool_calls") or ():
            if call.get("id"):
                message["tool_calls"].append({"function": {"name": call["function"]["name"], "arguments": ""}})
            message["tool_calls"][call["index"]]["function"]["arguments"] += call["function"].get("arguments") or ""
        for name, tokens in (choice.get("logprobs") or {}).items():
            logprobs.setdefault(name, []).extend(tokens or ())
        finish = choice["finish_reason"] or finish
    if "error" in chunks[-1]:
        return Said(text=message["content"], error=chunks[-1]["error"]["message"])
    return _openai(chunks[0], {"message": message, "finish_reason": finish, "logprobs": logprobs}, chunks[-1]["usage"])


def _function(tool: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": tool}


SHARED: dict[str, Callable[[Any], dict[str, Any]]] = {
    "usage": lambda _: {"stream_options": {"include_usage": True}},
    "stop": lambda texts: {"stop": texts},
    "schema": lambda schema: {
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    },
}
CHAT = API(
    "chat/completions",
    "messages",
    {"messages": HI},
    "user: hi\n",
    "chatcmpl-",
    lambda answer: _openai(answer, answer["choices"][0], answer["usage"]),
    _of_chunks,
    SHARED
    | {
        "most": lambda count: {"max_completion_tokens": count},
        "long": _user,
        "logprobs": lambda top: {"logprobs": True, "top_logprobs": top},
        "tools": lambda tools: {"tools": [_function(tool) for tool in tools]},
        "choice": lambda name: {"tool_choice": name if name in WORDS else _function({"name": name})},
        "one call": lambda _: {"parallel_tool_calls": False},
    },
)
COMPLETIONS = API(
    "completions",
    "prompt",
    {"prompt": "hi"},
    "hi",
    "cmpl-",
    CHAT.whole,
    _of_chunks,
    SHARED
    | {
        "most": lambda count: {"max_tokens": count},
        "long": lambda text: {"prompt": text},
        "logprobs": lambda top: {"logprobs": top},
    },
)


def _response(answer: dict[str, Any]) -> Said:
    items = {kind: [i for i in answer["output"] if i["type"] == kind] for kind in ("message", "reasoning")}
    calls = [(item["name"], item["arguments"]) for item in answer["output"] if item["type"] == "function_call"]
    parts = {kind: [part for item in group for part in item["content"]] for kind, group in items.items()}
    return Said(
        answer["id"],
        answer["model"],
        "".join(part["text"] for part in parts["message"]),
        "".join(part["text"] for part in parts["reasoning"]),
        calls,
        "length" if answer["status"] == "incomplete" else "calls" if calls else "stop",
        tokens=[(token["token"], token["logprob"]) for part in parts["message"] for token in part["logprobs"]],
        error=(answer["error"] or {}).get("message", ""),
        **_usage(answer["usage"], "input_tokens", "output_tokens"),
    )


def _of_response_events(events: list[dict[str, Any]]) -> Said:
    said = _response(events[-1]["response"])
    if said.tokens:  # which grow by no events of their own
        deltas = [event for event in events if event["type"].endswith("output_text.delta")]
        assert [one["token"] for event in deltas for one in event["logprobs"]] == [token for token, _ in said.tokens]
    return said


RESPONSES = API(
    "responses",
    "input",
    {"input": "hi"},
    "user: hi\n",
    "resp_",
    _response,
    _of_response_events,
    {
        "most": lambda count: {"max_output_tokens": count},
        "long": lambda text: {"input": text},
        "logprobs": lambda top: {"include": [LOGPROBS], "top_logprobs": top},
        "schema": lambda schema: {"text": {"format": {"type": "json_schema", "name": "a", "schema": schema}}},
        "tools": lambda tools: {"tools": [{"type": "function", "strict": None, **tool} for tool in tools]},
        "choice": lambda name: {"tool_choice": name if name in WORDS else {"type": "function", "name": name}},
        "one call": lambda _: {"parallel_tool_calls": False},
    },
)


REASONS = {"end_turn": "stop", "stop_sequence": "stop", "tool_use": "calls", "max_tokens": "length"}


def _message(answer: dict[str, Any]) -> Said:
    texts = {kind: "".join(b[kind] for b in answer["content"] if b["type"] == kind) for kind in ("text", "thinking")}
    calls = [
        (b["name"], json.dumps(b["input"], ensure_ascii=False)) for b in answer["content"] if b["type"] == "tool_use"
    ]
    usage = answer["usage"]
    cached = usage["cache_read_input_tokens"]
    counts = usage["input_tokens"] + cached, cached, usage["output_tokens"]
    finish = REASONS[answer["stop_reason"]]
    return Said(answer["id"], answer["model"], texts["text"], texts["thinking"], calls, finish, counts)


def _of_message_events(events: list[dict[str, Any]]) -> Said:
    """Puts blocks together. Each begins, grows and ends before the next one."""
    answer, blocks, last = events[0]["message"], [], events[-1]
    for event in events[1:]:
        kind, delta = event["type"], event.get("delta", {})
        if kind == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append({**event["content_block"], "json": ""})
        elif kind == "content_block_delta":
            assert event["index"] == len(blocks) - 1
            blocks[-1]["json"] += delta.get("partial_json", "")
            for name in ("text", "thinking"):
                if name in delta:
                    blocks[-1][name] += delta[name]
        elif kind == "message_delta":
            answer |= {"stop_reason": delta["stop_reason"], "usage": {**answer["usage"], **event["usage"]}}
    for block in blocks:
        with contextlib.suppress(ValueError):  # of a call that was cut off
            block["input"] = json.loads(block.pop("json") or "{}")
    if last["type"] == "error":
        return Said(text="".join(block.get("text", "") for block in blocks), error=last["error"]["message"])
    assert [event["type"] for event in events].count("content_block_stop") == len(blocks)
    return _message({**answer, "content": blocks})


CHOICES = {"required": "any"}
MESSAGES = API(
    "messages",
    "messages",
    {"messages": HI, "max_tokens": 50},
    "user: hi\n",
    "msg_",
    _message,
    _of_message_events,
    {
        "most": lambda count: {"max_tokens": count},
        "long": _user,
        "stop": lambda texts: {"stop_sequences": texts},
        "schema": lambda schema: {"output_config": {"format": {"type": "json_schema", "schema": schema}}},
        "tools": lambda tools: {
            "tools": [
                {"input_schema": tool.get("parameters", {"type": "object"}), "name": tool["name"]} for tool in tools
            ]
        },
        "choice": lambda name: {
            "tool_choice": {"type": CHOICES.get(name, name)} if name in WORDS else {"type": "tool", "name": name}
        },
        "one call": lambda _: {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
    },
)

ALL = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)
SPEAKING = (CHAT, RESPONSES, MESSAGES)  # those with tools and reasoning
EXPLAINING = (CHAT, COMPLETIONS, RESPONSES)  # those with log probabilities
