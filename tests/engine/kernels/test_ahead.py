"""Kernels are compiled for chips that are not here, and every launch is reported."""

import elsewhere
import pytest
import uninterpreted

from legato_engine.kernels.gpu import ahead, prepared

LAUNCH = {
    "kernel": "_double", "grid": [2, 1, 1], "at": {"x": 0, "out": 0}, "scalars": {"count": 100, "SIZE": 64}, "warps": 2,
    "again": [True, True], "out": 0, "driver is back": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return str(tmp_path_factory.mktemp("triton"))


@pytest.fixture(scope="module")
def everything(cache):
    return uninterpreted.call(elsewhere.everything, cache)


def test_what_is_launched_is_compiled_for_the_chip_and_reported_and_nothing_runs(everything):
    targets = {"sm_80": "sm_80", "sm_89": "sm_89", "sm_90": "sm_90a", "sm_100": "sm_100a"}
    expected = {chip: LAUNCH | {"target": f".target {target}"} for chip, target in targets.items()}
    assert everything["launched"] == expected


def test_what_was_compiled_is_found_by_a_later_process(everything, cache):
    assert everything["in cache"] == [False]
    assert uninterpreted.call(elsewhere.found_in_cache, cache, "sm_80", "sm_90") == [False, True]


def test_what_an_image_was_built_with_is_found_by_its_workers(tmp_path):
    """Although paths differ, and the image is unpacked without the machine that compiled."""
    built, image, cache = (tmp_path / name for name in ("built", "image", "cache"))
    assert uninterpreted.call(elsewhere.found_in_cache, str(built), "sm_90", "sm_80") == [False, False]
    image.mkdir()
    built.rename(image / "triton")
    found = uninterpreted.call(elsewhere.found_in_image, str(image), str(cache), "sm_90", "sm_80", "sm_89")
    assert found == [[2, 0], [True, True, False]]
    assert uninterpreted.call(elsewhere.found_in_image, str(tmp_path / "none"), str(cache), "sm_90") == [[0, 0], [True]]


def test_without_an_image_the_working_directory_is_not_one(tmp_path, monkeypatch):
    (tmp_path / "triton" / "entry").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LEGATO_PREPARED", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    assert prepared.install() == 0


@pytest.mark.parametrize(
    ("chip", "error", "message"),
    [
        ("sm_75", ValueError, r"not a chip .*: sm_75 \(sm_80, sm_89, sm_90, sm_100\)"),
        ("sm_90", RuntimeError, "TRITON_INTERPRET"),  # where kernels are interpreted
    ],
)
def test_what_cannot_be_compiled_for_is_refused(chip, error, message):
    with pytest.raises(error, match=message), ahead.launches(chip):
        pass
