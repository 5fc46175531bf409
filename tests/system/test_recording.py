"""Recordings by `legato record` of a service that scales, through `legato simulate --signals`: real processes, and
paced workers."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from paced_fleet import write_profile

SLOW = {"perStep": 0.02, "perRow": 0.001, "perToken": 0.008}  # a prompt of 100 tokens takes 0.84 s
SCALING = "{mode: Managed, prefill: {min: 1, max: 2}, decode: {min: 1, max: 2}}"
SECRET = "zanzibar"
REQUESTS = 12  # 10 s of one prefill worker's work


@pytest.fixture(scope="module")
def service(start: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Paced workers, of which the autoscaler sets the number."""
    profile = write_profile(tmp_path_factory.mktemp("profile"), kv_tokens=100_000, **SLOW)
    return start(scaling=SCALING, engine=f", runner: Paced, profile: {profile}")


def test_the_recording_of_a_burst_decides_again_what_the_service_decided_and_holds_no_text(
    service: Any, tmp_path: Path
) -> None:
    """The prefill pool grows to its `max`. Other manifests: tests/simulator/test_replay.py."""
    file, out = tmp_path / "signals.jsonl", tmp_path / "replay.json"
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
        printed, _ = recorder.communicate(timeout=60)
    finally:
        recorder.kill()
    assert recorder.returncode == 130
    assert f"rounds; replay them with: legato simulate -f MANIFEST --signals {file}" in printed
    assert any(each["signals"]["traffic"] and each["signals"]["traffic"]["arrivals"] for each in _rounds(file))
    assert SECRET not in file.read_text()

    done = service.command("simulate", "-f", str(service.file), "--signals", str(file), "--json", str(out))
    assert done.returncode == 0, done.stderr
    replay = json.loads(out.read_text())
    prefill, timeline = replay["pools"]["prefill"], replay["timeline"]
    assert (prefill["recorded_most"], prefill["most"]) == (2, 2)
    assert timeline[0]["replayed"] == {"prefill": 1, "decode": 1}
    assert timeline[-1]["replayed"]["prefill"] == 2
    reasons = {each["reason"] for each in replay["changes"] if each["pool"] == "prefill"}
    assert reasons <= {"Arrivals", "Queueing", "Backlog"}
    assert max(each["queue_tokens"] for each in timeline) > 500


def _take_ctrl_c() -> None:
    """Also where tests run in the background of a shell, which has their processes ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _rounds(file: Path) -> list[dict[str, Any]]:
    """Whole ones only: the last one may just be written."""
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
