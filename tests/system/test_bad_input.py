"""Bad input is refused before anything serves: exit code 2, a message that names what is wrong, and no process left."""

import json
import os
import shutil
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from tokenizers import Tokenizer, decoders, models

from legato_cli import model

PATIENCE = 240.0  # seconds: two cores may have much else to do
BUILTIN = "builtin:smollm2-135m-instruct"
SOURCE = {"source": {"builtin": "smollm2-135m-instruct"}}
WORKER = ("worker", "--role", "unified", "--name", "w", "--control-port", "0", "--health-port", "0")
GATEWAY = ("gateway", "--port", "0")

Run = Callable[..., str]


@pytest.fixture
def refused(tmp_path: Path) -> Iterator[Run]:
    """Runs `legato` with arguments that must end in a refusal; what it wrote to stderr. Nothing may outlive it."""
    mark = uuid.uuid4().hex
    environment = {**os.environ, "LEGATO_TEST_MARK": mark, "XDG_RUNTIME_DIR": str(tmp_path)}

    def run(*arguments: str | Path) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "legato_cli.main", *map(str, arguments)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 2, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        assert "curl" not in done.stdout, "it said that it serves"
        return done.stderr

    yield run
    left = [process for process in psutil.process_iter() if _mark(process) == mark]
    assert not left


def _mark(process: psutil.Process) -> str:
    try:
        return process.environ().get("LEGATO_TEST_MARK", "")
    except psutil.Error:
        return ""


def _manifest(folder: Path, **spec: Any) -> Path:
    path = folder / "service.yaml"
    content = {
        "apiVersion": "serving.legato.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "bad"},
        "spec": {"model": SOURCE} | spec,
    }
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture(scope="module")
def builtin() -> Path:
    return model.resolve(BUILTIN, lambda text: None)


# ── manifests: no process is ever started ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"decoed": {}}, "spec.decoed: unknown field; did you mean decode?"),
        ({"engine": {"blocksize": 16}}, "spec.engine.blocksize: unknown field; did you mean blockSize?"),
        (
            {"engine": {"chunkTokens": "many"}},
            "spec.engine.chunkTokens: not a valid number of tokens: many (16 to 1048576, or Auto)",
        ),
        ({"model": SOURCE | {"maxLength": -1}}, "spec.model.maxLength: must be at least 16, not -1"),
        ({"drain": {"deadline": "soon"}}, "spec.drain.deadline: "),
        ({"gateway": {"tenantTokensPerMinute": {"a": 0}}}, "spec.gateway.tenantTokensPerMinute.a: must be at least 1"),
        ({"scaling": {"decode": {"min": 3, "max": 2}}}, "spec.scaling.decode: min must be at most max"),
        ({"rollout": {"maxSurge": 0, "maxUnavailable": 0}}, "spec.rollout: maxSurge and maxUnavailable must not both"),
        (
            {"model": {"source": {"builtin": "smollm2-135m-instruct", "path": "/m"}}},
            "spec.model.source: exactly one of",
        ),
        ({"model": {"source": {"path": "/no/such/model"}}}, "'/no/such/model': no such file or folder; allowed are"),
        ({"engine": {"numerics": "Invariant"}}, "spec.engine.numerics: Invariant is not available yet; use Fast"),
    ],
    ids=lambda value: json.dumps(value)[:40],
)
def test_manifest(refused: Run, tmp_path: Path, spec: dict[str, Any], message: str) -> None:
    said = refused("up", "-f", _manifest(tmp_path, **spec), "--port", "0")
    assert message in said
    assert len(said.splitlines()) == 1, "something was started"


def test_missing_file(refused: Run, tmp_path: Path) -> None:
    path = tmp_path / "nothing.yaml"
    assert f"{path}: No such file or directory" in refused("up", "-f", path, "--port", "0")


