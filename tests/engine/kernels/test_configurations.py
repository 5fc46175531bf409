"""Choice of the configuration that a kernel is compiled with."""

import pytest

from legato_engine.kernels.gpu import configurations
from legato_engine.kernels.gpu.configurations import ANY, Configuration, ConfigurationRow, Table

ANYWHERE = ConfigurationRow("attention", {}, ANY, ANY, Configuration({"KEYS": 16}))
WIDE = ConfigurationRow("attention", {"head_dim": 128}, ANY, ANY, Configuration({"KEYS": 32}))
WIDE_LATER = ConfigurationRow("attention", {"head_dim": 128}, ANY, "3.7", Configuration({"KEYS": 48}))
WIDE_GROUPS = ConfigurationRow("attention", {"head_dim": 128, "group": 4}, ANY, ANY, Configuration({"KEYS": 64}))
HOPPER = ConfigurationRow("attention", {}, "sm_90", ANY, Configuration({"KEYS": 128}, warps=8, stages=3))
TABLE = Table(()).replaced([HOPPER, WIDE_GROUPS, WIDE, WIDE_LATER, ANYWHERE])


@pytest.mark.parametrize(
    ("shape", "chip", "triton", "keys"),
    [
        ({}, "sm_80", "3.6", 16),
        ({"head_dim": 64}, "sm_80", "3.7", 16),
        ({"head_dim": 128}, "sm_80", "3.6", 32),
        ({"head_dim": 72}, "sm_80", "3.6", 32),  # padded to 128
        ({"head_dim": 136}, "sm_80", "3.6", 16),
        ({"head_dim": 128}, "sm_80", "3.7", 48),
        ({"head_dim": 128, "group": 4}, "sm_80", "3.7", 64),
        ({"head_dim": 128, "group": 8, "block_size": 16}, "sm_80", "3.6", 32),
        ({"head_dim": 128, "group": 4}, "sm_90", "3.7", 128),
    ],
)
def test_the_most_specific_row_wins(shape, chip, triton, keys):
    assert TABLE.choose("attention", shape, chip, triton).tiles == {"KEYS": keys}
    assert Table(TABLE.rows[::-1]).choose("attention", shape, chip, triton).tiles == {"KEYS": keys}


def test_a_kernel_without_a_row_is_named_with_those_that_have_some():
    with pytest.raises(LookupError, match=r"no configuration of silu for \{'width': 8\} on sm_90; .*: attention"):
        TABLE.choose("silu", {"width": 8}, "sm_90", "3.7")


def test_a_row_takes_the_place_of_the_one_before():
    again = ConfigurationRow("attention", {"group": 4, "head_dim": 128}, ANY, ANY, Configuration({"KEYS": 8}))
    replaced = TABLE.replaced([again])
    assert len(replaced.rows) == len(TABLE.rows)
    assert replaced.choose("attention", {"head_dim": 128, "group": 4}, "sm_80", "3.6").tiles == {"KEYS": 8}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{TABLE.text()[:-3]},{TABLE.text()[1:]}", "two configurations for"),
        ('[{"kernel": "silu", "shape": {}, "chip": "any"}]', "not a row of configurations: 'triton'"),
        ('[{"kernel": "a", "shape": {}, "chip": "any", "triton": "any", "wraps": 4}]', "unexpected keyword .*wraps"),
        (
            Table((WIDE,)).text().replace("128", "96"),
            r"head_dim is not a power of two: \('attention', \(\('head_dim', 96\)",
        ),
    ],
)
def test_a_table_is_read_as_it_was_written_and_refused_with_errors(text, message):
    assert Table.read(TABLE.text()) == TABLE
    with pytest.raises(ValueError, match=message):
        Table.read(text)


def test_the_shipped_table_is_as_tuning_would_write_it_and_has_a_row_for_every_chip_and_shape():
    """So that what tuning changes are the rows that it measured."""
    shipped = configurations.shipped()
    assert configurations.FILE.read_text() == shipped.text()
    for kernel in {row.kernel for row in shipped.rows}:
        assert isinstance(configurations.choose(kernel, {}, "sm_121"), Configuration)


@pytest.mark.parametrize("rows", [16, 32, 64, 128])
@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize("chip", ["sm_80", "sm_90", "sm_100", "sm_121"])
def test_blocks_of_experts_have_the_rows_of_their_tiles_in_all_formats(rows, bits, chip):
    """Both products of a mixture have the same blocks, also if their formats differ."""
    shape = {"rows": rows, "bits": bits}
    assert configurations.choose("multiply_experts", shape, chip).tiles["TILE_M"] == rows
