"""Fields of requests become what docs/request-fields.md says: obeyed, ignored by name, without effect or refused by
name. The official clients' types say which tools, items and blocks there are; that the page has every field of
requests is in tests/test_docs.py."""

import re
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from anthropic.types.beta import BetaContentBlockParam, BetaToolUnionParam
from generation_apis import ALL, CHAT, COMPLETIONS, MESSAGES, RESPONSES
from openai.types.responses import ResponseInputItemParam
from openai.types.responses import ToolParam as ResponsesToolParam

from legato_gateway.anthropic.blocks import BLOCKS
from legato_gateway.openai.responses.items import KINDS

DOCS = Path(__file__).parents[2] / "docs"
APIS = {"chats": CHAT, "completions": COMPLETIONS, "responses": RESPONSES, "messages": MESSAGES}
SECTIONS = ("Ignored", "Without effect", "Refused")
VALUES = {"direct", "disabled", "assistant"}  # on the page, in addition to fields
CALL = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
GIVEN: dict[str, Any] = {
    **dict.fromkeys(("reasoning_effort", "reasoning.effort", "output_config.effort"), "low"),
    **dict.fromkeys(("thinking_token_budget", "thinking.budget_tokens"), 9),
    **dict.fromkeys(("background", "tools[].async", "tools[].defer_loading"), True),
    **dict.fromkeys(("reasoning.context", "reasoning.mode", "text.verbosity", "truncation", "user"), "other"),
    **dict.fromkeys(("reasoning.summary", "reasoning.generate_summary", "previous_response_id"), "auto"),
    "stream_options": {"include_obfuscation": True},
    "tools[].allowed_callers": ["programmatic"],
}
REQUESTS: dict[str, dict[str, Any]] = {  # with fields of parts
    "tools[]": {"tools": [{"type": "web_search", "name": "web_search"}]},
    "tools[].description": {"tools": [{"type": "namespace", "name": "crm", "description": "x", "tools": []}]},
    "tools[].format": {"tools": [{"type": "custom", "name": "f", "format": {"type": "grammar"}}]},
    "content[].caller": {"role": "assistant", **CALL, "caller": {"type": "direct"}},
    "content[].signature": {"role": "assistant", "type": "thinking", "thinking": "a", "signature": "x"},
    "content[].citations": {"role": "user", "type": "text", "text": "a", "citations": [{}]},
    "content[].toolset_name": {"role": "assistant", **CALL, "toolset_name": "x"},
}


def listed(api: Any, section: str) -> set[str]:
    text = (DOCS / "request-fields.md").read_text().split(f"## {section}\n")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| (\w+) \| (.*) \|$", text, re.MULTILINE))
    named = next((rows.get(name, "") for name, each in APIS.items() if each is api), "")
    return set(re.findall(r"`([a-z_.\[\]]+)`", named)) - VALUES


def asking(api: Any, name: str) -> dict[str, Any]:
    """A request with this field, whose value asks for something."""
    if name.startswith("content[]"):
        block = dict(REQUESTS[name])
        turns = [{"role": "user", "content": "hi"}, {"role": block.pop("role"), "content": [block]}]
        return {"messages": [*turns, {"role": "user", "content": "go"}]}
    if name in REQUESTS:
        return REQUESTS[name]
    outer, _, inner = name.partition(".")
    value = GIVEN.get(name, {"a": 1})
    if outer == "tools[]":
        (tool,) = api.meant("tools", [{"name": "now"}])["tools"]
        return {"tools": [{**tool, inner: value}]}
    kind = {"type": "enabled"} if outer == "thinking" else {}
    return {outer: {**kind, inner: value} if inner else value}


@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.parametrize("api", ALL, ids=str)
async def test_fields_become_what_the_documentation_says(gateway, api, section):
    for name in sorted(listed(api, section)):
        answer = await api.post(gateway, stream=name == "stream_options", **asking(api, name))
        assert (answer.status_code == 400) == (section == "Refused"), (name, answer.text)
        assert section != "Refused" or name.removeprefix("content[].").replace("[]", "[0]") in answer.text, name
        ignored = name.replace("[]", "[0]") if section == "Ignored" else None
        assert answer.headers.get("x-legato-ignored") == ignored, name


def types(union: Any) -> set[str]:
    """The values of `type` in a union of the client's types."""
    members = (member for member in get_args(union) if isinstance(member, type))
    return {text for member in members for text in _texts(get_type_hints(member).get("type"))}


def _texts(hint: Any) -> list[str]:
    parts = [part for part in get_args(hint) if part is not type(None)]
    return [text for part in parts for text in ([part] if isinstance(part, str) else _texts(part))]


CALLED = {"function", "custom", "namespace"}


@pytest.mark.parametrize(("api", "union"), [(RESPONSES, ResponsesToolParam), (MESSAGES, BetaToolUnionParam)], ids=str)
async def test_tools_of_every_other_type_are_ignored_by_name(gateway, api, union):
    others = types(union) - CALLED
    assert len(others) > 10
    for kind in sorted(others):
        answer = await api.post(gateway, tools=[{"type": kind, "name": "x"}])
        assert (answer.status_code, answer.headers.get("x-legato-ignored")) == (200, "tools[0]"), (kind, answer.text)


async def test_items_and_blocks_of_every_other_type_are_refused_by_name(gateway):
    items, blocks = types(ResponseInputItemParam) - set(KINDS), types(BetaContentBlockParam) - set(BLOCKS)
    assert min(len(items), len(blocks)) > 10
    for kind in sorted(items):
        answer = await RESPONSES.post(gateway, input=[{"type": kind}])
        assert (answer.status_code, RESPONSES.names(answer, "input[0].type")) == (400, True), kind
    for kind in sorted(blocks):
        answer = await MESSAGES.post(gateway, messages=[{"role": "user", "content": [{"type": kind}]}])
        assert (answer.status_code, repr(kind) in answer.text) == (400, True), kind
