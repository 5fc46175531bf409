"""What `legato record` writes of a service that scales, through `legato simulate --signals`: real processes, and paced
workers."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# A prompt of 100 tokens takes 0.84 s.
PROFILE = {
    "source": "made up: slow enough that a burst needs several workers",
    "step": {"perStep": 0.02, "perRow": 0.001, "perContext": 0, "perToken": 0.008, "perPair": 0},
    "kvTokens": 100_000,
    "startSeconds": 0,
}
SCALING = "{mode: Managed, prefill: {min: 1, max: 2}, decode: {min: 1, max: 2}}"
SECRET = "zanzibar"
REQUESTS = 12  # 10 s of one prefill worker's work


@pytest.fixture(scope="module")
def service(start: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Paced workers, of which the autoscaler sets the number."""
    profile = tmp_path_factory.mktemp("profile") / "slow.json"
    profile.write_text(json.dumps(PROFILE))
    return start(scaling=SCALING, engine=f", runner: Paced, profile: {profile}")


@pytest.fixture(scope="module")
def recording(service: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a burst at which the prefill pool grew to its `max`, from before it until every request has ended."""
    file: Path = tmp_path_factory.mktemp("recording") / "signals.jsonl"
    command = [sys.executable, "-m", "legato_cli.main", "record", str(file)]
    recorder = subprocess.Popen(
        command, env=service.environment, stdout=subprocess.PIPE, text=True, preexec_fn=_take_ctrl_c
    )
    try:
        service.until(lambda: len(_rounds(file)) >= 2, "rates can be known")
        streams = [service.stream(f"{i} {SECRET}" + " and" * 97, max_tokens=2) for i in range(REQUESTS)]
        service.until(lambda: _rounds(file)[-1]["desired"]["prefill"] == 2, "the prefill pool was recorded to grow")
        for stream in streams:
            stream.result()
        recorder.send_signal(signal.SIGINT)
        told, _ = recorder.communicate(timeout=60)
    finally:
        recorder.kill()
    assert recorder.returncode == 130
    assert f"rounds; replay them with: legato simulate -f MANIFEST --signals {file}" in told
    return file


def _take_ctrl_c() -> None:
    """Also where tests run in the background of a shell, which has their processes ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _rounds(file: Path) -> list[dict[str, Any]]:
    """Whole ones only: the last one may just be written."""
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def _replay(service: Any, recording: Path, manifest: Path) -> tuple[str, dict[str, Any]]:
    """What is printed, and the JSON."""
    out = manifest.parent / "replay.json"
    done = service.command("simulate", "-f", str(manifest), "--signals", str(recording), "--json", str(out))
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(out.read_text())


def test_the_same_manifest_decides_again_what_the_service_has_decided(service: Any, recording: Path) -> None:
    _, found = _replay(service, recording, service.file)
    prefill = found["pools"]["prefill"]
    assert (prefill["recorded_most"], prefill["most"]) == (2, 2)
    assert found["timeline"][0]["replayed"] == {"prefill": 1, "decode": 1}
    assert found["timeline"][-1]["replayed"]["prefill"] == 2
    assert {each["reason"] for each in found["changes"] if each["pool"] == "prefill"} <= {
        "Arrivals",
        "Queueing",
        "Backlog",
    }
    assert max(each["queue_tokens"] for each in found["timeline"]) > 500


def test_a_cheaper_manifest_is_told_by_what_it_is_capped(service: Any, recording: Path, tmp_path: Path) -> None:
    cheaper = tmp_path / "cheaper.yaml"
    cheaper.write_text(service.file.read_text().replace("prefill: {min: 1, max: 2}", "prefill: {min: 1, max: 1}"))
    told, found = _replay(service, recording, cheaper)
    assert found["pools"]["prefill"]["most"] == 1
    assert found["gpu_hours"] < found["recorded_gpu_hours"]
    assert re.search(r"capped by scaling\.prefill\.max", told)


def test_nothing_of_a_request_is_recorded(recording: Path) -> None:
    rounds = _rounds(recording)
    assert any(each["signals"]["traffic"] and each["signals"]["traffic"]["arrivals"] for each in rounds)
    assert SECRET not in recording.read_text()
