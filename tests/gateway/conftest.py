"""A gateway without HTTP in front of scripted workers: real sockets, no model.

That with HTTP, over a relay that plays scripts, is in `scripted_gateway`.
"""

import asyncio
import contextlib
import json
import random
import shutil
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scripted_gateway import gateway, make
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from legato_gateway.admission.queue import Admission
from legato_gateway.discovery.addresses import Discovery, StaticDiscovery, WorkerAddress
from legato_gateway.http.demand_report import DemandReporter
from legato_gateway.http.state import State
from legato_gateway.metrics.gateway_metrics import Metrics
from legato_gateway.relay.context import RelayContext
from legato_gateway.relay.dispatcher import SubRequestDispatcher
from legato_gateway.relay.generation import RunningGeneration
from legato_gateway.relay.records.history import History
from legato_gateway.relay.relay import RelayPolicy, RequestRelay
from legato_gateway.relay.retry import RetryPolicy
from legato_gateway.request import Delta, GenerationRequest
from legato_gateway.routing.choose import Policy
from legato_gateway.routing.kv_index import KVIndex
from legato_gateway.testing.fake_engine import Fabric, token_at
from legato_gateway.testing.fake_worker import FakeWorker, FakeWorkerOptions
from legato_gateway.tokenizer.detokenizer import Detokenizer
from legato_gateway.workers.fleet import Fleet
from legato_gateway.workers.links import Links, opener
from legato_gateway.workers.silence import StreamLimits
from legato_protocol.sampling.parameters import SamplingParams
from legato_protocol.security.followed_tokens import ServiceTokens

__all__ = ("gateway", "make")

TOKEN = "secret"
LIMIT = 20  # seconds: a hang is a failure, not a timeout of the suite


