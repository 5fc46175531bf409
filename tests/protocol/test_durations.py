"""Durations: one language and one range for flags, manifests and headers."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato_protocol import durations

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
WRONG = [
    "",
    "s",
    "-1s",
    "+1s",
    "1 s",
    "1s ",
    "1S",
    "1d",
    "1us",
    ".5s",
    "1.s",
    "1e3s",
    "nan",
    "inf",
    "٣s",
    "1s\n",
    "1,5s",
]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1ms", 0.001), ("0.5s", 0.5), ("90s", 90), ("1m30s", 90), ("30s1m", 90), ("1.5h", 5400), ("168h", 604_800)],
)
def test_durations(text: str, seconds: float) -> None:
    assert durations.parse(text) == durations.parse_header(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", WRONG)
def test_other_texts_are_refused_everywhere(text: str) -> None:
    for read in (durations.parse, durations.parse_header):
        with pytest.raises(ValueError, match="not a valid duration"):
            read(text)


@pytest.mark.parametrize("text", ["0s", "0.9ms", "168h1ms", "200h", "9" * 400 + "h"])
def test_durations_have_bounds(text: str) -> None:
    for read in (durations.parse, durations.parse_header):
        with pytest.raises(ValueError, match="1ms to 168h"):
            read(text)


@pytest.mark.parametrize("value", ["90", 90, 1.5, True, None, ["1s"]])
def test_only_a_header_may_leave_out_the_unit(value: object) -> None:
    with pytest.raises(ValueError, match=r"not a valid duration: .*\(write 90s, 1m30s or 500ms; 1ms to 168h\)"):
        durations.parse(value)
    assert durations.parse_header("90") == 90


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 200), st.sampled_from(sorted(UNITS))), min_size=1, max_size=4))
def test_parts_add_up(parts: list[tuple[int, str]]) -> None:
    text = "".join(f"{amount}{unit}" for amount, unit in parts)
    seconds = sum(amount * UNITS[unit] for amount, unit in parts)
    if 0.001 <= round(seconds, 6) <= 604_800:
        assert durations.parse(text) == pytest.approx(seconds)
    else:
        with pytest.raises(ValueError, match="not a valid duration"):
            durations.parse(text)


@settings(deadline=None)
@given(st.integers(1, 604_800_000))
def test_what_is_written_is_read_back_to_the_millisecond(milliseconds: int) -> None:
    text = durations.text(milliseconds / 1000)
    assert durations.parse(text) == pytest.approx(milliseconds / 1000, abs=1e-9)
    assert re.fullmatch(durations.PATTERN, text)


@pytest.mark.parametrize(
    ("seconds", "text"), [(600, "10m"), (90, "90s"), (7200, "2h"), (0.1, "100ms"), (604_799.999, "604799999ms")]
)
def test_a_duration_is_written_in_its_largest_unit(seconds: float, text: str) -> None:
    assert durations.text(seconds) == text


@settings(deadline=None)
@given(st.text(alphabet="0123456789.hms", max_size=12))
def test_the_schemas_pattern_accepts_what_the_parser_does(text: str) -> None:
    """Beyond that there are only the bounds, which are a rule of their own."""
    try:
        durations.parse(text)
    except ValueError:
        return
    assert re.fullmatch(durations.PATTERN, text)
