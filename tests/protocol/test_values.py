"""One style of reading and refusing, whatever the value is and wherever it is written."""

import re
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato_protocol.settings import durations, sizes, values

UNIT = partial(values.real, least=0, most=1)
TENTH = partial(values.whole, least=1, most=9)
READERS = [
    *(values.port, values.port_or_free, values.port_range, values.host, values.host_port, values.kubernetes_name),
    *(UNIT, TENTH, partial(values.one_of, allowed=("a", "b"), kind="letter"), partial(values.printable, kind="name")),
    *(durations.parse, durations.parse_header, sizes.parse, sizes.parse_or_auto),
]


@given(st.sampled_from(READERS), st.text(max_size=80))
def test_any_text_is_read_or_refused_in_one_style(read, text):
    refusal = ""
    try:
        read(text)
    except ValueError as error:
        refusal = str(error)
    assert not refusal or (refusal.startswith("not a valid ") and refusal.endswith(")") and refusal.isprintable())


UNCHANGED = {
    values.host: ["127.0.0.1", "::1", "fd00::1", "localhost", "a.b-c.d", "a_b", "demo-gateway.ns.svc.", "a" * 63],
    values.host_port: ["127.0.0.1:80", "[::1]:80", "a.b:1", "localhost:65535"],
    values.kubernetes_name: ["a", "a-1", "0", "a" * 63],
}
READ = {
    **{read: {text: text for text in texts} for read, texts in UNCHANGED.items()},
    values.port: {"1": 1, "80": 80, "65535": 65535},
    values.port_or_free: {"0": 0, "80": 80},
    UNIT: {"0": 0.0, "0.5": 0.5, "1.000": 1.0, repr(512 / 576): 512 / 576},
    durations.parse: {"1ms": 0.001, "0.5s": 0.5, "90s": 90, "1m30s": 90, "30s1m": 90, "1.5h": 5400, "168h": 604_800},
    durations.parse_header: {"1m30s": 90, "1.5h": 5400, "90": 90},
    sizes.parse: {"1": 1, "512Mi": 512 << 20, "1.5Gi": 3 << 29, "0.5Gi": 1 << 29, "500M": 500_000_000, "1Pi": 1 << 50}
    | {"1.5": 2, "0.0001": 1},  # part of a byte counts as one, as Kubernetes has it
    sizes.parse_or_auto: {"Auto": None, "512Mi": 512 << 20},
}


@pytest.mark.parametrize("read", READ)
def test_what_is_valid_is_read(read):
    assert {text: read(text) for text in READ[read]} == pytest.approx(READ[read])


NO_PORT = ["65536", "99999", "-1", "+1", "1.0", " 1", "٣", "", "x", "9" * 5000]
NO_DURATION = ["", "s", "-1s", "+1s", "1 s", "1s ", "1S", "1d", "1us", ".5s", "1.s", "1e3s", "nan", "inf", "٣s", "1s\n"]
NO_DURATION += ["1,5s", "0s", "0.9ms", "168h1ms", "200h", "9" * 400 + "h"]
NO_SIZE = ["", "0", "0Mi", "-1", "+1", "lots", "500m", "1 Gi", "1gi", "1GB", "1E", "1e3", ".5Gi", "1.Gi", "٣", "1\n"]
NO_SIZE += ["1125899906842625", "1.1Pi", "2000Ti", "9" * 400, True, None, 512, 1.5, ["1Gi"]]
SIZES = r"not a valid size: .*\(write 512Mi, 1.5Gi or 1073741824; above 0, at most 1Pi"
REFUSED = {
    values.port: (r"^not a valid port: .* \(1 to 65535\)$", ["0", *NO_PORT]),
    values.port_or_free: ("not a valid port", NO_PORT),
    values.port_range: ("port range", ["7100", "0-5", "7100-70000", "a-b", "1-2-3", "-5", "1 - 2", "2-2", "3-2"]),
    values.host: ("host", ["", "a b", "-a", "a-", "a..b", "http://a", "a:80", "[::1]", "a" * 64, "a/b", "a.b" * 90]),
    values.host_port: (
        "not a valid address: .*HOST:PORT",
        ["", "80", ":80", "a", "a:", "a:0", "a:65536", "::1:80", "[a]:80", "[::1]", "a b:80"],
    ),
    values.kubernetes_name: ("not a valid name", ["", "A", "-a", "a-", "a.b", "a" * 64, "a\n"]),
    UNIT: (r"\(0 to 1\)", ["nan", "inf", "1e3", "-0.1", "1.01", ".5", "1.", ""]),
    durations.parse: (
        r"not a valid duration: .*\(write 90s, 1m30s or 500ms; 1ms to 168h\)",
        [*NO_DURATION, "90", 90, 1.5, True, None, ["1s"]],
    ),
    durations.parse_header: (r"not a valid duration: .*\(write 90, 90s, 1m30s or 500ms; 1ms to 168h\)", NO_DURATION),
    sizes.parse: (rf"{SIZES}\)", NO_SIZE),
    sizes.parse_or_auto: (rf"{SIZES}; or Auto\)", ["auto", *NO_SIZE]),
}


