"""Resources that compiled kernels need of each chip, as documented: some shapes, and with a budget all of them."""

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
    attention = [each for each in kernels + sample if each["products"]]
    shapes = len(ahead.CHIPS) * (len(gpu_kernels.ATTENTION) + 2) if WHOLE else len(ahead.CHIPS) + 1
    assert len(attention) == shapes * 2  # of decoding rows, and of prompts
    assert [each for each in attention if not each["tiles"] or each["tiles"] < 2] == []


def test_wide_tiles_are_multiplied_by_the_instructions_of_whole_warp_groups(kernels, sample):
    wide = [each for each in kernels + sample if each["products"] and each["sizes"]["TILE_M"] >= LEAST_WGMMA]
    assert {(each["chip"], each["products"]) for each in wide} == {
        ("sm_80", "mma"), ("sm_89", "mma"), ("sm_90", "wgmma"), ("sm_100", "tcgen05"),
    }  # fmt: skip
