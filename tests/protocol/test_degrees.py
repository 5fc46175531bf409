"""A degree divides attention heads and inner sizes; KV heads are divided or copied."""

import pytest

from legato_protocol.model_files.degrees import degrees_that_fit, unfit_degree


@pytest.mark.parametrize(
    ("heads", "kv_heads", "inner", "fit"),
    [
        (64, 8, {"intermediate_size": 25600}, (1, 2, 4, 8)),  # Qwen3 32B
        (28, 4, {"intermediate_size": 18944}, (1, 2, 4)),  # Qwen2.5 7B
        (14, 2, {"intermediate_size": 4864}, (1, 2)),  # Qwen2.5 0.5B
        (9, 3, {"intermediate_size": 1536}, (1,)),  # SmolLM2 135M
        (32, 1, {"intermediate_size": 1024}, (1, 2, 4, 8)),  # all ranks hold the one KV head
        (24, 6, {"intermediate_size": 1024}, (1, 2)),  # 4 ranks cannot hold 6 KV heads
        (32, 8, {"intermediate_size": 1024, "intermediate size of experts": 12}, (1, 2, 4)),
    ],
)
def test_degrees_divide_heads_and_inner_sizes(heads, kv_heads, inner, fit):
    assert degrees_that_fit(heads, kv_heads, inner) == fit
    assert [degree for degree in (1, 2, 4, 8) if not unfit_degree(degree, heads, kv_heads, inner)] == list(fit)


def test_an_unfit_degree_is_refused_with_each_number_and_the_degrees_that_fit():
    assert unfit_degree(4, 18, 6, {"intermediate_size": 1026}) == (
        "18 attention heads, 6 KV heads, intermediate_size 1026 cannot be divided among 4 ranks; degrees that fit: 1, 2"
    )
