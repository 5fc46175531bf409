"""Nothing is compiled while a worker serves: all streams would stand still meanwhile."""

from collections import Counter

import compiled_kernels
import pytest
import uninterpreted
from budget import times

CODES = [("GPTQ, act order", 16, 100), ("FP8, channel", 32, 9)]
CASES = [("llama", 16, 16), ("qwen 2", 32, 1000), ("qwen 3", 64, 9), ("odd sizes", 16, 1), *CODES]
STEPS = times(15)


@pytest.fixture(scope="module")
def told():
    return dict(zip(CASES, uninterpreted.call(compiled_kernels.told_by_case, CASES, STEPS), strict=True))


@pytest.mark.parametrize(("model", "block_size", "max_batch"), CASES)
def test_what_steps_launch_was_compiled_in_the_warm_up(model, block_size, max_batch, told):
    assert told[model, block_size, max_batch]["only in steps"] == []


def test_a_kernel_is_compiled_once_for_all_sizes_of_a_step(told):
    counts = Counter(each.split()[0] for each in told[CASES[0]]["warm-up"])
    once = dict.fromkeys(("_expand", "make_lists", "combine_parts", "_norm_rotate_write", "_silu_mul"), 1)
    assert counts.items() >= {**once, "_add_rms_norm": 2}.items()


def test_the_steps_launch_all_kernels_of_the_warm_up(told):
    """Or it would be of no use that they ask for nothing else."""
    found = told[CASES[0]]
    launched, warm = ({each.split()[0] for each in found[when]} for when in ("steps", "warm-up"))

    assert launched == warm
    assert {"_expand", "make_lists", "attend_items", "combine_parts", "_add_rms_norm", "choose", "rank_rows"} < warm
