"""A gateway application over a relay that plays scripts: what is tested here ends at the relay's contract."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from fastapi import FastAPI

from legato_gateway.access_log import AccessEntry
from legato_gateway.clients import api_keys
from legato_gateway.clients.api_keys import KeyFile
from legato_gateway.clients.identify import Clients
from legato_gateway.generation_config import NEUTRAL
from legato_gateway.http import app as application
from legato_gateway.request import Delta, GenerationRequest, RouteRecord, TokenText, Usage
from legato_gateway.serving.bodies.budget import BodyBudget
from legato_gateway.serving.bodies.preparation import PreparationPool
from legato_gateway.serving.context import ServingContext
from legato_gateway.serving.event_stream import StreamPolicy
from legato_gateway.serving.model_serving import ModelServing, ServedModel
from legato_gateway.tokenizer.block_cache import CacheCounts
from legato_gateway.tokenizer.plain_text import SpecialTexts
from legato_gateway.tokenizer.tokens import TextTooLong
from legato_protocol.wire.stream import TokenLogprobs, TopLogprob

END = 256
JSON = {"content-type": "application/json"}
_TOKENS: dict[str, Any] = {"template": None, "marks": (), "turn": ""}
PROXIED = Clients(proxies=[ip_network("127.0.0.0/8")])  # whence the clients here come


class Gate(asyncio.Event):
    """A script waits here until it is set."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = asyncio.Event()


Step = Delta | Exception | Gate


class ByteTokens:
    """Tokens are bytes, and `marks` behind them. `before` is called with each text, `turn` is how prompts end."""

    eos_ids = (END,)

    def __init__(self, template: str | None = None, marks: tuple[str, ...] = (), turn: str = "") -> None:
        self.vocab_size = END + 1 + len(marks)
        self.special_texts = SpecialTexts(())
        self.marks = marks
        self.turn = turn
        self.before: Callable[[str], None] = lambda _: None
        self.chat_template = self.tool_template = template
        self.salts: list[str | None] = []  # of all texts
        self.given: dict[str, Any] = {}  # of them, in the latest request
        self.messages: list[dict[str, Any]] = []  # of the latest request

    def template_takes(self, variable: str) -> bool:
        return f"{{{{ {variable} }}}}" in (self.chat_template or "")

    def special_ids(self, texts: Collection[str]) -> frozenset[int]:
        marks = {id for id, mark in enumerate(self.marks, END + 1) if mark in texts and mark.startswith(("[", "<|"))}
        return frozenset({END} if "[TOOL_CALLS]" in texts else marks)

    @property
    def all_special_ids(self) -> frozenset[int]:
        return frozenset({END})

    @property
    def cache_counts(self) -> CacheCounts:
        return CacheCounts(hits=len(self.salts))

    def encode(
        self, text: str, add_special: bool, most: int, keep: int | None = None, salt: str | None = None
    ) -> list[int]:
        self.salts.append(salt)
        self.before(text)
        if len(text) > 2 * most and keep is None:
            raise TextTooLong(len(text), most)
        pieces = re.split("(" + "|".join(map(re.escape, self.marks)) + ")", text) if self.marks else [text]
        ids = [[self.marks.index(piece) + END + 1] if piece in self.marks else piece.encode() for piece in pieces]
        return [id for each in ids for id in each][-(keep or 0) :]

    def encode_chat(
        self,
        messages: list[dict[str, Any]],
        most: int,
        variables: dict[str, Any],
        *,
        add_special: bool = False,
        keep: int | None = None,
        continued: bool = False,
        cut: str = "",
        salt: str | None = None,
    ) -> list[int]:
        self.messages, self.given = messages, variables
        return self.encode(
            "".join(f"{m['role']}: {m['content']}\n" for m in messages) + self.turn, True, most, keep, salt
        )

    def token_bytes(self, id: int) -> bytes:
        return bytes([id]) if id < END else self.marks[id - END - 1].encode() if id > END else b""

    def token_text(self, id: int) -> str:
        return self.marks[id - END - 1] if id > END else f"<{id}>"


def token(text: str, offset: int, logprob: float = -0.5) -> TokenText:
    """A token with one alternative beside itself."""
    raw = text.encode()
    top = (TopLogprob(raw[0], logprob), TopLogprob(ord("z"), -3.0))
    return TokenText(raw[0], text, raw, TokenLogprobs(logprob, top), offset)


@dataclass
class ScriptedGeneration:
    request: GenerationRequest
    steps: list[Step]
    usage: Usage = field(default_factory=Usage)
    route: RouteRecord = field(default_factory=lambda: RouteRecord("id"))
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    admitted: asyncio.Event = field(default_factory=asyncio.Event)
    admits: bool = True

    def __aiter__(self) -> "ScriptedGeneration":
        return self

    async def __anext__(self) -> Delta:
        while self.steps:
            step = self.steps.pop(0)
            if isinstance(step, Gate):
                step.reached.set()
                await step.wait()
            elif isinstance(step, Exception):
                raise step
            else:
                self.usage.completion_tokens += 1
                return step
        raise StopAsyncIteration

    def ready(self) -> list[Delta]:
        found = []
        while self.steps and isinstance(self.steps[0], Delta):
            found.append(self.steps.pop(0))
            self.usage.completion_tokens += 1
        return found

    async def wait_admitted(self) -> bool:
        await self.admitted.wait()
        return self.admits

    async def cancel(self) -> None:
        self.cancelled.set()


