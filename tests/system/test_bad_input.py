"""Bad input ends the start with code 2 and a message that names what is wrong, and no process is left.

Other cases: tests/cli (test_up.py, test_validate.py, test_arguments.py), tests/engine (test_settings.py,
test_worker_process.py, weights/test_bad_files.py) and tests/gateway (test_settings.py, test_main.py).
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import wordy_model
import yaml

from legato_cli import main

MODEL = ("--model", "builtin:smollm2-135m-instruct")
WORKER = ("worker", "--role", "unified", "--name", "w", *MODEL)
GATEWAY = ("gateway", "--max-length", "64", *MODEL)


def test_a_model_that_workers_refuse_ends_the_service_with_their_reason(tmp_path: Path) -> None:
    """Because of a size of the cache that only they can judge."""
    model = {"source": {"path": str(wordy_model.path())}, "maxLength": 8192}
    head = {"apiVersion": "serving.legato.dev/v1alpha1", "kind": "InferenceService", "metadata": {"name": "bad"}}
    manifest = tmp_path / "service.yaml"
    manifest.write_text(yaml.safe_dump(head | {"spec": {"model": model, "engine": {"kvCacheMemory": "2Mi"}}}))
    done = subprocess.run(
        [sys.executable, "-m", "legato_cli.main", "up", "-f", manifest, "--port", "0"],
        env=os.environ | {"XDG_RUNTIME_DIR": str(tmp_path)}, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert "curl" not in done.stdout, "it said that it serves"
    (last,) = [line for line in done.stderr.splitlines() if line.startswith("legato up: ")]
    assert "kvCacheMemory of 2,097,152 bytes" in last
    assert "give at least" in last


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*WORKER, "--kv-cache-memory", "lots"), "--kv-cache-memory: not a valid size: lots"),
        ((*WORKER, "--numerics", "Invariant"), "--numerics: not a valid mode: Invariant (Fast)"),
        ((*WORKER, "--host", "0.0.0.0"), "LEGATO_TOKEN is not set"),
        ((*GATEWAY, "--model", "/no/such"), "'/no/such': no such file or folder"),
        ((*GATEWAY, "--model", __file__), __file__),  # no header that can be read
        ((*GATEWAY, "--trusted-proxy", "10.0.0.0/33"), "--trusted-proxy: not a valid network: 10.0.0.0/33"),
        ((*GATEWAY, "--host", "203.0.113.9"), "--host 203.0.113.9"),
    ],
    ids=lambda value: " ".join(value[-2:]) if isinstance(value, tuple) else "",
)
def test_flags_are_named(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LEGATO_TOKEN", raising=False)
    try:
        code: object = main.main(arguments)
    except SystemExit as stopped:
        code = stopped.code
    assert code == 2
    assert message in capsys.readouterr().err
