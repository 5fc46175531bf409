"""Resources that compiled kernels need of a chip, as documented: some shapes, and with a budget all of each chip."""

import budget
import gpu_kernels
import pytest
import uninterpreted

from legato_engine.kernels.gpu import ahead

WHOLE = budget.FACTOR > 1
LEAST_WGMMA = 64  # lanes of a tile

# Two registers of prompts with heads of more than 128, blocks of 16 and a window are stored before all loops and loaded
# after them: that costs less than the smaller tiles, for which none would be.
MOST_SPILLED = {"sm_90": 8}


@pytest.fixture(scope="module")
def everything():
    """The kernels of the page, and the sample of other shapes."""
    return uninterpreted.call(gpu_kernels.all_described, list(ahead.CHIPS), WHOLE)


@pytest.fixture(scope="module")
def kernels(everything):
    return everything[0]


@pytest.fixture(scope="module")
def sample(everything):
    return everything[1]


def test_no_kernel_spills_registers_or_exceeds_the_shared_memory_of_its_chip(kernels, sample):
    """Kernels of the sample may spill outside their loops."""
    assert [each for each in kernels if each["spilled"]] == []
    assert [each for each in sample if each["spilled"] > MOST_SPILLED.get(each["chip"], 0)] == []
    assert [each for each in kernels + sample if each["shared"] > ahead.CHIPS[each["chip"]].shared] == []


def test_attention_loads_the_next_tile_while_it_computes_one(kernels, sample):
    attention = [each for each in kernels + sample if each["kernel"].startswith("attend_items")]
    shapes = len(ahead.CHIPS) * (len(gpu_kernels.ATTENTION) + 2) if WHOLE else 2
    assert len(attention) == shapes * 2  # of decoding rows, and of prompts
    assert [each for each in attention if not each["tiles"] or each["tiles"] < 2] == []


def test_products_with_codes_load_the_next_tiles_while_they_compute_one(kernels):
    """Products of up to 32 rows take as long as their loads, so three tiles are in flight."""
    linear = [each for each in kernels if each["kernel"].startswith("_multiply_")]
    assert linear
    assert [each for each in linear if (each["tiles"] or 0) < (3 if each["sizes"]["TILE_M"] <= 32 else 2)] == []


def test_wide_tiles_are_multiplied_by_the_instructions_of_whole_warp_groups(kernels, sample):
    wide = [each for each in kernels + sample if each["products"] and each["sizes"].get("TILE_M", 0) >= LEAST_WGMMA]
    others = {("sm_80", "mma"), ("sm_89", "mma"), ("sm_100", "tcgen05")} if WHOLE else set()
    assert {(each["chip"], each["products"]) for each in wide} == {("sm_90", "wgmma")} | others
