"""The Responses API in tests: asking for a response, reading its events, and what events make up together."""

import json
from itertools import groupby
from typing import Any

from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


async def ask(gateway: Any, headers: dict[str, str] | None = None, **fields: Any) -> Any:
    body = {"model": "tiny", "input": "hi", **fields}
    return await gateway.http.post("/v1/responses", json=body, headers=headers)


async def events(gateway: Any, headers: dict[str, str] | None = None, **fields: Any) -> list[dict[str, Any]]:
    """Returns the events of a streamed response."""
    return read((await ask(gateway, headers, stream=True, **fields)).text)


def read(text: str) -> list[dict[str, Any]]:
    """The events of a stream, each checked for its name, its number, and against the official client's types."""
    found = []
    for number, event in enumerate(text.removesuffix("\n\n").split("\n\n")):
        named, said = event.split("\n")
        found.append(json.loads(said.removeprefix("data: ")))
        assert named == f"event: {found[-1]['type']}"
        assert found[-1]["sequence_number"] == number
        if found[-1]["type"] != "response.failed":  # whose codes are our own
            _EVENT.validate_python(found[-1])
    return found


def kinds(found: list[dict[str, Any]]) -> list[str]:
    """Deltas in a row count once."""
    return [kind for kind, _ in groupby(event["type"] for event in found)]


PARTS = {"message": "output_text", "reasoning": "reasoning_text"}


def expected(*items: str) -> list[str]:
    """The kinds of events of a completed response of these items, one after the other."""
    found = ["created", "in_progress"]
    for item in items:
        grows = PARTS.get(item, "custom_tool_call_input" if item == "custom" else "function_call_arguments")
        inner = [f"{grows}.delta", f"{grows}.done"]
        inner = ["content_part.added", *inner, "content_part.done"] if item in PARTS else inner
        found += ["output_item.added", *inner, "output_item.done"]
    return [f"response.{kind}" for kind in (*found, "completed")]


def replayed(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items that events make up. Each begins, grows and ends before the next one."""
    done: list[dict[str, Any]] = []
    item: Any = None
    for event in found:
        kind = event["type"].removeprefix("response.")
        if "item_id" in event:
            assert (event["item_id"], event["output_index"]) == (item["id"], len(done))
        if kind == "output_item.added":
            assert (item, event["output_index"]) == (None, len(done))
            item = event["item"]
        elif kind == "output_item.done":
            assert event["item"] == {**item, "status": event["item"]["status"]}
            done.append(event["item"])
            item = None
        elif kind == "content_part.added":
            assert event["content_index"] == len(item["content"])
            item["content"].append(event["part"])
        elif item is not None:
            key = next((key for key in ("arguments", "input") if key in item), "text")
            holder = item["content"][0] if key == "text" else item
            if kind.endswith(".delta"):
                holder[key] += event["delta"]
            else:
                assert event.get("part", event)[key] == holder[key]
    assert item is None
    return done
