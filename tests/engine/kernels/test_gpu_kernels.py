"""What compiled kernels need of each chip, and that the docs tell it."""

import gpu_kernels
import pytest
import slow_attention
import uninterpreted

from legato_engine.kernels import ahead
from legato_engine.kernels.configurations import triton_minor

LEAST_WGMMA = 64  # lanes of a tile


@pytest.fixture(scope="module")
def kernels():
    return uninterpreted.call(gpu_kernels.described, list(ahead.CHIPS))


def test_no_kernel_spills_registers(kernels):
    assert [each for each in kernels if each["spilled"]] == []


def test_every_kernel_fits_the_shared_memory_of_its_chip(kernels):
    assert [each for each in kernels if each["shared"] > ahead.CHIPS[each["chip"]].shared] == []


def test_attention_loads_the_next_tile_while_it_computes_one(kernels):
    attention = [each for each in kernels if each["products"]]
    assert len(attention) == len(ahead.CHIPS) * len(gpu_kernels.ATTENTION) * 2  # of decoding rows, and of prompts
    assert [each for each in attention if not each["tiles"] or each["tiles"] < 2] == []


def test_wide_tiles_are_multiplied_by_the_instructions_of_whole_warp_groups(kernels):
    wide = [each for each in kernels if each["products"] and each["sizes"]["TILE_M"] >= LEAST_WGMMA]
    assert {(each["chip"], each["products"]) for each in wide} == {
        ("sm_80", "mma"), ("sm_90", "wgmma"), ("sm_100", "tcgen05"),
    }  # fmt: skip


def test_the_page_tells_what_was_compiled(kernels):
    """Registers differ between versions of Triton: the page is of one."""
    _, told, _ = gpu_kernels.page()
    if f"Triton {triton_minor()}," not in told:
        pytest.skip(f"the page is not about Triton {triton_minor()}")
    assert told == gpu_kernels.tables(kernels)


def test_block_ids_loaded_in_the_loop_that_uses_them_are_found_out(tmp_path):
    """The checks above see that nothing is loaded while a tile is computed."""
    changed = tmp_path / "changed.py"
    changed.write_text(slow_attention.source())
    told = uninterpreted.call(slow_attention.tiles_in_flight, str(changed))
    assert told == {chip: [1, 1] for chip in ahead.CHIPS}