def capital(request: GenerationRequest) -> list[Step]:
    each = range(request.choices)
    said = [Delta(choice, text, (token(text[0], at),)) for at, text in ((0, "Paris"), (5, " é")) for choice in each]
    return [*said, *(Delta(choice, "!", (token("!", 7),), "stop") for choice in each)]


class ScriptedRelay:
    def __init__(self) -> None:
        self.script: Callable[[GenerationRequest], list[Step]] = capital
        self.generations: list[ScriptedGeneration] = []

    def submit(self, request: GenerationRequest) -> ScriptedGeneration:
        usage = Usage(prompt_tokens=len(request.prompt), cached_tokens=4)
        route = RouteRecord(request.id, 1, "prefill-0", "decode-0", len(request.prompt), {"prefill-0": 16}, "ucx:tcp")
        generation = ScriptedGeneration(request, self.script(request), usage, route)
        self.generations.append(generation)
        return generation

    @property
    def requests(self) -> list[GenerationRequest]:
        return [generation.request for generation in self.generations]


@dataclass
class ScriptedStatus:
    why: str | None = None
    under_way: int = 0

    def load(self) -> int:
        return self.under_way

    def unready(self) -> str | None:
        return self.why

    def metrics(self) -> tuple[bytes, str]:
        return b"# nothing\n", "text/plain; version=0.0.4"


@dataclass
class Clock:
    """Stands still until it is moved."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def keyed(folder: Path, **tenants: dict[str, Any]) -> KeyFile:
    """A file of API keys: that of each tenant is `key-NAME`, beside what else is said of it."""
    path = folder / "api-keys.json"
    named = {name: {"keys": [api_keys.digest(f"key-{name}")], **more} for name, more in tenants.items()}
    path.write_text(json.dumps({"tenants": named}))
    return KeyFile(path)


@dataclass
class Gateway:
    """The application with its scripted collaborators, and clients for it."""

    tokens: ByteTokens
    clock: Clock

    relay: ScriptedRelay
    status: ScriptedStatus
    budget: BodyBudget
    app: FastAPI
    entries: list[AccessEntry]
    http: httpx.AsyncClient
    client: openai.AsyncOpenAI

    async def chat(self, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], **fields}
        return await self.http.post("/v1/chat/completions", json=body, headers=headers)

    async def complete(self, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
        return await self.http.post(
            "/v1/completions", json={"model": "tiny", "prompt": "hi", **fields}, headers=headers
        )

    def gate(self) -> Gate:
        return Gate()

    def script(self, *steps: Step) -> None:
        self.relay.script = lambda _: list(steps)

    def say(self, text: str, finish: str = "stop", size: int = 3, choices: int = 1) -> None:
        """The model writes this in every choice, a few characters at a time."""
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        deltas = [Delta(choice, piece) for piece in pieces for choice in range(choices)]
        self.script(*deltas, *(Delta(choice, "", (), finish) for choice in range(choices)))


def build(streams: StreamPolicy | None = None, clients: Clients = PROXIED, **options: Any) -> Gateway:
    relay, status = ScriptedRelay(), ScriptedStatus()
    defaults = options.pop("defaults", NEUTRAL)
    most = options.pop("max_output", None)
    model = ServedModel("tiny", context=1000, max_output=most, created=7, fingerprint="fp", defaults=defaults)
    tokens, clock = ByteTokens(*(options.pop(key, default) for key, default in _TOKENS.items())), Clock()
    entries: list[AccessEntry] = []
    budget = BodyBudget(2 << 20)
    parsers = {name: options.pop(name) for name in ("tool_call_parser", "reasoning_parser") if name in options}
    app_options = {name: options.pop(name) for name in ("tracing", "responses", "allowed_origins") if name in options}
    serving = ServingContext(
        ModelServing.of_model(tokens, model, **parsers),
        relay,
        max_body_bytes=1 << 20,
        pending_bodies=budget,
        preparation=PreparationPool(options.pop("processes", ())),
        streams=streams or StreamPolicy(),
        clock=clock,
        clients=clients,
        **options,
    )
    app = application.create(application.Parts(serving, status, entries.append, **app_options))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    http = httpx.AsyncClient(transport=transport, base_url="http://gateway", headers=JSON)
    client = openai.AsyncOpenAI(base_url="http://gateway/v1", api_key="-", http_client=http, max_retries=0)
    return Gateway(tokens, clock, relay, status, budget, app, entries, http, client)


@pytest.fixture
def make() -> Callable[..., Gateway]:
    return build


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    built = build()
    async with built.http:
        yield built
