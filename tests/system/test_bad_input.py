"""Bad input that only workers can detect ends the start with code 2 and a message that names the fault."""

import os
import subprocess
import sys
from pathlib import Path

import wordy_model
import yaml
from paced_fleet import write_profile


def test_a_model_that_workers_refuse_ends_the_service_with_their_reason(tmp_path: Path) -> None:
    """Because of a profile whose cache is too small for the longest sequence, which only they can judge."""
    model = {"source": {"path": str(wordy_model.path())}, "maxLength": 8192}
    engine = {"runner": "Paced", "profile": str(write_profile(tmp_path, kv_tokens=1024))}
    head = {"apiVersion": "serving.legato.dev/v1alpha1", "kind": "InferenceService", "metadata": {"name": "bad"}}
    manifest = tmp_path / "service.yaml"
    manifest.write_text(yaml.safe_dump(head | {"spec": {"model": model, "engine": engine}}))
    done = subprocess.run(
        [sys.executable, "-m", "legato_cli.main", "up", "-f", manifest, "--port", "0"],
        env=os.environ | {"XDG_RUNTIME_DIR": str(tmp_path)}, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert "curl" not in done.stdout, "it said that it serves"
    (last,) = [line for line in done.stderr.splitlines() if line.startswith("legato up: ")]
    assert "kvTokens: 1024 hold" in last
    assert "give a --max-length of at most 1024" in last
