"""Compute paths: the best one that a processor and a model fit, and its kernel for a weight and a step."""

from dataclasses import replace

import pytest
from tiny_families import FAMILIES
from tiny_models import LLAMA, PROCESSORS, llama

from legato_engine.kernels import paths
from legato_engine.kernels.paths import AUTO, FLOAT32, Product


@pytest.mark.parametrize("name", PROCESSORS)
def test_the_best_path_that_the_processor_has_instructions_for_is_chosen(name):
    path, reason = paths.choose(PROCESSORS[name], LLAMA, 16)
    assert path.name == name
    assert reason == f"{path} ({PROCESSORS[name]})"


@pytest.mark.parametrize("size", ["hidden_size", "intermediate_size", "head_dim"])
def test_a_model_of_odd_sizes_has_no_path(size):
    odd = llama(**{size: 40})
    assert paths.choose(PROCESSORS["tiles"], odd, 16) == (None, f"{size} 40 is not a multiple of 32")
    assert FLOAT32.mismatch(odd, 16) == f"{size} 40 is not a multiple of 32"


def test_experts_of_odd_sizes_have_no_path():
    model = FAMILIES["qwen 3 moe"]
    odd = replace(model, experts=replace(model.experts, inner=40))
    assert FLOAT32.mismatch(odd, 16) == "intermediate size of experts 40 is not a multiple of 32"
    assert FLOAT32.mismatch(replace(model, intermediate_size=40), 16) is None


def test_the_last_path_needs_no_instructions_and_every_path_takes_any_weight_and_step():
    assert AUTO[-1].instructions == ()
    for path in (*AUTO, FLOAT32):
        for rows in (1, 2, 3, 1000):
            for bits, group in ((None, None), (4, 32), (8, 16)):
                assert path.kernel(rows, bits, group).takes(rows, bits, group)


@pytest.mark.parametrize(
    ("path", "bits", "group", "products"),
    [
        (paths.TILES, 4, 32, "CODES CODES TILES TILES"),
        (paths.TILES, None, None, "PAIRS TILES TILES TILES"),
        (paths.INT8_BF16, 8, 32, "INT8 INT8 INT8 INT8"),
        (paths.INT8, 8, 16, "CODES CODES CODES FLOAT32"),
        (paths.INT8_AVX2, 4, 32, "INT8 INT8 INT8 INT8"),
        (paths.INT8_AVX2, 8, 32, "CODES CODES CODES FLOAT32"),
        (paths.CODES, 4, 32, "CODES CODES CODES FLOAT32"),
        (paths.CODES, None, None, "FLOAT32 FLOAT32 FLOAT32 FLOAT32"),
    ],
)
def test_a_kernel_follows_from_the_rows_and_the_form_of_the_weight(path, bits, group, products):
    chosen = [path.kernel(rows, bits, group).product for rows in (1, 2, 32, 33)]
    assert chosen == [Product[name] for name in products.split()]


def test_better_paths_are_named_with_what_the_processor_lacks():
    assert paths.faster(PROCESSORS["int8-avx2"]) == ["tiles (AMX)", "int8-bf16 (VNNI, BF16)", "int8 (VNNI)"]
    assert paths.faster(PROCESSORS["tiles"]) == []
