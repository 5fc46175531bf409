"""A real service on this machine: `legato up` with its gateway and workers, driven by the official client."""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil
import pytest
import wordy_model
from openai import OpenAI

from legato_cli.local import admin

T = TypeVar("T")
LEGATO = [sys.executable, "-m", "legato_cli.main"]
TIE = 2e-3  # logprobs closer than this are one value in float32 sums of another order
PATIENCE = 240.0  # seconds; only a hang reaches it, or much else that runs on the machine
START = 540.0  # seconds; the first service compiles all kernels while other tests use the processor

# The service that tests share. Its chunks are small, so that a prompt is computed in steps that can be interrupted.
# Routing ignores measured step times: one slow step on a busy machine would send all requests elsewhere.
MANIFEST = """
apiVersion: serving.legato.dev/v1alpha1
kind: InferenceService
metadata: {{name: test}}
spec:
  model: {{servedName: smollm2, maxLength: 4096, source: {{path: {model}}}, adapters: {adapters}, adaptersInMemory: 2}}
  engine: {{blockSize: 16, kvCacheMemory: 256Mi, chunkTokens: 64, dtype: Float32, hangTimeout: 8s{engine}}}
  prefill: {{resources: {{requests: {{cpu: "1"}}}}}}
  decode: {{resources: {{requests: {{cpu: "1"}}}}}}
  gateway: {{defaultDeadline: 2m, reasoningParser: "Off"}}
  routing: {{localPrefillBelowTokens: 16, whenPrefillBusy: Wait, weights: {{stepTime: 0}}}}
  slo: {{ttft: 1s}}
  scaling: {scaling}
  drain: {{deadline: 60s}}
"""
SCALING = "{mode: External, prefill: {min: 1, max: 1}, decode: {min: 1, max: 4}}"


@dataclass
class Stream:
    """One streamed completion, read in a thread of its own."""

    id: str = ""
    texts: defaultdict[int, str] = field(default_factory=lambda: defaultdict(str))  # by choice
    chunks: int = 0
    whole: bool = False  # its end was read
    finish: str | None = None
    error: BaseException | None = None
    logprobs: list[Any] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)

    @property
    def text(self) -> str:
        return self.texts[0]

    def take(self, line: bytes) -> None:
        """A line of the answer: a chunk, a comment, or the end."""
        self.whole |= line == b"data: [DONE]"
        if not line.startswith(b"data: {"):
            return
        chunk = json.loads(line.removeprefix(b"data: "))
        assert "error" not in chunk, chunk
        for choice in chunk["choices"]:
            self.texts[choice["index"]] += choice["text"]
            self.finish = choice["finish_reason"] or self.finish
            self.logprobs += (choice.get("logprobs") or {}).get("top_logprobs") or []
        self.id = chunk["id"]
        self.chunks += 1

    def result(self) -> str:
        """The whole text. Raises what the client raised."""
        assert self.done.wait(PATIENCE), "the stream hangs"
        if self.error:
            raise self.error
        return self.text

    def check(self, expected: "Stream") -> None:
        """The text is the same; for greedy streams a first difference is allowed where the logits prove a tie."""
        if self.result() == expected.text:
            return
        assert expected.logprobs, f"{self.text!r} is not {expected.text!r}"
        pairs = zip(self.logprobs, expected.logprobs, strict=False)
        ours, theirs = next((a, b) for a, b in pairs if max(a, key=a.__getitem__) != max(b, key=b.__getitem__))
        best, second = sorted(theirs.values(), reverse=True)[:2]
        assert best - second < TIE, f"not a tie: {theirs} and {ours}"


