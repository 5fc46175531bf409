"""`legato up` refuses what it cannot serve before any process starts, and other commands find a running one."""

import asyncio
import json
import os
import socket
import subprocess
import sys

import pytest
from recordings import operations

from legato_cli import admin, main, scale, up
from legato_operator.cluster import Ref
from legato_operator.local.store import Store


def _legato(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "legato_cli.main", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("spec: {decode: {replica: 2}}", "spec.decode.replica: unknown field; did you mean replicas?"),
        ("a: [", "line 1"),
        (None, "No such file or directory"),
        (up.QUICKSTART.read_text() + "  engine: {numerics: Invariant}\n", "spec.engine.numerics: Invariant is not"),
        (
            up.QUICKSTART.read_text().replace("builtin: smollm2-135m-instruct", "path: /no/such/model"),
            "no such file or folder",
        ),
    ],
)
def test_bad_manifest_ends_with_2(tmp_path, capsys, text, message):
    path = tmp_path / "service.yaml"
    if text is not None:
        path.write_text(text)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    assert main.main(["up", "-f", str(path), "--port", port]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_manifest_is_utf_8_in_any_locale(tmp_path, mark):
    """In the C locale without Python's UTF-8 mode, files are ASCII unless said otherwise."""
    path = tmp_path / "service.yaml"
    path.write_text(f"{mark}{up.QUICKSTART.read_text()}  engine: {{numerics: Für}}\n", encoding="utf-8")
    run = _legato("up", "-f", str(path), LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", PYTHONIOENCODING="utf-8")
    assert run.returncode == 2
    assert "spec.engine.numerics" in run.stderr


def test_port_taken_ends_with_2(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main.main(["up", "--port", str(port)]) == 2
    assert f"port {port} is in use" in capsys.readouterr().err


def test_scale_and_status_say_that_nothing_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert main.main(["scale", "decode", "2"]) == scale.FAILED
    assert main.main(["status"]) == scale.FAILED
    assert capsys.readouterr().err.count("no service is running (start one with `legato up`)") == 2


def test_version_and_help_are_light():
    """Importing the command line loads no torch, no HTTP client and no web framework."""
    program = "import sys, legato_cli.main as m; m.parser(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "httpx", "fastapi", "pydantic", "numpy", "asyncio"} & set(loaded)
    assert _legato("--version").stdout.startswith("legato ")


async def _service(store, **spec):
    model = {"source": {"builtin": "smollm2-135m-instruct"}}
    item = {
        "apiVersion": "serving.legato.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "demo"},
        "spec": {"model": model, **spec},
    }
    await store.apply(item, "user")
    return operations(store, Ref("InferenceService", "default", "demo"))


@pytest.mark.parametrize(
    ("spec", "order", "answer"),
    [
        ({}, {"do": "scale", "pool": "decode", "replicas": 2}, "demo-decode: 2 workers desired"),
        (
            {},
            {"do": "scale", "pool": "decode", "replicas": 9},
            "not a valid number of decode workers: 9 (spec.scaling.decode: 1 to 4)",
        ),
        (
            {"scaling": {"prefill": {"max": 0}}},
            {"do": "scale", "pool": "prefill", "replicas": 1},
            "has no prefill pool",
        ),
        (
            {"scaling": {"mode": "Fixed"}, "prefill": {"replicas": 1}, "decode": {"replicas": 1}},
            {"do": "scale", "pool": "decode", "replicas": 2},
            "scaling.mode is Fixed",
        ),
        ({}, {"do": "scale", "pool": "decode", "replicas": 2}, "the autoscaler is paused for 30m"),
        ({}, {"do": "scale", "pool": "decode", "replicas": 2, "for": 60.0}, "the autoscaler is paused for 1m"),
        (
            {"scaling": {"prefill": {"min": 0}, "decode": {"min": 0}}},
            {"do": "scale", "pool": "decode", "replicas": 0},
            "paused for 30m; requests are held until there is a decode worker again",
        ),
        (
            {"scaling": {"mode": "External"}},
            {"do": "scale", "pool": "decode", "replicas": 2, "for": 60.0},
            "spec.scaling.mode External does not use",
        ),
        ({}, {"do": "rotate-token"}, "only on Kubernetes"),
        ({}, {"do": "dance"}, "unknown command"),
        ({}, {"do": "status"}, "conditions"),
    ],
)
def test_orders(spec, order, answer):
    async def check():
        operations = await _service(Store(lambda: "now"), **spec)
        assert answer in json.dumps(await operations.answer(order))

    asyncio.run(check())


def test_scaling_writes_replicas(tmp_path, monkeypatch):
    """Over the socket, as `legato scale` does it; a second service of that name is refused meanwhile."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    async def check():
        store = Store(lambda: "now")
        operations = await _service(store)
        async with admin.listening("demo", operations.answer):
            answer = await asyncio.to_thread(admin.ask, None, {"do": "scale", "pool": "decode", "replicas": 3})
            assert "3 workers" in answer["message"]
            pool = await store.get(Ref("WorkerPool", "default", "demo-decode"))
            assert pool["spec"]["replicas"] == 3
            with pytest.raises(admin.NotRunning, match=r"service other is not running \(running: demo\)"):
                await asyncio.to_thread(admin.ask, "other", {"do": "status"})
            with pytest.raises(admin.CannotListen, match="service demo is already running"):
                async with admin.listening("demo", operations.answer):
                    pass
        assert not list(tmp_path.glob("**/*.sock"))

    asyncio.run(check())
