"""Whatever JSON a client sends, the gateway answers it: with a generation, or with an error that is the client's."""

import json
import random
from typing import Any

import msgspec
import pytest

from legato_gateway.openai.responses.body import ResponsesBody
from legato_gateway.openai.schemas import ChatBody, CompletionBody

BODIES = 150  # of each seed
NAMED: dict[str, tuple[type[msgspec.Struct], dict[str, Any]]] = {
    "chat/completions": (ChatBody, {"messages": [{"role": "user", "content": "hi"}]}),
    "completions": (CompletionBody, {"prompt": "hi"}),
    "responses": (ResponsesBody, {"input": "hi"}),
}
KEYS = ["type", "text", "role", "content", "0", "1", "include_usage", "tool_calls", "x"]
SCALARS = [None, True, False, 0, 1, -1, 2, 0.5, 5e-324, 1e-300, 1e308, -1e308, 2**31, 2**63, 2**64, 10**30]
TEXTS = ["", "a", "\ud800", "\x00", "🎼" * 5, "text", "none", "auto", "user", "0", "12", "x" * 2000]


def value(source: random.Random, depth: int = 0) -> Any:
    kind = source.random()
    if depth > 4 or kind < 0.6:
        return source.choice([*SCALARS, *TEXTS])
    if kind < 0.65:
        return [source.choice([*SCALARS, *TEXTS])] * source.randrange(300)
    if kind < 0.8:
        return [value(source, depth + 1) for _ in range(source.randrange(4))]
    return {source.choice(KEYS): value(source, depth + 1) for _ in range(source.randrange(4))}


def body(source: random.Random, path: str) -> bytes:
    """A request with a few fields of random content; now and then a number that no float holds, or a wrong byte."""
    schema, given = NAMED[path]
    names = [field.name for field in msgspec.structs.fields(schema)]
    fields = {
        "model": "tiny",
        **given,
        **{name: value(source) for name in source.sample(names, source.choice([1, 1, 3]))},
    }
    raw = bytearray(json.dumps(fields, ensure_ascii=source.random() < 0.5).encode(errors="surrogatepass"))
    if source.random() < 0.1:
        raw = raw.replace(b"1e+308", b"1e+400")
    if source.random() < 0.1:
        raw[source.randrange(len(raw))] = source.randrange(256)
    return bytes(raw)


@pytest.mark.parametrize("seed", range(12))
async def test_random_bodies_are_no_fault_of_ours(gateway: Any, seed: int) -> None:
    source = random.Random(seed)
    for _ in range(BODIES):
        path = source.choice(list(NAMED))
        sent = body(source, path)
        answer = await gateway.http.post(f"/v1/{path}", content=sent)
        assert answer.status_code in (200, 400, 404), sent
        assert answer.status_code == 200 or len(answer.content) < 1000, sent
