"""Kernels are compiled for chips that are not here, and every launch is told."""

import elsewhere
import pytest
import uninterpreted

from legato_engine.kernels import ahead

TOLD = {
    "kernel": "_double",
    "grid": [2, 1, 1],
    "at": {"x": 0, "out": 0},
    "scalars": {"count": 100, "SIZE": 64},
    "warps": 2,
    "again": [True, True],
    "out": 0,
    "driver is back": True,
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return str(tmp_path_factory.mktemp("triton"))


@pytest.fixture(scope="module")
def everything(cache):
    return uninterpreted.call(elsewhere.everything, cache)


def test_what_is_launched_is_compiled_for_the_chip_and_told_and_nothing_runs(everything):
    told = everything["launched"]
    targets = {chip: each.pop("target") for chip, each in told.items()}
    assert targets == {
        "sm_80": ".target sm_80",
        "sm_89": ".target sm_89",
        "sm_90": ".target sm_90a",
        "sm_100": ".target sm_100a",
    }
    assert {chip: each for chip, each in told.items() if each != TOLD} == {}


def test_a_kernel_that_a_chip_has_no_shared_memory_for_is_refused(everything):
    small, middle, large = everything["room"]
    assert set(small.values()) == {"fits: True"}
    assert "shared memory, Required: 131072, Hardware limit: 101376" in middle.pop("sm_89")
    assert set(middle.values()) == {"fits: True"}
    assert "shared memory, Required: 196608, Hardware limit: 166912" in large["sm_80"]
    assert "shared memory, Required: 262144, Hardware limit: 232448" in large["sm_90"]


def test_what_was_compiled_is_found_by_a_later_process(everything, cache):
    assert everything["in cache"] == [False]
    assert uninterpreted.call(elsewhere.found_in_cache, cache, "sm_80", "sm_90") == [False, True]


def test_a_chip_that_is_not_known_is_refused():
    with (
        pytest.raises(ValueError, match=r"not a chip .*: sm_75 \(sm_80, sm_89, sm_90, sm_100\)"),
        ahead.launches("sm_75"),
    ):
        pass


def test_where_kernels_are_interpreted_nothing_is_compiled():
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET"), ahead.launches("sm_90"):
        pass
