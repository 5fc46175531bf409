"""`legato up` refuses what it cannot serve before any process starts, and other commands find a running one."""

import asyncio
import json
import os
import subprocess
import sys

import pytest
from local_services import DEMO, manifest, operations

from legato_cli import admin, up
from legato_operator.cluster import Ref
from legato_operator.local.store import Store

NOWHERE = up.QUICKSTART.read_text().replace("builtin: smollm2-135m-instruct", "path: /no/such/model")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("spec: {decode: {replica: 2}}", "spec.decode.replica: unknown field; did you mean replicas?"),
        ("a: [", "line 1"),
        (None, "No such file or directory"),
        (up.QUICKSTART.read_text() + "  engine: {numerics: Invariant}\n", "spec.engine.numerics: Invariant is not"),
        (NOWHERE, "no such file or folder"),
    ],
)
def test_bad_manifest_ends_with_2(tmp_path, legato, text, message):
    path = tmp_path / "service.yaml"
    if text is not None:
        path.write_text(text)
    code, _, err = legato("up", "-f", path, "--port", 0)
    assert code == 2
    assert message in err


def test_a_manifest_is_utf_8_in_any_locale(tmp_path):
    """In the C locale without Python's UTF-8 mode, files are ASCII unless said otherwise. One has a byte order mark."""
    paths = [tmp_path / "plain.yaml", tmp_path / "marked.yaml"]
    for path, mark in zip(paths, ("", "\ufeff"), strict=True):
        path.write_text(f"{mark}{up.QUICKSTART.read_text()}  engine: {{numerics: Für}}\n", encoding="utf-8")
    program = "import sys; from legato_cli.main import main; [main(['up', '-f', path]) for path in sys.argv[1:]]"
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-c", program, *paths]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=60, env={**os.environ, **locale})
    assert [line.partition(": must be")[0] for line in done.stderr.splitlines()] == [
        f"{path}: spec.engine.numerics" for path in paths
    ]


def test_version_and_help_are_light():
    """Importing the command line loads no torch, no HTTP client and no web framework."""
    program = "import sys, legato_cli.main as m; m.parser(); print(*sys.modules); m.main(['--version'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    loaded, version = done.stdout.splitlines()
    assert not {"torch", "httpx", "fastapi", "pydantic", "numpy", "asyncio"} & set(loaded.split())
    assert version.startswith("legato ")


async def _service(store, **spec):
    await store.apply(manifest(**spec), "user")
    return operations(store)


def _scale(pool, replicas, **more):
    return {"do": "scale", "pool": pool, "replicas": replicas, **more}


FIXED = {"scaling": {"mode": "Fixed"}, "prefill": {"replicas": 1}, "decode": {"replicas": 1}}
TO_ZERO = {"scaling": {"prefill": {"min": 0}, "decode": {"min": 0}}}
HELD = "paused for 30m; requests are held until there is a decode worker again"
TOO_MANY = "not a valid number of decode workers: 9 (spec.scaling.decode: 1 to 4)"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("spec", "order", "answer"),
    [
        ({}, _scale("decode", 2), "demo-decode: 2 workers desired"),
        ({}, _scale("decode", 9), TOO_MANY),
        ({"scaling": {"prefill": {"max": 0}}}, _scale("prefill", 1), "has no prefill pool"),
        (FIXED, _scale("decode", 2), "scaling.mode is Fixed"),
        ({}, _scale("decode", 2), "the autoscaler is paused for 30m"),
        ({}, _scale("decode", 2, **{"for": 60.0}), "the autoscaler is paused for 1m"),
        (TO_ZERO, _scale("decode", 0), HELD),
        (
            {"scaling": {"mode": "External"}},
            _scale("decode", 2, **{"for": 60.0}),
            "spec.scaling.mode External does not use",
        ),
        ({}, {"do": "rotate-token"}, "only on Kubernetes"),
        ({}, {"do": "dance"}, "unknown command"),
        ({}, {"do": "status"}, "conditions"),
    ],
)
async def test_orders(spec, order, answer):
    running = await _service(Store(lambda: "now"), **spec)
    assert answer in json.dumps(await running.answer(order))


@pytest.mark.anyio
async def test_scaling_writes_replicas(runtime_folder):
    """Over the socket, as `legato scale` does it; a second service of that name is refused meanwhile."""
    store = Store(lambda: "now")
    running = await _service(store)
    async with admin.listening(DEMO.name, running.answer):
        answer = await asyncio.to_thread(admin.ask, None, _scale("decode", 3))
        assert "3 workers" in answer["message"]
        pool = await store.get(Ref("WorkerPool", "default", "demo-decode"))
        assert pool["spec"]["replicas"] == 3
        with pytest.raises(admin.NotRunning, match=r"service other is not running \(running: demo\)"):
            await asyncio.to_thread(admin.ask, "other", {"do": "status"})
        with pytest.raises(admin.CannotListen, match="service demo is already running"):
            async with admin.listening(DEMO.name, running.answer):
                pass
    assert not list(runtime_folder.glob("**/*.sock"))