class Service:
    """A running `legato up`."""

    def __init__(self, folder: Path, adapters: str = "[]", engine: str = "", scaling: str = SCALING) -> None:
        """Serves the model of random words; `engine` continues its settings."""
        self.file = folder / "inferenceservice.yaml"
        text = MANIFEST.format(model=wordy_model.path(), adapters=adapters, engine=engine, scaling=scaling)
        self.file.write_text(text)
        self._log = folder / "up.log"
        self.environment = os.environ | {"XDG_RUNTIME_DIR": str(folder)}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*LEGATO, "up", "-f", str(self.file), "--port", "0"], stdout=log, stderr=log, env=self.environment,
                cwd=folder, process_group=0, preexec_fn=_die_with_pytest,
            )  # fmt: skip
        self._control: str | None = None
        self._authorization: dict[str, str] = {}
        try:
            self.url = self.until(self._ready, "the service is ready", patience=START)
        except BaseException:
            self.process.kill()  # and its processes die with it
            raise
        self.client = OpenAI(base_url=f"{self.url}/v1", api_key="unused", timeout=PATIENCE, max_retries=0)
        self.http = httpx.Client(base_url=self.url, timeout=PATIENCE)

    def _ready(self) -> str | None:
        return next((line.split()[1] for line in self.log().splitlines() if line.startswith("Ready: ")), None)

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def until(
        self,
        condition: Callable[[], T | bool | None],
        what: str | Callable[[], str],
        pause: float | None = None,
        patience: float = PATIENCE,
    ) -> T:
        """Returns the value of `condition` once it is true. Fails loudly instead of waiting for ever.

        Without a `pause` it asks the more rarely the longer it has waited: answers take time from what is waited for.
        """
        began = time.monotonic()
        while (waited := time.monotonic() - began) < patience:
            if found := condition():
                return found  # type: ignore[return-value]
            assert self.process.poll() is None, f"the service has ended\n{self.log()[-6000:]}"
            time.sleep(min(0.01 + waited / 20, 0.25) if pause is None else pause)
        pytest.fail(f"waited in vain until {what if isinstance(what, str) else what()}\n{self.log()[-6000:]}")

    # ── what it tells of itself ──

    def state(self) -> dict[str, Any]:
        """State of a gateway that is ready."""
        return self.until(self._gateway_state, "a gateway reports its state")

    def _gateway_state(self) -> dict[str, Any] | None:
        self._control = self._control or self._find_control()
        if self._control is None:
            return None
        try:
            return self._get_state(self._control)
        except httpx.TransportError:  # it is gone; the next one has another port
            self._control = None
            return None

    def _get_state(self, control: str) -> dict[str, Any]:
        answer = self.http.get(f"http://{control}/state", headers=self._authorization)
        state: dict[str, Any] = answer.raise_for_status().json()
        return state

    def _find_control(self) -> str | None:
        """Address of the control port of a gateway that is ready, and the service's token."""
        with socket.socket(socket.AF_UNIX) as asked, asked.makefile("rb") as answers:
            asked.connect(str(admin.folder(self.environment) / "test.sock"))
            asked.sendall(b'{"do": "ui"}\n')
            target = json.loads(answers.readline())["target"]
        self._authorization = {"Authorization": f"Bearer {target['token']}"}
        return str(target["gateways"][0]["address"]) if target["gateways"] else None

    def workers(self, role: str = "") -> list[dict[str, Any]]:
        return [w for w in self.state()["workers"] if not role or w.get("role") == role]

    def token(self) -> str:
        """The service's token, which its workers and gateways show each other."""
        self.state()
        return self._authorization["Authorization"].removeprefix("Bearer ")

    def worker(self, name: str) -> dict[str, Any]:
        return next((w for w in self.workers() if w["worker"] == name), {})

    def record(self, completion_id: str) -> dict[str, Any]:
        return next(r for r in self.state()["requests"] if r["id"] == completion_id)

    def worker_state(self, name: str) -> dict[str, Any]:
        """The state of a worker, by its control port."""
        return self._get_state(self.worker(name)["address"])

    def processes(self, name: str) -> list[psutil.Process]:
        """Server and core of a worker."""
        tree = psutil.Process(self.process.pid).children(recursive=True)
        servers = [p for p in tree if "worker" in (line := _command(p)) and name in line]
        return [p for server in servers for p in (server, *server.children(recursive=True))]

    def until_connected(self, name: str, not_epoch: str = "") -> None:
        self.until(
            lambda: (w := self.worker(name)).get("connection") == "connected" and w["epoch"] != not_epoch,
            f"{name} is connected again",
        )

    def until_idle(self) -> None:
        """Nothing runs, waits or is held anywhere, and all blocks are accounted for."""
        self.until(
            lambda: all(map(_idle, self.workers())),
            lambda: f"all blocks are back: {json.dumps(self.workers(), indent=1)}",
        )

    def edit(self, *changes: tuple[str, str]) -> None:
        """Edits the manifest, which `legato up` follows, until its log says so."""
        text = written = self.file.read_text()
        before = len(self.log())
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        if text == written:
            return
        draft = self.file.with_suffix(".draft")
        draft.write_text(text)
        draft.replace(self.file)
        self.until(lambda: "change applied" in self.log()[before:], "the change is applied")

    def gateways(self) -> set[int]:
        tree = psutil.Process(self.process.pid).children()
        return {process.pid for process in tree if "gateway" in _command(process)}

    def edit_gateway(self, *changes: tuple[str, str]) -> None:
        """Edits what another gateway has to know, until that one serves."""
        before = self.gateways()
        self.edit(*changes)
        self.until(lambda: (now := self.gateways()) and not now & before, "another gateway serves")

    def scale(self, pool: str, replicas: int) -> None:
        """Until the pool has that many workers, all of them connected."""
        if len(self.workers(pool)) != replicas:
            scaled = self.command("scale", pool, str(replicas))
            assert scaled.returncode == 0, scaled.stderr
        self.until(lambda: len(self.workers(pool)) == replicas, f"{replicas} {pool} workers are there")
        for worker in self.workers(pool):
            self.until_connected(worker["worker"])

    # ── requests ──

    def stream(self, prompt: str | list[int], max_tokens: int = 40, **options: Any) -> Stream:
        """Starts reading a completion in the background, without the official client, which takes its time for each
        chunk."""
        stream = Stream()
        body = {"model": "smollm2", "prompt": prompt, "max_tokens": max_tokens, "stream": True}
        body |= options.pop("extra_body", {}) | options

        def read() -> None:
            try:
                with self.http.stream("POST", "/v1/completions", json=body) as answer:
                    rest = b""
                    for part in answer.raise_for_status().iter_raw():
                        *lines, rest = (rest + part).split(b"\n")  # texts may have other ends of lines
                        for line in lines:
                            stream.take(line)
                assert stream.whole, "the stream was cut off"
            except BaseException as error:
                stream.error = error
            finally:
                stream.done.set()

        threading.Thread(target=read, daemon=True).start()
        return stream

    def command(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*LEGATO, *arguments], env=self.environment, capture_output=True, text=True, timeout=PATIENCE
        )

    def stop(self) -> None:
        """Ctrl-C; nothing may be left behind."""
        tree = psutil.Process(self.process.pid).children(recursive=True) if self.process.poll() is None else []
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            assert self.process.wait(PATIENCE) == 0, self.log()[-4000:]
            _, alive = psutil.wait_procs(tree, timeout=60)
            assert not alive, f"left behind: {alive}"
        finally:
            for process in (*tree, psutil.Process()):
                if process.pid != os.getpid() and process.is_running():
                    process.kill()


