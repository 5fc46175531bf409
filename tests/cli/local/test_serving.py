"""What one run of `legato up` begins with, and how it ends."""

import asyncio
import contextlib
import io
import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_hub
import pytest
import yaml
from recordings import operations

from legato_cli import gpus, up
from legato_cli.local import serving
from legato_cli.local.terminal import Terminal
from legato_operator.cluster import Ref
from legato_operator.errors import ManifestError
from legato_operator.local.store import Store
from legato_protocol import names


class SlowController:
    """Takes a few turns of the loop to end after it was cancelled."""

    def __init__(self) -> None:
        self.ended = False

    def wake(self, ref: Any) -> None:
        """Nothing is done: the service is never ready."""

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(50):
                await asyncio.sleep(0)
            self.ended = True


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs until a SIGINT that comes once the service is stored; the controller, all tasks left and what was told."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    async def check(
        path: Path, out: io.StringIO, before: Callable[[], None]
    ) -> tuple[SlowController, set[asyncio.Task[Any]]]:
        controller, store = SlowController(), Store(lambda: "now")
        cluster = SimpleNamespace(store=store, failed=asyncio.get_running_loop().create_future())
        manifest = serving.read_manifest(path)
        with socket.create_server(("127.0.0.1", 0)) as front:
            asked = operations(cluster.store, Ref(names.INFERENCE_SERVICE, "default", "demo"))
            terminal = Terminal(out, out)
            running = serving._Serving(cluster, controller, path, manifest, front, terminal, asked)
            task = asyncio.create_task(running.run())
            while not (await store.list("InferenceService")).items:  # noqa: ASYNC110 - the store tells nobody
                await asyncio.sleep(0)
            await asyncio.to_thread(before)
            os.kill(os.getpid(), signal.SIGINT)
            assert await asyncio.wait_for(task, 20) == 0
        return controller, asyncio.all_tasks() - {asyncio.current_task()}

    def checked(
        path: Path = up.QUICKSTART, before: Callable[[], None] = lambda: None
    ) -> tuple[SlowController, set[Any], list[str]]:
        out = io.StringIO()
        with contextlib.closing(asyncio.new_event_loop()) as loop:
            controller, left = loop.run_until_complete(check(path, out, before))
            loop.run_until_complete(asyncio.wait_for(loop.shutdown_default_executor(), 20))  # as `asyncio.run` does
        return controller, left, out.getvalue().splitlines()

    return checked


def test_a_cancelled_controller_is_awaited(run):
    """What it uses is closed after it."""
    controller, left, _ = run()
    assert controller.ended
    assert left == set()


def test_the_end_says_how_long_it_may_take(run):
    _, _, told = run()
    assert told[-2:] == [
        "legato: stopping: draining, up to 2m; press Ctrl-C again to stop now",
        "legato: stopped",
    ]


def test_the_start_says_what_has_no_effect_here(run, tmp_path):
    path = tmp_path / "service.yaml"
    path.write_text(up.QUICKSTART.read_text() + "  gateway: {template: {spec: {nodeSelector: {a: b}}}}\n")
    _, _, told = run(path)
    assert f"legato: {path}: spec.gateway.template: has no effect here: " in "\n".join(told)
    assert "no effect" not in "\n".join(run()[2])


def test_the_start_says_which_objectives_paced_workers_miss(run, tmp_path):
    path = tmp_path / "service.yaml"
    paced = "  engine: {runner: Paced, profile: h200-llama-3.1-8b-bf16}\n"
    path.write_text(up.QUICKSTART.read_text() + paced + "  slo: {tpot: 1ms}\n")
    assert f"legato: {path}: spec.slo.tpot: slo.tpot is 1 ms, but " in "\n".join(run(path)[2])


@pytest.mark.parametrize(("found", "told"), [((), 1), (("0",), 0)])
def test_the_start_says_that_there_is_no_gpu(run, tmp_path, monkeypatch, found, told):
    monkeypatch.setattr(gpus, "visible", lambda _: found)
    path = _with_gpus(tmp_path, prefill=ONE_GPU, decode=ONE_GPU)
    line = f"legato: {path}: spec.decode.resources: nvidia.com/gpu has no effect here: no GPU was found"
    assert sum(said.startswith(line) for said in run(path)[2]) == told


