"""Sizes: one language and one range for flags and manifests."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato_protocol import sizes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("512Mi", 512 << 20),
        ("1.5Gi", 3 << 29),
        ("0.5Gi", 1 << 29),
        ("500M", 500_000_000),
        ("1Pi", 1 << 50),
        ("1.5", 2),  # part of a byte counts as one, as Kubernetes has it
        ("0.0001", 1),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert sizes.parse(text) == size
    assert re.fullmatch(sizes.PATTERN, text)


@pytest.mark.parametrize(
    "text", ["", "0", "0Mi", "-1", "+1", "lots", "500m", "1 Gi", "1gi", "1GB", "1E", "1e3", ".5Gi", "1.Gi", "٣", "1\n"]
)
def test_no_sizes(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"not a valid size: .*\(write 512Mi, 1.5Gi or 1073741824; above 0, at most 1Pi\)"
    ):
        sizes.parse(text)


def test_auto_is_no_size_of_its_own() -> None:
    assert sizes.parse_or_auto("Auto") is None
    assert sizes.parse_or_auto("512Mi") == 512 << 20
    assert (sizes.text_or_auto(None), sizes.text_or_auto(512 << 20)) == ("Auto", "512Mi")
    with pytest.raises(ValueError, match=r"not a valid size: auto \(write 512Mi.*at most 1Pi; or Auto\)"):
        sizes.parse_or_auto("auto")


@pytest.mark.parametrize("text", ["1125899906842625", "1.1Pi", "2000Ti", "9" * 400])
def test_sizes_have_a_bound(text: str) -> None:
    with pytest.raises(ValueError, match="at most 1Pi"):
        sizes.parse(text)


@pytest.mark.parametrize("value", [True, None, 512, 1.5, ["1Gi"]])
def test_only_text_is_read(value: object) -> None:
    with pytest.raises(ValueError, match="not a valid size"):
        sizes.parse(value)


@given(st.integers(1, 1 << 50))
def test_what_is_written_is_read_back(size: int) -> None:
    text = sizes.text(size)
    assert sizes.parse(text) == size
    assert re.fullmatch(sizes.PATTERN, text)


@given(st.integers(1, 1023), st.sampled_from(["Ki", "Mi", "Gi", "Ti"]))
def test_a_size_is_written_in_its_largest_unit(amount: int, unit: str) -> None:
    assert sizes.text(amount * sizes.UNITS[unit]) == f"{amount}{unit}"
