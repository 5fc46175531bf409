"""`legato up` refuses what it cannot serve before any process starts, and other commands find a running one.

`legato up MODEL` makes the manifest of a model; paths in any manifest begin where its file is."""

import asyncio
import json
import os
import socket
import subprocess
import sys

import local_services
import pytest
import quantized_folders
import yaml
from local_services import BUILTIN, DEMO, manifest, operations

from legato_cli.local import admin, model_manifest, serving, up
from legato_cli.models import model
from legato_operator.api import parsing
from legato_operator.cluster import Ref
from legato_operator.errors import ManifestError
from legato_operator.local.store import Store

QUICKSTART = up.QUICKSTART.read_text()


@pytest.fixture(scope="module")
def gguf():
    return model.resolve(model.PREFIX + BUILTIN, lambda text: None)


@pytest.fixture
def printed(legato):
    """The manifest of a model, as it is printed."""

    def run(name):
        code, out, _ = legato("up", name, "--print")
        assert code == 0
        return yaml.safe_load(out)

    return run


@pytest.mark.parametrize("name", [BUILTIN, model.PREFIX + BUILTIN])
def test_a_builtin_model_is_taken_by_its_name(name, printed):
    made = printed(name)
    assert made["spec"]["model"]["source"] == {"builtin": BUILTIN}
    assert made["spec"]["model"]["servedName"] == made["metadata"]["name"] == BUILTIN
    assert parsing.read_mapping(made).spec.engine.kv_cache_memory is None


def test_a_file_is_taken_by_its_path_from_here(gguf, tmp_path, monkeypatch, printed):
    with (tmp_path / "My_Model.Q4.gguf").open("wb") as file:  # of its weights, nothing is read
        file.write(gguf.read_bytes()[: model.BUILTINS[0].header_size])
        file.truncate(gguf.stat().st_size)
    monkeypatch.chdir(tmp_path)
    made = printed("My_Model.Q4.gguf")
    assert made["spec"]["model"]["source"] == {"path": str(tmp_path / "My_Model.Q4.gguf")}
    assert (made["metadata"]["name"], made["spec"]["model"]["servedName"]) == ("my-model-q4", "My_Model.Q4")


@pytest.mark.parametrize(
    ("name", "service", "served"),
    [
        ("Qwen3-0.6B", "qwen3-0-6b", "Qwen3-0.6B"),
        ("7B model", "m-7b-model", "7B-model"),
        ("x" * 60, "x" * 40, "x" * 60),
        ("--", "m", "model"),
    ],
)
def test_any_name_becomes_one_that_is_valid(name, service, served):
    assert (model_manifest.service_name(name), model_manifest.served_name(name)) == (service, served)


UP = "-f m.yaml --port 0"
NOWHERE = QUICKSTART.replace("builtin: smollm2-135m-instruct", "path: /no/such/model")


@pytest.mark.parametrize(
    ("words", "text", "message"),
    [
        ("no-such-model", "", "no such file or folder; allowed are a GGUF file"),
        ("./no/such/file.gguf", "", "no such file or folder"),
        ("owner/name@main", "", "OWNER/NAME@COMMIT"),
        (".", "", "config.json"),
        (f"{BUILTIN} -f m.yaml", "", "not allowed with"),
        ("-f none.yaml", "", "No such file or directory"),
        (UP, "spec: {decode: {replica: 2}}", "spec.decode.replica: unknown field; did you mean replicas?"),
        (UP, "a: [", "line 1"),
        (UP, f"{QUICKSTART}  engine: {{numerics: Invariant}}\n", "spec.engine.numerics: Invariant is not"),
        (UP, NOWHERE, "no such file or folder"),
        (f"{BUILTIN} --port PORT", "", "port PORT is in use"),
    ],
)
def test_what_cannot_be_served_ends_with_2_and_leaves_nothing(words, text, message, tmp_path, monkeypatch, legato):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "m.yaml").write_text(text)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, _, err = legato("up", *words.replace("PORT", port).split())
    assert code == 2
    assert message.replace("PORT", port) in err
    assert list(tmp_path.iterdir()) == [tmp_path / "m.yaml"]


def test_a_model_folder_without_a_tokenizer_is_refused_before_anything_starts(tmp_path, legato):
    quantized_folders.write(tmp_path / "m", quantized_folders.KINDS["float-quantized, channel"])
    (tmp_path / "m" / "tokenizer.json").unlink(missing_ok=True)
    code, out, err = legato("up", tmp_path / "m", "--port", 0)
    assert (code, out, f"{tmp_path / 'm' / 'tokenizer.json'}: no such file" in err) == (2, "", True)