def test_port_taken(refused: Run, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"port {port} is in use" in refused("up", "-f", _manifest(tmp_path), "--port", port)


@pytest.mark.parametrize("port", ["70000", "-1", "http"])
def test_port_that_is_none(refused: Run, tmp_path: Path, port: str) -> None:
    assert f"not a valid port: {port} (0 to 65535" in refused("up", "-f", _manifest(tmp_path), f"--port={port}")


# ── models: said before anything serves ─────────────────────────────────────────────────────────────────────────────


def _folder(path: Path, config: dict[str, Any]) -> Path:
    """A model folder with a tokenizer that the gateway takes."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer(models.BPE({"a": 0}, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(path / "tokenizer.json"))
    return path


def _other_architecture(folder: Path, builtin: Path) -> Path:
    return _folder(folder / "other", {"architectures": ["BertModel"], "model_type": "bert"})


def _quantized_folder(folder: Path, builtin: Path) -> Path:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "vocab_size": 256,
        "quantization_config": {"quant_method": "gptq", "bits": 4},
    }
    return _folder(folder / "quantized", config)


def _quantized_file(folder: Path, builtin: Path) -> Path:
    """The built-in file, whose first tensor claims the type IQ2_XXS."""
    path = folder / "iq2.gguf"
    shutil.copyfile(builtin, path)
    name = b"token_embd.weight"
    with path.open("r+b") as file:
        head = file.read(8 << 20)
        type_at = head.index(len(name).to_bytes(8, "little") + name) + 8 + len(name) + 4 + 2 * 8
        file.seek(type_at)
        file.write((16).to_bytes(4, "little"))
    return path


def _truncated(folder: Path, builtin: Path) -> Path:
    path = folder / "short.gguf"
    with builtin.open("rb") as file:
        path.write_bytes(file.read(40 << 20))
    return path


def _truncated_header(folder: Path, builtin: Path) -> Path:
    path = folder / "header.gguf"
    with builtin.open("rb") as file:
        path.write_bytes(file.read(10_000))
    return path


def _no_model(folder: Path, builtin: Path) -> Path:
    path = folder / "text.gguf"
    path.write_text("this is no model")
    return path


def _empty(folder: Path, builtin: Path) -> Path:
    path = folder / "empty.gguf"
    path.touch()
    return path


MODELS = [
    (_other_architecture, "BertModel", "LlamaForCausalLM"),
    (_quantized_folder, "gptq", "quantiz"),
    (_quantized_file, "IQ2_XXS", "Q4_1"),
    (_truncated, "short.gguf", "truncated"),
]


@pytest.mark.parametrize(("make", "named", "allowed"), MODELS, ids=lambda value: getattr(value, "__name__", ""))
def test_model(refused: Run, tmp_path: Path, builtin: Path, make: Any, named: str, allowed: str) -> None:
    path = make(tmp_path, builtin)
    said = refused("up", "-f", _manifest(tmp_path, model={"source": {"path": str(path)}}), "--port", "0")
    (last,) = [line for line in said.splitlines() if line.startswith("legato up: ")]
    assert named in last
    assert allowed in last


@pytest.mark.parametrize("make", [_truncated_header, _no_model, _empty])
def test_file_without_a_readable_header(refused: Run, tmp_path: Path, builtin: Path, make: Any) -> None:
    path = make(tmp_path, builtin)
    assert str(path) in refused(*GATEWAY, "--model", path, "--max-length", "64")


def test_memory_for_less_than_one_sequence(refused: Run, tmp_path: Path) -> None:
    spec = {"model": SOURCE | {"maxLength": 8192}, "engine": {"kvCacheMemory": "16Mi", "dtype": "Float32"}}
    said = refused("up", "-f", _manifest(tmp_path, **spec), "--port", "0")
    (last,) = [line for line in said.splitlines() if line.startswith("legato up: ")]
    assert "kvCacheMemory of 16,777,216 bytes" in last
    assert "give at least" in last


# ── flags of the processes ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((*WORKER, "--model", BUILTIN, "--block-size", "15"), "--block-size: not a valid number: 15 (a power of two"),
        ((*WORKER, "--model", BUILTIN, "--kv-cache-memory", "lots"), "--kv-cache-memory: not a valid size: lots"),
        ((*WORKER, "--model", BUILTIN, "--numerics", "Invariant"), "--numerics: not a valid mode: Invariant (Fast)"),
        ((*WORKER, "--model", BUILTIN, "--host", "0.0.0.0"), "LEGATO_TOKEN is not set"),
        ((*WORKER, "--model", "/no/such"), "'/no/such': no such file or folder"),
        ((*WORKER, "--model", BUILTIN, "--blok-size", "16"), "--blok-size"),
        ((*GATEWAY, "--max-length", "4096"), "required: --model"),
        ((*GATEWAY, "--model", BUILTIN, "--max-length", "0"), "--max-length: not a valid number: 0 (2 to"),
        ((*GATEWAY, "--model", "/no/such", "--max-length", "64"), "'/no/such': no such file or folder"),
        (
            (*GATEWAY, "--model", BUILTIN, "--max-length", "64", "--tenant-quota", "a"),
            "--tenant-quota: not a valid quota: a (TENANT=TOKENS",
        ),
        (
            (*GATEWAY, "--model", BUILTIN, "--max-length", "64", "--api-keys-file", "/no/such"),
            "--api-keys-file /no/such: No such file or directory",
        ),
        (
            (*GATEWAY, "--model", BUILTIN, "--max-length", "64", "--trusted-proxy", "10.0.0.0/33"),
            "--trusted-proxy: not a valid network: 10.0.0.0/33",
        ),
        ((*GATEWAY, "--model", BUILTIN, "--max-length", "64", "--host", "203.0.113.9"), "--host 203.0.113.9"),
    ],
    ids=lambda value: " ".join(value[-2:]) if isinstance(value, tuple) else "",
)
def test_flags(refused: Run, flags: tuple[str, ...], message: str) -> None:
    assert message in refused(*flags)
