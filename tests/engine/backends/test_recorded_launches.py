"""What a CUDA graph needs: steps of one padded size launch the same, at the same addresses, and allocate nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import recorded_steps

MODELS = ["llama", "mistral", "qwen 3", "biases"]


@pytest.fixture(scope="module")
def recorded():
    """By model, from one process: to start one takes seconds."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
    program = [sys.executable, str(Path(recorded_steps.__file__)), *MODELS]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("model", MODELS)
def test_a_hundred_random_steps_launch_the_same(model, recorded):
    found = recorded[model]

    assert found["launches"] > 8
    assert found["differing"] == 0
    assert found["allocating"] == []