def _die_with_pytest() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a killed test run leaves no service behind


def _command(process: psutil.Process) -> list[str]:
    try:
        line: list[str] = process.cmdline()
    except psutil.Error:
        return []
    return line


def _idle(worker: dict[str, Any]) -> bool:
    if worker.get("connection") != "connected" or "free_blocks" not in worker:
        return False
    blocks = [worker[f"{kind}_blocks"] for kind in ("free", "cached", "used", "quarantined")]
    busy = worker["running"] or worker["waiting"] or worker["used_blocks"] or worker["quarantined_blocks"]
    return not busy and sum(blocks) == worker["total_blocks"]


class SharedService:
    """The one service of a test run. No test gets one with which another has failed."""

    def __init__(self, session: pytest.Session, make: Callable[[], Service]) -> None:
        self._session = session
        self._make = make
        self._failed = 0  # tests, when it was started
        self._service: Service | None = None

    def get(self) -> Service:
        if self._failed != self._session.testsfailed:
            self.stop()
        if self._service is None:
            self._failed = self._session.testsfailed
            self._service = self._make()
        return self._service

    def stop(self) -> None:
        service, self._service = self._service, None
        if service is not None:
            service.stop()

    def forget(self) -> None:
        """The service is the caller's alone from now on, who ends it."""
        self._service = None


def start_shared(folder: Path) -> Service:
    """With an adapter, `red`: workers that have none yet would have to be replaced for the first."""
    red = folder / "adapters" / "red"
    wordy_model.write_adapter(red, seed=0)
    adapters = json.dumps([{"name": "red", "source": {"path": str(red)}}])
    return Service(folder, adapters=adapters)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[Any]:
    """Adds the service's log to the report of a failed test: faults of whole services seldom come again."""
    report = yield
    service = getattr(item, "funcargs", {}).get("service")
    if report.failed and isinstance(service, Service):
        report.sections.append(("log of the service", service.log()[-20_000:]))
    return report


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    made = SharedService(request.session, lambda: start_shared(tmp_path_factory.mktemp("service")))
    yield made
    made.stop()


@pytest.fixture
def service(shared: SharedService) -> Service:
    """The service that others have used before, and will use: each test leaves it as it was, at rest, with a prefill
    and a decode worker."""
    return shared.get()


@pytest.fixture(scope="module")
def reasoning(shared: SharedService) -> Iterator[None]:
    """The gateway separates what the model thinks from what it says."""
    off, think = 'reasoningParser: "Off"', 'reasoningParser: "Think"'
    shared.get().edit_gateway((off, think))
    yield
    if think in shared.get().file.read_text():  # it is another service after a failure
        shared.get().edit_gateway((think, off))


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Service]]:
    """Starts services of other settings that end with the module."""
    running: list[Service] = []

    def start_one(**settings: str) -> Service:
        service = Service(tmp_path_factory.mktemp("service"), **settings)
        running.append(service)
        return service

    yield start_one
    for service in running:
        service.stop()
