"""CUDA graphs require that steps of one padded size launch the same, at the same addresses, and allocate nothing."""

import pytest
import recorded_steps
import uninterpreted

MODELS = ["mistral", "qwen 3", "biases", "gemma 3", "olmo 2", "GPTQ, act order"]


@pytest.fixture(scope="module")
def recorded():
    return uninterpreted.call(recorded_steps.told_by_model, MODELS)


@pytest.mark.parametrize("model", MODELS)
def test_random_steps_launch_the_same(model, recorded):
    found = recorded[model]

    assert found["launches"] > 8
    assert found["differing"] == 0
    assert found["allocating"] == []
