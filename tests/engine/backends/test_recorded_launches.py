"""CUDA graphs require that steps of one padded size launch the same, at the same addresses, and allocate nothing."""

import pytest
import recorded_steps
import uninterpreted

MODELS = [
    "mistral", "qwen 3", "biases", "gemma 3", "olmo 2", "qwen 2 moe", "gpt-oss", "GPTQ, act order", "FP8, channel",
    "FP8, blocks",
]  # fmt: skip


@pytest.fixture(scope="module")
def recorded():
    return uninterpreted.call(recorded_steps.told_by_model, MODELS)


@pytest.mark.parametrize("model", MODELS)
def test_random_steps_launch_the_same(model, recorded):
    """Whatever adapters they have, if there are any."""
    found = recorded[model]

    assert found["launches"] > 8
    assert found["updates"] >= 4
    assert found["differing"] == 0
    assert found["allocating"] == []


@pytest.mark.parametrize("form", ["FP8, channel", "FP8, blocks"])
def test_norms_and_gates_quantize_what_they_compute(form, recorded):
    """Only attention's results, in both layers, need a pass."""
    assert recorded[form]["quantizing"] == 2
