"""Required calls of functions with random arguments in each format, by gateways of this process and real workers.

The model means nothing: calls are valid because their grammar lets it write nothing else.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from types import SimpleNamespace
from typing import Any

import httpx
import random_schemas
import wordy_model
from budget import times
from generation_apis import CHAT, Said
from scripted_gateway import ScriptedGeneration

from legato_gateway.gateway import Gateway
from legato_gateway.openai.chat import tool_grammar
from legato_gateway.openai.chat.tool_definitions import Function
from legato_gateway.parsers.tool_calls.families import ARRAY, FAMILIES
from legato_gateway.request import Delta, GenerationRequest
from legato_gateway.settings import GatewaySettings
from legato_gateway.tokenizer import gguf
from legato_gateway.tokenizer.tokens import ModelTokenizer
from legato_protocol.model_files import model_digest

TEMPLATE = "{{ tools }}{% for message in messages %}{{ message.content }}{% endfor %}"
TURNS = {"Harmony": "<|start|>assistant"}  # how prompts end
AS_ARRAY = ("Pythonic", "Gemma")  # formats that grammars do not enforce
OFFERED = 3  # functions of a request


@dataclass
class Recorded:
    """A generation, and its deltas so far."""

    generation: Any
    deltas: list[Delta] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.generation, name)

    def __aiter__(self) -> "Recorded":
        return self

    async def __anext__(self) -> Delta:
        self.deltas.append(await anext(self.generation))
        return self.deltas[-1]

    def ready(self) -> list[Delta]:
        made: list[Delta] = self.generation.ready()
        self.deltas += made
        return made


class ReplayedRelay:
    """A relay whose every second request is answered as the one before, without a worker."""

    def __init__(self, submit: Any) -> None:
        self._submit = submit
        self._last: Recorded | None = None

    def submit(self, request: GenerationRequest) -> Any:
        last, self._last = self._last, None
        if last is None:
            self._last = last = Recorded(self._submit(request))
            return last
        return ScriptedGeneration(request, list(last.deltas))


@contextlib.asynccontextmanager
async def serving(service: Any, family: str) -> AsyncIterator[Any]:
    """A gateway for the workers of the service, whose model has calls of this format."""
    path = wordy_model.path()
    files = replace(gguf.from_gguf(path), chat_template=TEMPLATE + TURNS.get(family, ""), tool_template=None)
    workers = tuple((worker["worker"], worker["address"]) for worker in service.workers())
    settings = GatewaySettings(
        str(path), served_name="tiny", token=service.token(), workers=workers, tool_call_parser=family
    )
    tokens, loop = ModelTokenizer(files), asyncio.get_running_loop()
    gateway = Gateway(settings, tokens, model_digest.digest(path), loop)
    relay = gateway.relay
    relay.submit = ReplayedRelay(relay.submit).submit  # type: ignore[method-assign]
    following = asyncio.create_task(gateway.follow())
    transport = httpx.ASGITransport(gateway.app)
    bias = {str(files.tokenizer.token_to_id(end)): wordy_model.LIFTED for end in wordy_model.ENDS_OF_TEXTS}
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        try:
            yield SimpleNamespace(http=client, bias=bias)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


def functions(family: str, values: Sequence[dict[str, Any]]) -> list[Function]:
    """Their arguments have these schemas, or those of them that calls in the model's own format can be held to."""

    def format(schema: dict[str, Any]) -> str:
        return tool_grammar.required_format(family, [Function("f", parameters={"properties": {"a": schema}})])

    own = [schema for schema in values if format(schema) != ARRAY]
    assert bool(own) == (family not in AS_ARRAY)
    draw = Random(family)
    count = times(OFFERED)
    return [Function(f"f{each}", parameters=random_schemas.arguments(draw, own or values)) for each in range(count)]


def check(said: Said, offered: list[Function], choice: str) -> None:
    """The calls are of functions that may be called, and have the arguments that these name."""
    allowed = [each for each in offered if choice in ("required", each.name)]
    schemas = {each.name: {**(each.parameters or {}), "additionalProperties": False} for each in allowed}
    assert said.calls
    for name, arguments in said.calls:
        random_schemas.check(schemas[name], arguments)


async def calls(service: Any, family: str, values: Sequence[dict[str, Any]]) -> list[str]:
    """The finish reasons of answers that must call one of several functions, or a named one."""
    ends, every = [], functions(family, values)
    async with serving(service, family) as gateway:
        for first in range(0, len(every), OFFERED):
            offered = every[first : first + OFFERED]
            tools = [{"name": each.name, "parameters": each.parameters} for each in offered]
            for seed, choice in enumerate(["required", *(each.name for each in offered)], first):
                fields = {**CHAT.meant("tools", tools), **CHAT.meant("choice", choice), **CHAT.meant("most", 300)}
                fields |= CHAT.meant("one call", True) if choice != "required" else {}
                fields |= {"seed": seed, "logit_bias": gateway.bias}
                streamed, whole = [await CHAT.ask(gateway, stream, **fields) for stream in (True, False)]
                assert (streamed.calls, streamed.finish) == (whole.calls, whole.finish)
                ends.append(whole.finish)
                if whole.finish == "calls":
                    check(whole, offered, choice)
    return ends


async def test_required_calls_of_every_format_are_valid(service: Any) -> None:
    values = [{"type": "string"}, *random_schemas.supported(times(16), 5)]
    values = [{key: value for key, value in schema.items() if key != "$defs"} for schema in values]
    made = await asyncio.gather(*(calls(service, each, values) for each in FAMILIES))
    ends = dict(zip(FAMILIES, made, strict=True))
    for family, each in ends.items():
        assert set(each) <= {"calls", "length"}, family
        assert each.count("calls") >= 0.8 * len(each), (family, each)
    service.until_idle()
