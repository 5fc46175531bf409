"""After the warm-up, all launches are of captured steps; those of one size launch the same, at the same addresses, and
allocate nothing.
"""

import pytest
import recorded_steps
import uninterpreted

STEPS = {"gemma 3": 300} | dict.fromkeys(
    (
        "mistral", "qwen 3", "biases", "olmo 2", "qwen 2 moe", "gpt-oss", "GPTQ, act order", "FP8, channel",
        "FP8, blocks",
    ),
    40,
)  # fmt: skip


@pytest.fixture(scope="module")
def recorded():
    return uninterpreted.call(recorded_steps.recorded_by_model, STEPS)


@pytest.mark.parametrize("model", STEPS)
def test_random_steps_with_prompts_decoding_rows_and_adapters_are_replayed(model, recorded):
    found = recorded[model]

    assert found["sizes"] > 8
    assert found["updates"] >= 4
    assert found["differing"] == 0
    assert found["outside"] == []
    assert found["allocating"] == []


@pytest.mark.parametrize("form", ["FP8, channel", "FP8, blocks"])
def test_norms_and_gates_quantize_what_they_compute(form, recorded):
    """Only attention's results, in both layers, need a pass."""
    assert recorded[form]["prompt"].count("_quantize_rows") == 2