class Letters:
    """A vocabulary of 256 tokens that are two ASCII letters each."""

    table = tuple(b"%c%c" % (97 + i // 16, 97 + i % 16) for i in range(256))

    def detokenizer(self, shown: frozenset[int] = frozenset(), marked: frozenset[int] = frozenset()) -> Detokenizer:
        return Detokenizer(self.table)

    def token_bytes(self, id: int) -> bytes:
        return self.table[id]


def text_of(seed: int, count: int, choice: int = 0) -> str:
    """The text of an undisturbed run of `count` tokens."""
    return b"".join(Letters.table[token_at(seed, choice, index)] for index in range(count)).decode()


def request(**overrides: Any) -> GenerationRequest:
    """A request of 20 tokens after a prompt of 100."""
    params = {"max_tokens": 20, "seed": 7} | {
        key: overrides.pop(key) for key in list(overrides) if key in SamplingParams.__struct_fields__
    }
    values: dict[str, Any] = {"id": "r", "prompt": tuple(range(100)), "deadline": 15.0} | overrides
    return GenerationRequest(params=SamplingParams(**params), **values)


@dataclass
class Reader:
    """Reads a generation as a client does."""

    generation: RunningGeneration
    texts: dict[int, str] = field(default_factory=dict)
    finishes: dict[int, str] = field(default_factory=dict)
    deltas: list[Delta] = field(default_factory=list)

    def take(self, delta: Delta) -> None:
        self.deltas.append(delta)
        self.texts[delta.choice] = self.texts.get(delta.choice, "") + delta.text
        if delta.finish:
            assert delta.choice not in self.finishes
            self.finishes[delta.choice] = delta.finish

    async def read(self) -> "Reader":
        async for delta in self.generation:
            self.take(delta)
        return self

    @property
    def text(self) -> str:
        return self.texts.get(0, "")


class Gateway:
    """All parts of a gateway but its HTTP."""

    def __init__(self, workers: list[FakeWorker], **options: Any) -> None:
        retry = RetryPolicy(**{k: options.pop(k) for k in list(options) if k in RetryPolicy.__dataclass_fields__})
        relay = {k: options.pop(k) for k in list(options) if k in RelayPolicy.__dataclass_fields__}
        hang, more = options.pop("hang", 15.0), options.pop("limits", {})
        limits = StreamLimits(hang, backoff_first=0.01, backoff_most=0.05, **more)
        self.workers = workers
        loop = asyncio.get_running_loop()
        self.fleet = Fleet(loop.time, "fake")
        self.index = KVIndex()
        self.admission = Admission()
        self.history, self.metrics = History(), Metrics()
        self.links = Links(self.fleet, opener("gateway-1", ServiceTokens(TOKEN), limits))
        discovery = options.pop("discovery", StaticDiscovery(()))
        hold = options.pop("hold_without_workers", False)
        tracer = options.pop("tracer", None)
        vocabulary = options.pop("vocabulary", None) or Letters()
        policy = Policy(**options)
        context = RelayContext(self.fleet, self.index, self.admission, self.history, self.metrics, loop)
        dispatcher = SubRequestDispatcher(context, policy, self.links.send, random.Random(1))
        relaying = RelayPolicy(retry=retry, **relay)
        self.relay = RequestRelay(context, dispatcher, vocabulary, self.links, relaying, tracer)
        self.demand = DemandReporter("gateway-1", self.relay, self.fleet, loop.time)
        model = {"name": "m", "max_length": 4096}
        self.state = State(context, self.relay, discovery, self.demand, hold, lambda: model)

    def submit(self, **overrides: Any) -> Reader:
        return Reader(self.relay.submit(request(**overrides)))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits for something that no event announces."""
        while not condition():  # noqa: ASYNC110 – nothing announces it
            await asyncio.sleep(0.002)

    async def wait_ready(self) -> None:
        await self.until(lambda: all(w.ready and w.load for w in self.fleet) and bool(list(self.fleet)))

    def count(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"legato_gateway_{name}", labels) or 0.0


class Listing:
    """A discovery of the workers that a test lists, when it lists them."""

    problem = "scripted"

    def __init__(self, *workers: FakeWorker) -> None:
        self._lists: asyncio.Queue[tuple[WorkerAddress, ...]] = asyncio.Queue()
        self.list(*workers)

    def list(self, *workers: FakeWorker) -> None:
        self._lists.put_nowait(tuple(WorkerAddress(worker.name, worker.address) for worker in workers))

    async def watch(self) -> AsyncIterator[tuple[WorkerAddress, ...]]:
        while True:
            yield await self._lists.get()


@contextlib.asynccontextmanager
async def running(workers: list[FakeWorker], **options: Any) -> AsyncIterator[Gateway]:
    """A gateway connected to all of `workers`, which are started for it."""
    async with following([(worker.name, worker) for worker in workers], **options) as gateway:
        await gateway.wait_ready()
        yield gateway


@contextlib.asynccontextmanager
async def following(found: Discovery | list[tuple[str, FakeWorker | str]], **options: Any) -> AsyncIterator[Gateway]:
    """A gateway that follows a discovery, or looks for workers (started for it) and addresses under these names."""
    async with asyncio.timeout(LIMIT), contextlib.AsyncExitStack() as stack:
        workers = [worker for _, worker in found if isinstance(worker, FakeWorker)] if isinstance(found, list) else []
        for worker in workers:
            await stack.enter_async_context(worker)
        if isinstance(found, list):
            named = ((name, at if isinstance(at, str) else at.address) for name, at in found)
            found = StaticDiscovery(tuple(WorkerAddress(name, address) for name, address in named))
        gateway = Gateway(workers, discovery=found, **options)
        task = asyncio.create_task(gateway.links.follow(found, gateway.relay.workers))
        try:
            await gateway.until(lambda: gateway.fleet.has_tried_all or bool(list(gateway.fleet)))
            yield gateway
            gateway.relay.check_integrity()
            gateway.fleet.check_integrity()
            gateway.links.check_integrity()
            assert not task.done(), task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def pools(prefill: int = 1, decode: int = 2, **options: Any) -> list[FakeWorker]:
    """Workers p0…, d0… on one fabric."""
    roles = [*[("prefill", f"p{i}") for i in range(prefill)], *[("decode", f"d{i}") for i in range(decode)]]
    fabric = Fabric()
    return [FakeWorker(name, role, fabric=fabric, options=FakeWorkerOptions(TOKEN, **options)) for role, name in roles]


def unified(count: int = 2, **options: Any) -> list[FakeWorker]:
    """Unified workers u0… on one fabric."""
    fabric = Fabric()
    made = FakeWorkerOptions(TOKEN, **options)
    return [FakeWorker(f"u{i}", "unified", fabric=fabric, options=made) for i in range(count)]


@pytest.fixture(scope="session")
def lab() -> SimpleNamespace:
    """The builders above, for tests that cannot import this file."""

    def worker(gateway: Gateway, name: str) -> FakeWorker:
        return next(worker for worker in gateway.workers if worker.name == name)

    builders = {each.__name__: each for each in (running, following, pools, unified, text_of, request, worker)}
    return SimpleNamespace(**builders, listing=Listing, token=TOKEN, vocabulary=Letters())


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer of 256 bytes and nothing else."""
    folder = tmp_path_factory.mktemp("model")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: id for id, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def chat_model(model: Path, tmp_path: Path) -> Path:
    """The same with a chat template."""
    folder = shutil.copytree(model, tmp_path / "chat_model")
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return folder