@pytest.mark.parametrize(("read", "text"), [(read, text) for read, (_, texts) in REFUSED.items() for text in texts])
def test_what_is_not_valid_is_refused_with_what_is_allowed(read, text):
    with pytest.raises(ValueError, match=re.compile(REFUSED[read][0], re.DOTALL)):
        read(text)


@given(st.integers(1, 65535), st.integers(1, 65535))
def test_a_port_range_has_two_ports_or_more(first, last):
    if first < last:
        assert values.port_range(f"{first}-{last}") == (first, last)
    else:
        with pytest.raises(ValueError, match=f"not a valid port range: {first}-{last}"):
            values.port_range(f"{first}-{last}")


@given(st.integers(-5, 15))
def test_whole_numbers_within_bounds(number):
    if 1 <= number <= 9:
        assert TENTH(str(number)) == number
    else:
        with pytest.raises(ValueError, match=rf"^not a valid number: {number} \(1 to 9\)$"):
            TENTH(str(number))


SHOWN = {"99999": "99999", "": "''", " 1": "' 1'", "a b": "'a b'", "a\x1b": r"'a\x1b'", 90: "90", None: "None"}


@pytest.mark.parametrize(("value", "shown"), SHOWN.items())
def test_a_value_is_shown_so_that_it_can_be_seen(value, shown):
    assert str(values.invalid("port", value, "1 to 65535")) == f"not a valid port: {shown} (1 to 65535)"


def test_a_long_value_is_cut():
    assert len(str(values.invalid("port", "9" * 10_000, "1 to 65535"))) < 100


SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 200), st.sampled_from(sorted(SECONDS))), min_size=1, max_size=4))
def test_parts_of_a_duration_add_up(parts):
    text = "".join(f"{amount}{unit}" for amount, unit in parts)
    seconds = sum(amount * SECONDS[unit] for amount, unit in parts)
    if 0.001 <= round(seconds, 6) <= 604_800:
        assert durations.parse(text) == pytest.approx(seconds)
    else:
        with pytest.raises(ValueError, match="not a valid duration"):
            durations.parse(text)


@settings(deadline=None)
@given(st.integers(1, 604_800_000), st.integers(1, 1 << 50))
def test_durations_and_sizes_that_are_written_are_read_back(milliseconds, size):
    duration, written = durations.text(milliseconds / 1000), sizes.text(size)
    assert (durations.parse(duration), sizes.parse(written)) == (pytest.approx(milliseconds / 1000, abs=1e-9), size)
    assert re.fullmatch(durations.PATTERN, duration)
    assert re.fullmatch(sizes.PATTERN, written)


WRITTEN = {600: "10m", 90: "90s", 7200: "2h", 0.1: "100ms", 604_799.999: "604799999ms"}


@given(st.integers(1, 1023), st.sampled_from(["Ki", "Mi", "Gi", "Ti"]))
def test_a_duration_or_size_is_written_in_its_largest_unit(amount, unit):
    assert sizes.text(amount * sizes.UNITS[unit]) == f"{amount}{unit}"
    assert {seconds: durations.text(seconds) for seconds in WRITTEN} == WRITTEN
    assert (sizes.text_or_auto(None), sizes.text_or_auto(512 << 20)) == ("Auto", "512Mi")


@settings(deadline=None)
@given(
    st.sampled_from(
        [(durations.parse, durations.PATTERN, "0123456789.hms"), (sizes.parse, sizes.PATTERN, "0159.KGki")]
    ),
    st.data(),
)
def test_the_schemas_pattern_accepts_what_the_parser_does(language, data):
    """Beyond that there are only the bounds, which are a rule of their own."""
    parse, pattern, alphabet = language
    text = data.draw(st.text(alphabet=alphabet, max_size=12))
    try:
        parse(text)
    except ValueError:
        return
    assert re.fullmatch(pattern, text)
