"""Bad input is refused before anything serves: exit code 2, a message that names what is wrong, and no process left.

Real processes, one of each kind. Manifests and ports have more cases in tests/cli/test_up.py and test_validate.py,
flags in test_arguments.py, tests/engine/test_settings.py and tests/gateway/test_settings.py, models in
tests/engine/weights/test_bad_files.py and tests/protocol/test_gguf_header.py.
"""

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import wordy_model
import yaml

from legato_cli import main

PATIENCE = 240.0  # seconds: two cores may have much else to do
MARK = "LEGATO_TEST_MARK"
MODEL = ("--model", "builtin:smollm2-135m-instruct")
WORKER = ("worker", "--role", "unified", "--name", "w", "--control-port", "0", "--health-port", "0")
GATEWAY = ("gateway", "--port", "0", "--max-length", "64")

Run = Callable[..., str]


@pytest.fixture
def refused(tmp_path: Path) -> Iterator[Run]:
    """Runs `legato` with arguments that must end in a refusal; what it wrote to stderr. Nothing may outlive it."""
    mark = uuid.uuid4().hex
    environment = {**os.environ, MARK: mark, "XDG_RUNTIME_DIR": str(tmp_path)}

    def run(*arguments: str | Path) -> str:
        command = [sys.executable, "-m", "legato_cli.main", *map(str, arguments)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert done.returncode == 2, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        assert "curl" not in done.stdout, "it said that it serves"
        return done.stderr

    yield run
    assert not [process for process in psutil.process_iter() if _mark(process) == mark]


def _mark(process: psutil.Process) -> str:
    try:
        return process.environ().get(MARK, "")
    except psutil.Error:
        return ""


def _manifest(folder: Path, **spec: Any) -> Path:
    path = folder / "service.yaml"
    head = {"apiVersion": "serving.legato.dev/v1alpha1", "kind": "InferenceService", "metadata": {"name": "bad"}}
    path.write_text(yaml.safe_dump(head | {"spec": spec}))
    return path


def test_of_a_bad_manifest_nothing_is_started(refused: Run, tmp_path: Path) -> None:
    source = {"source": {"builtin": "smollm2-135m-instruct"}}
    said = refused("up", "-f", _manifest(tmp_path, model=source, decoed={}), "--port", "0")
    assert "spec.decoed: unknown field; did you mean decode?" in said
    assert len(said.splitlines()) == 1, "something was started"


def test_a_model_that_workers_refuse_ends_the_service_with_their_reason(refused: Run, tmp_path: Path) -> None:
    """Of a size of the cache that only they can judge."""
    spec = {
        "model": {"source": {"path": str(wordy_model.path())}, "maxLength": 8192},
        "engine": {"kvCacheMemory": "2Mi"},
    }
    said = refused("up", "-f", _manifest(tmp_path, **spec), "--port", "0")
    (last,) = [line for line in said.splitlines() if line.startswith("legato up: ")]
    assert "kvCacheMemory of 2,097,152 bytes" in last
    assert "give at least" in last


def test_a_file_without_a_readable_header_ends_a_gateway(refused: Run, tmp_path: Path) -> None:
    path = tmp_path / "text.gguf"
    path.write_text("this is no model")
    assert str(path) in refused(*GATEWAY, "--model", path)


def test_a_model_folder_that_the_engine_cannot_compute_ends_a_worker(refused: Run, tmp_path: Path) -> None:
    config = {"architectures": ["LlamaForCausalLM"], "quantization_config": {"quant_method": "gptq", "bits": 4}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    said = refused(*WORKER, "--model", tmp_path, "--kv-cache-memory", "16Mi")
    assert str(tmp_path) in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*WORKER, *MODEL, "--kv-cache-memory", "lots"), "--kv-cache-memory: not a valid size: lots"),
        ((*WORKER, *MODEL, "--numerics", "Invariant"), "--numerics: not a valid mode: Invariant (Fast)"),
        ((*WORKER, *MODEL, "--host", "0.0.0.0"), "LEGATO_TOKEN is not set"),
        ((*WORKER, *MODEL, "--blok-size", "16"), "--blok-size"),
        ((*WORKER, "--model", "/no/such"), "'/no/such': no such file or folder"),
        ((*GATEWAY, "--model", "/no/such"), "'/no/such': no such file or folder"),
        ((*GATEWAY, *MODEL, "--api-keys-file", "/no/such"), "--api-keys-file /no/such: No such file or directory"),
        ((*GATEWAY, *MODEL, "--trusted-proxy", "10.0.0.0/33"), "--trusted-proxy: not a valid network: 10.0.0.0/33"),
        ((*GATEWAY, *MODEL, "--host", "203.0.113.9"), "--host 203.0.113.9"),
    ],
    ids=lambda value: " ".join(value[-2:]) if isinstance(value, tuple) else "",
)
def test_flags_are_named(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process: nothing that is started could be left."""
    monkeypatch.delenv("LEGATO_TOKEN", raising=False)
    try:
        code: object = main.main(arguments)
    except SystemExit as stopped:
        code = stopped.code
    assert code == 2
    assert message in capsys.readouterr().err
