"""Random requests made from an OpenAPI description: bodies that fit it, bodies that nearly do, and ones that do not.

A generator of our own: it makes thousands of bodies a second, and knows the fields whose schema says little. Those that
generate ask for few tokens, so that many requests take little time.
"""

import asyncio
import copy
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

JSON = "application/json"
PATIENCE = 120.0  # seconds for one answer: only a hang reaches it
SHORT = 8  # tokens
SCALARS = (None, True, False, 0, 1, -1, 2, 0.5, 5e-324, 1e308, -1e308, 2**31, 2**63, 2**64, 10**30)
TEXTS = ("", "a", "hi", "\x00", "🎼" * 5, "text", "none", "auto", "user", "<tool_call>{", "0", "x" * 2000)
NESTED: dict[str, tuple[Any, ...]] = {  # the same within others
    "role": ("user", "user", "user", "user", "assistant", "system", "tool", "developer", "function", ""),
    "input": ({}, {"a": 1}, {"a": {"b": [None]}}),
    "input_schema": ({"type": "object"}, {}, {"not": {}}),
    "schema": ({"type": "object"}, {}, {"not": {}}),
}
KEYS = ("type", "text", "role", "content", "name", "0", "x")
FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}, "strict": True}
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"], "additionalProperties": False}
KNOWN: dict[str, tuple[Any, ...]] = {  # values of fields whose schema says less
    "model": (None, None, None, "MODEL", "other"),
    "messages": (
        [{"role": "user", "content": "hi"}],
        [{"role": "system", "content": "be"}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}],
    ),
    "tools": ([{"type": "function", "function": FUNCTION}], [{"name": "f", "input_schema": SCHEMA}], []),
    "tool_choice": (
        *("auto", "none", "required", {"type": "function", "function": {"name": "f"}}),
        *({"type": "any"}, {"type": "tool", "name": "f"}, {"type": "none"}),
    ),
    "functions": ([FUNCTION],),
    "function_call": ("auto", {"name": "f"}),
    "response_format": (
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
    ),
    "structured_outputs": ({"json": SCHEMA}, {"regex": "a{2,4}"}, {"choice": ["a", "b"]}, {"grammar": 'root ::= "a"'}),
    "guided_json": (SCHEMA, json.dumps(SCHEMA)),
    "guided_regex": ("[a-z]+", "("),
    "guided_choice": (["a", "b"],),
    "guided_grammar": ('start: "a"', "start: x"),
    "stop": ("a", ["a", "b"]),
    "thinking": ({"type": "disabled"}, {"type": "enabled", "budget_tokens": 1024}),
    "logit_bias": ({"5": 1.0}, {"5": 101}, {"x": 1}),
    "prompt": ("hi", ["hi", "ho"], [1, 2, 3], [[1], [2]], [], [[]], [99999999]),
    "input": ("hi", [{"role": "user", "content": "hi"}], [{"type": "message", "role": "user", "content": []}], [], ""),
    "text": ({"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}, {"format": {"type": "text"}}),
    "previous_response_id": ("resp_0", ""),
    "include": ([], ["message.output_text.logprobs"]),
    "tokens": ([1, 2, 3], [], [-1], [10**9]),
}
HEADERS: tuple[dict[str, str], ...] = (
    *({"x-legato-deadline": value} for value in ("60s", "0", "-1s", "soon", "99999h")),
    *({"x-legato-priority": value} for value in ("1", "-5", "5000", "high")),
    {"x-legato-explain": "true"},
    {"x-legato-tenant": "t" * 600},
    {"traceparent": "00-1-2-3"},
    {"authorization": "Basic x"},
    {"anthropic-version": "2020-01-01"},
    {"content-type": "text/plain"},
    {"content-type": ""},
    {"accept": "text/event-stream"},
)


@dataclass(frozen=True)
class Sent:
    method: str
    path: str
    headers: dict[str, str]
    content: bytes | None

    def __str__(self) -> str:
        return f"{self.method} {self.path} {self.headers} {(self.content or b'')[:3000]!r}"


class Fuzz:
    """Makes requests for all paths of `api`; the same ones for the same `seed`."""

    def __init__(self, api: dict[str, Any], model: str, seed: int) -> None:
        self._random = random.Random(seed)
        self._model = model
        self._operations = [
            (method.upper(), path, operation.get("requestBody", {}).get("content", {}).get(JSON, {}).get("schema"))
            for path, methods in sorted(api["paths"].items())
            for method, operation in methods.items()
        ]
        self._weights = [8 if schema else 1 for _, _, schema in self._operations]

    def requests(self, count: int) -> Iterator[Sent]:
        for _ in range(count):
            yield self._request()

    def _request(self) -> Sent:
        method, path, schema = self._random.choices(self._operations, self._weights)[0]
        path = path.replace("{name}", self._random.choice([self._model, "other", "a/b", "%2e%2e"]))
        path = path.replace("{id}", self._random.choice(["resp_0", "x", "%00", "🎼"]))
        headers = dict(self._random.choice(HEADERS)) if self._random.random() < 0.1 else {}
        if schema is None:
            return Sent(method, path, headers, None)
        return Sent(method, path, {"content-type": JSON, **headers}, self._body(schema))

    def _body(self, schema: dict[str, Any]) -> bytes:
        chance = self._random.random
        body = self._object(schema, KNOWN) if chance() < 0.98 else self._anything(0)
        if isinstance(body, dict):
            self._shorten(body, schema["properties"])
            while chance() < 0.2:
                self._break(body)
            _bound(body, schema["properties"])
            if chance() < 0.02:
                body[self._random.choice(list(body) or ["x"])] = "\ud800"
        raw = bytearray(json.dumps(body, ensure_ascii=chance() < 0.5).encode(errors="surrogatepass"))
        if chance() < 0.1:
            raw = raw.replace(b"1e+308", b"1e+400")  # a number that no float holds
        if chance() < 0.03:
            raw[self._random.randrange(len(raw))] = self._random.randrange(256)
        if chance() < 0.02:
            del raw[self._random.randrange(len(raw)) :]
        return bytes(raw)

    def _shorten(self, body: dict[str, Any], known: dict[str, Any]) -> None:
        limit = _limit(known)
        if limit is not None and self._random.random() < 0.97:
            body.pop("max_tokens", None)
            body[limit] = self._random.randint(1, SHORT)
            body.pop("min_tokens", None)
            body.pop("max_completion_tokens", None)
        if isinstance(body.get("n"), int) and body["n"] > 4 and self._random.random() < 0.8:
            body["n"] = 2

    def _break(self, body: Any) -> None:
        inner = (
            [(body, key) for key in body]
            if isinstance(body, dict)
            else list(zip([body] * len(body), range(len(body)), strict=True))
        )
        if not inner:
            return
        owner, key = self._random.choice(inner)
        if isinstance(owner[key], dict | list) and owner[key] and self._random.random() < 0.7:
            self._break(owner[key])
        elif self._random.random() < 0.2 and isinstance(owner, dict):
            owner[self._random.choice(KEYS)] = self._anything(0)
        else:
            owner[key] = self._anything(0)

    def _value(self, schema: Any, told: tuple[Any, ...] = ()) -> Any:
        """A value of this schema; mostly one of those that are `told`, if any are."""
        if self._random.random() < 0.01:
            return self._anything(0)
        if told and self._random.random() < 0.8:
            found = copy.deepcopy(self._random.choice(told))
            return self._model if found == "MODEL" else found
        if not isinstance(schema, dict) or not schema:
            return self._anything(2)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self._random.choice(schema["enum"])
        if several := schema.get("anyOf") or schema.get("oneOf"):
            return self._value(self._random.choice(several))
        kind = schema.get("type")
        kind = self._random.choice(kind) if isinstance(kind, list) else kind
        makers: dict[str | None, Callable[[dict[str, Any]], Any]] = {
            "object": self._object,
            "array": self._array,
            "string": self._text,
            "integer": self._number,
            "number": self._number,
            "boolean": lambda _: self._random.random() < 0.5,
            "null": lambda _: None,
        }
        return makers.get(kind, lambda _: self._anything(2))(schema)

    def _object(self, schema: dict[str, Any], told: dict[str, tuple[Any, ...]] = NESTED) -> dict[str, Any]:
        known = schema.get("properties", {})
        optional = [name for name in known if name not in schema.get("required", ())]
        named = [name for name in optional if known[name] or name in told]  # most others are refused, whatever they are
        among = named if named and self._random.random() < 0.85 else optional
        chosen = self._random.sample(among, min(len(among), self._random.choice((0, 1, 1, 2, 4))))
        needed = [name for name in schema.get("required", ()) if self._random.random() < 0.98]
        if {"prompt", "messages"} <= known.keys():  # either is enough
            needed += [self._random.choice(("prompt", "messages"))]
            chosen = [name for name in chosen if name not in ("prompt", "messages") or self._random.random() < 0.1]
        made = {name: self._value(known[name], told.get(name, ())) for name in dict.fromkeys((*needed, *chosen))}
        if self._random.random() < 0.02:
            made[self._random.choice(KEYS)] = self._anything(1)
        return made

    def _array(self, schema: dict[str, Any]) -> list[Any]:
        least, most = schema.get("minItems", 0), schema.get("maxItems", 10)
        count = least + self._random.choice((0, 1, 1, 2)) - (self._random.random() < 0.05)
        if self._random.random() < 0.01:
            return [self._value(schema.get("items"))] * min(most + 1, 3000)
        return [self._value(schema.get("items")) for _ in range(max(0, min(count, most)))]

    def _text(self, schema: dict[str, Any]) -> str:
        return self._random.choice(TEXTS if self._random.random() < 0.3 else ("hi", "a", "The fox"))

    def _number(self, schema: dict[str, Any]) -> float:
        least, most = schema.get("minimum", -5), schema.get("maximum", 5)
        edges = (least, most, least - 1, most + 1)
        usual = [number for number in (0, 1, 2, 0.5) if least <= number <= most] or [least]
        found = self._random.choice(usual if self._random.random() < 0.7 else edges)
        return int(found) if schema.get("type") == "integer" else found

    def _anything(self, depth: int) -> Any:
        kind = self._random.random()
        if depth > 3 or kind < 0.6:
            return self._random.choice((*SCALARS, *TEXTS))
        if kind < 0.8:
            return [self._anything(depth + 1) for _ in range(self._random.randrange(4))]
        return {self._random.choice(KEYS): self._anything(depth + 1) for _ in range(self._random.randrange(4))}


@dataclass
class Answers:
    """Counts the answers to many requests."""

    without_grammars: bool = False  # workers that obey none: what asks for one is refused with a 503
    statuses: dict[str, dict[int, int]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def take(self, sent: Sent, status: int, text: str) -> None:
        counts = self.statuses.setdefault(f"{sent.method} {sent.path if len(sent.path) < 40 else '…'}", {})
        counts[status] = counts.get(status, 0) + 1
        if status == 503 and self.without_grammars and "cannot make output match a grammar" in text:
            return
        if status >= 500:
            self.faults.append(f"{status} {text[:300]} for {sent}")
        elif status != 200 and len(text) > 2000:
            self.faults.append(f"an error of {len(text)} characters for {sent}")
        elif status == 200 and "event: error" in text:
            self.faults.append(f"a stream that failed: {text[-300:]} for {sent}")


async def run(
    http: httpx.AsyncClient, requests: Iterator[Sent], at_once: int, without_grammars: bool = False
) -> Answers:
    """Sends them all, so many at a time, and reads the answers to their ends."""
    answers = Answers(without_grammars)

    async def send() -> None:
        for sent in requests:
            try:
                async with asyncio.timeout(PATIENCE):
                    got = await http.request(sent.method, sent.path, headers=sent.headers, content=sent.content)
            except TimeoutError:
                answers.faults.append(f"no answer within {PATIENCE:g} s for {sent}")
            except httpx.HTTPError as error:
                answers.faults.append(f"{error!r} for {sent}")
            else:
                answers.take(sent, got.status_code, got.text)

    await asyncio.gather(*(send() for _ in range(at_once)))
    return answers


def _limit(known: dict[str, Any]) -> str | None:
    """The field for the most tokens of an answer, where there is one."""
    return next((name for name in ("max_output_tokens", "max_tokens") if name in known), None)


def _bound(body: dict[str, Any], known: dict[str, Any]) -> None:
    """A small model may go on until its context is full, which takes longer than anybody waits for an answer here."""
    limit = _limit(known)
    given = [name for name in (limit, "max_completion_tokens") if name in body]
    for name in given or ([limit] if limit else []):
        if body.get(name) is None or (isinstance(body[name], int) and body[name] > SHORT):
            body[name] = SHORT