def _with_gpus(tmp_path, **spec):
    path = tmp_path / "service.yaml"
    manifest = yaml.safe_load(up.QUICKSTART.read_text())
    manifest["spec"] |= spec
    path.write_text(yaml.safe_dump(manifest))
    return path


ONE_GPU = {"resources": {"limits": {"nvidia.com/gpu": 1}}}


def test_what_the_operator_would_not_start_is_refused_at_once(monkeypatch, tmp_path):
    """Else nothing would be started, and nothing said."""
    path = _with_gpus(tmp_path, decode=ONE_GPU)
    assert serving.read_manifest(path).service.spec.scaling.gpu_budget is None
    monkeypatch.setattr(gpus, "visible", lambda _: ("0",))
    with pytest.raises(ManifestError, match="must request GPUs"):
        serving.read_manifest(path)


@pytest.mark.parametrize(
    ("scaling", "found", "budget"),
    [
        ({}, 4, 4),
        ({}, 1, 2),
        ({"prefill": {"min": 2}, "decode": {"min": 3}}, 2, 5),
        ({"prefill": {"min": 0}}, 1, 2),
        ({"gpuBudget": 9}, 2, 9),
    ],
)
def test_no_more_workers_are_started_than_have_room_on_the_gpus(monkeypatch, tmp_path, scaling, found, budget):
    monkeypatch.setattr(gpus, "visible", lambda _: tuple(map(str, range(found))))
    path = _with_gpus(tmp_path, prefill=ONE_GPU, decode=ONE_GPU, scaling=scaling)
    manifest = serving.read_manifest(path)
    assert manifest.service.spec.scaling.gpu_budget == manifest.written["spec"]["scaling"]["gpuBudget"] == budget


def test_a_service_that_asks_for_no_gpu_gets_no_budget(monkeypatch):
    monkeypatch.setattr(gpus, "visible", lambda _: ("0",))
    assert serving.read_manifest(up.QUICKSTART).service.spec.scaling.gpu_budget is None


def test_pods_get_the_gpus_of_this_machine(monkeypatch):
    asked = []

    @contextlib.asynccontextmanager
    async def open_cluster(*given):
        asked.append(given[-1])
        raise serving.CannotServe("enough")
        yield

    monkeypatch.setattr(gpus, "visible", lambda _: ("5", "6"))
    monkeypatch.setattr(serving, "open_cluster", open_cluster)
    with socket.socket() as listener, pytest.raises(serving.CannotServe):
        serving.serve(up.QUICKSTART, serving.read_manifest(up.QUICKSTART), listener)
    assert asked == [("5", "6")]


def test_the_end_waits_for_no_download_that_an_edit_began(run, tmp_path, monkeypatch):
    """Nor does the process: its threads would keep it."""
    path, asked, ended = tmp_path / "service.yaml", threading.Event(), threading.Event()
    (tmp_path / "m.gguf").touch()
    manifest = yaml.safe_load(up.QUICKSTART.read_text())
    manifest["spec"]["model"]["source"] = {"path": "m.gguf"}
    path.write_text(yaml.safe_dump(manifest))
    source = {"huggingFace": {"repo": fake_hub.REPO, "revision": fake_hub.COMMIT}}

    def serve(name: str, content: bytes) -> bytes:
        if name == "adapter_model.safetensors":
            asked.set()
            ended.wait(60)
        return content

    def edit() -> None:
        manifest["spec"]["model"]["adapters"] = [{"name": "sql", "source": source}]
        for number in range(60):  # it counts once the file was read before
            path.write_text(f"{yaml.safe_dump(manifest)}# {number}\n")
            if asked.wait(1):
                return
        raise AssertionError("the hub is not asked")

    with fake_hub.serving() as hub:
        hub.files |= {"adapter_config.json": b"{}", "adapter_model.safetensors": fake_hub.WEIGHTS}
        hub.serve = serve
        for name, value in {
            "HF_ENDPOINT": hub.url,
            "HF_TOKEN": fake_hub.TOKEN,
            "HF_HUB_DOWNLOAD_TIMEOUT": "50",
        }.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        monkeypatch.setenv(names.ENV_CACHE, str(tmp_path / "cache"))
        try:
            _, left, told = run(path, edit)
        finally:
            ended.set()
    assert left == set()
    assert told[-1] == "legato: stopped"
