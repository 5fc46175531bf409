"""Paced workers and gateways in front of them as processes, and whole streams through a gateway."""

import json
import os
import subprocess
import sys
from pathlib import Path

import worker_process
from worker_process import TOKEN, Process, until

MODEL = "builtin:smollm2-135m-instruct"
STEP = {"perStep": 0.01, "perRow": 1e-5, "perContext": 1e-9, "perToken": 1e-6, "perPair": 1e-10}


def write_profile(folder: Path, kv_tokens: float = 8192, start_seconds: float = 0, **step: float) -> Path:
    path = folder / "profile.json"
    profile = {"source": "a test", "kvTokens": kv_tokens, "startSeconds": start_seconds, "step": STEP | step}
    path.write_text(json.dumps(profile))
    return path


def start_worker(folder: Path, name: str, *flags: str, **profile: float) -> Process:
    (folder / name).mkdir()
    path = write_profile(folder / name, **profile)
    paced = ("--runner", "paced", "--profile", str(path), "--transport", "TCP", "--name", name)
    return worker_process.start(folder / name, *paced, *flags)


def start_gateway(folder: Path, name: str, *flags: str) -> Process:
    announced, log = folder / f"{name}.json", folder / f"{name}.log"
    own = ["--model", MODEL, "--served-name", "m", "--announce", str(announced)]
    ports = ["--port", "0", "--health-port", "0", "--control-port", "0"]
    command = [sys.executable, "-m", "legato_cli.main", "gateway", *own, *ports, *flags]
    with log.open("wb") as file:
        popen = subprocess.Popen(command, stdout=file, stderr=file, env=os.environ | {"LEGATO_TOKEN": TOKEN})
    until(lambda: announced.exists() or popen.poll() is not None)
    return Process(popen, json.loads(announced.read_text()), log)


def kill(*processes: Process) -> None:
    for process in processes:
        process.popen.kill()
        process.popen.wait()