def test_relative_paths_begin_at_the_manifest_wherever_legato_was_started(tmp_path, monkeypatch):
    folder, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    path = local_services.write(
        folder / "m.yaml",
        model={"source": {"path": "models/tiny.gguf"}},
        gateway={"apiKeys": {"path": "keys.json"}, "tls": {"path": "tls"}},
        engine={"runner": "Paced", "profile": "profiles/a.json"},
    )
    read = serving.read_manifest(path)
    spec = read.service.spec
    paths = (spec.model.source.path, spec.gateway.api_keys.path, spec.gateway.tls.path, spec.engine.profile)
    assert paths == tuple(str(folder / name) for name in ("models/tiny.gguf", "keys.json", "tls", "profiles/a.json"))
    assert read.written["spec"]["model"]["source"]["path"] == paths[0]
    monkeypatch.chdir(tmp_path)
    assert serving.read_manifest(path.relative_to(tmp_path)) == read


def test_absolute_paths_and_shipped_profiles_stay_and_paths_up_are_refused(tmp_path):
    model, engine = {"source": {"path": "/m"}}, {"runner": "Paced", "profile": "llama"}
    spec = serving.read_manifest(local_services.write(tmp_path / "m.yaml", model=model, engine=engine)).service.spec
    assert (spec.model.source.path, spec.engine.profile) == ("/m", "llama")
    with pytest.raises(ManifestError, match=r"must not contain \.\."):
        serving.read_manifest(local_services.write(tmp_path / "m.yaml", model={"source": {"path": "../m"}}))


def test_a_manifest_is_utf_8_in_any_locale(tmp_path):
    """In the C locale without Python's UTF-8 mode, files are ASCII unless said otherwise. One has a byte order mark."""
    paths = [tmp_path / "plain.yaml", tmp_path / "marked.yaml"]
    for path, mark in zip(paths, ("", "\ufeff"), strict=True):
        path.write_text(f"{mark}{QUICKSTART}  engine: {{numerics: Für}}\n", encoding="utf-8")
    program = "import sys; from legato_cli.main import main; [main(['up', '-f', path]) for path in sys.argv[1:]]"
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-c", program, *paths]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=60, env={**os.environ, **locale})
    blamed = [line.partition(": must be")[0] for line in done.stderr.splitlines()]
    assert blamed == [f"{path}: spec.engine.numerics" for path in paths]


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


FOR_A_MINUTE = {"for": 60.0}
FIXED = {"scaling": {"mode": "Fixed"}, "prefill": {"replicas": 1}, "decode": {"replicas": 1}}
EXTERNAL = {"scaling": {"mode": "External"}}
TO_ZERO = {"scaling": {"prefill": {"min": 0}, "decode": {"min": 0}}}
QUEUED = "paused for 30m; requests are held until there is a decode worker again"
TOO_MANY = "not a valid number of decode workers: 9 (spec.scaling.decode: 1 to 4)"


@pytest.mark.parametrize(
    ("spec", "order", "answer"),
    [
        ({}, _scale("decode", 2), "demo-decode: 2 workers desired"),
        ({}, _scale("decode", 9), TOO_MANY),
        ({"scaling": {"prefill": {"max": 0}}}, _scale("prefill", 1), "has no prefill pool"),
        (FIXED, _scale("decode", 2), "scaling.mode is Fixed"),
        ({}, _scale("decode", 2), "the autoscaler is paused for 30m"),
        ({}, _scale("decode", 2, **FOR_A_MINUTE), "the autoscaler is paused for 1m"),
        (TO_ZERO, _scale("decode", 0), QUEUED),
        (EXTERNAL, _scale("decode", 2, **FOR_A_MINUTE), "spec.scaling.mode External does not use"),
        ({}, {"do": "rotate-token"}, "only on Kubernetes"),
        ({}, {"do": "dance"}, "unknown command"),
        ({}, {"do": "status"}, "conditions"),
    ],
)
async def test_orders(spec, order, answer):
    running = await _service(Store(lambda: "now"), **spec)
    assert answer in json.dumps(await running.answer(order))


async def test_scaling_writes_replicas(runtime_folder):
    """Over the socket, as `legato scale` does it; a second service of that name is refused meanwhile."""
    running = await _service(store := Store(lambda: "now"))
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
