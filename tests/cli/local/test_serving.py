"""Starts and ends of `legato up`, in process."""

import asyncio
import contextlib
import io
import os
import signal
import socket
from types import SimpleNamespace

import local_services
import pytest
from local_services import ONE_GPU, operations

from legato_cli.local import serving, up
from legato_cli.local.terminal import Terminal
from legato_cli.machine import gpus
from legato_operator.errors import ManifestError
from legato_operator.local.store import Store


class SlowController:
    """Takes a few iterations of the loop to end after it was cancelled."""

    ended = False

    def wake(self, ref):
        """Nothing is done: the service is never ready."""

    async def run(self):
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(50):
                await asyncio.sleep(0)
            self.ended = True


async def _until_interrupted(path, out, before):
    controller, store = SlowController(), Store(lambda: "now")
    cluster = SimpleNamespace(store=store, failed=asyncio.get_running_loop().create_future())
    with socket.create_server(("127.0.0.1", 0)) as front:
        given = (path, serving.read_manifest(path), front, Terminal(out, out), operations(store))
        task = asyncio.create_task(serving._Serving(cluster, controller, *given).run())
        while not (await store.list("InferenceService")).items:  # noqa: ASYNC110 - the store notifies nobody
            await asyncio.sleep(0)
        await asyncio.to_thread(before)
        os.kill(os.getpid(), signal.SIGINT)
        assert await asyncio.wait_for(task, 60) == 0
    assert controller.ended, "what it uses is closed after it"
    assert asyncio.all_tasks() == {asyncio.current_task()}


def run(path=up.QUICKSTART, before=lambda: None):
    """The output until a SIGINT that comes once the service is stored; no task is left."""
    out = io.StringIO()
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        loop.run_until_complete(_until_interrupted(path, out, before))
        loop.run_until_complete(asyncio.wait_for(loop.shutdown_default_executor(), 60))  # as `asyncio.run` does
    return out.getvalue()


@pytest.fixture
def write(tmp_path):
    return lambda **spec: local_services.write(tmp_path / "service.yaml", **spec)


@pytest.fixture
def found(monkeypatch):
    return lambda count: monkeypatch.setattr(gpus, "visible", lambda _: tuple(map(str, range(count))))


def test_a_cancelled_controller_is_awaited_and_the_end_says_how_long_it_may_take():
    out = run()
    stopping = "legato: stopping: draining, up to 2m; press Ctrl-C again to stop now"
    assert out.splitlines()[-2:] == [stopping, "legato: stopped"]
    assert "no effect" not in out


BOTH_POOLS = {"prefill": ONE_GPU, "decode": ONE_GPU}
PACED = {"runner": "Paced", "profile": "h200-llama-3.1-8b-bf16"}
NO_EFFECT = "spec.decode.resources: nvidia.com/gpu has no effect here: no GPU was found"


@pytest.mark.parametrize(
    ("spec", "there", "said", "lines"),
    [
        ({"gateway": {"template": {"spec": {"nodeSelector": {"a": "b"}}}}}, 0, "template: has no effect here: ", 1),
        ({"engine": PACED, "slo": {"tpot": "1ms"}}, 0, "spec.slo.tpot: slo.tpot is 1 ms, but ", 1),
        (BOTH_POOLS, 0, NO_EFFECT, 1),
        (BOTH_POOLS, 1, NO_EFFECT, 0),
    ],
    ids=["a field without effect", "an objective that paced workers miss", "no GPU", "a GPU"],
)
def test_the_start_says_what_has_no_effect_here_and_which_objectives_are_missed(write, found, spec, there, said, lines):
    found(there)
    path = write(**spec)
    out = run(path)
    assert out.count(said) == lines
    assert out.count(f"legato: {path}: spec.") >= lines


def test_a_manifest_that_the_operator_would_not_start_is_refused_immediately(write, found):
    found(0)
    path = write(decode=ONE_GPU)
    assert serving.read_manifest(path).service.spec.scaling.gpu_budget is None
    found(1)
    with pytest.raises(ManifestError, match="must request GPUs"):
        serving.read_manifest(path)
    found(3)
    ranks = {"resources": {"limits": {"nvidia.com/gpu": 4}}, "parallelism": {"tensor": 4}}
    refused = r"decode\.parallelism\.tensor: 4 ranks need a GPU each, but this machine has 3; degrees that fit: 1, 2$"
    with pytest.raises(ManifestError, match=refused):
        serving.read_manifest(write(prefill=ONE_GPU, decode=ranks))


@pytest.mark.parametrize(
    ("spec", "there", "budget"),
    [
        (BOTH_POOLS, 4, 4),
        (BOTH_POOLS, 1, 2),
        ({**BOTH_POOLS, "scaling": {"prefill": {"min": 2}, "decode": {"min": 3}}}, 2, 5),
        ({**BOTH_POOLS, "scaling": {"prefill": {"min": 0}}}, 1, 2),
        ({**BOTH_POOLS, "scaling": {"gpuBudget": 9}}, 2, 9),
        ({"scaling": {}}, 1, None),
    ],
)
def test_no_more_workers_are_started_than_have_room_on_the_gpus(write, found, spec, there, budget):
    found(there)
    manifest = serving.read_manifest(write(**spec))
    assert manifest.service.spec.scaling.gpu_budget == manifest.written["spec"]["scaling"].get("gpuBudget") == budget
