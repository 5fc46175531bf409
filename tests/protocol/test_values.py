"""One style of reading and refusing, whatever the value is and wherever it is written."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato_protocol import values

READERS: list[Callable[[str], Any]] = [
    values.port,
    values.port_or_free,
    values.port_range,
    values.host,
    values.host_port,
    values.kubernetes_name,
    partial(values.whole, least=1, most=9),
    partial(values.real, least=0.0, most=1.0),
    partial(values.one_of, allowed=("a", "b"), kind="letter"),
    partial(values.printable, kind="name"),
]


@given(st.sampled_from(READERS), st.text(max_size=80))
def test_any_text_is_read_or_refused_in_one_style(read: Callable[[str], Any], text: str) -> None:
    told = ""
    try:
        read(text)
    except ValueError as error:
        told = str(error)
    assert not told or (told.startswith("not a valid ") and told.endswith(")") and told.isprintable())


@pytest.mark.parametrize("text", ["1", "80", "65535"])
def test_ports(text: str) -> None:
    assert values.port(text) == values.port_or_free(text) == int(text)


@pytest.mark.parametrize("text", ["65536", "99999", "-1", "+1", "1.0", " 1", "٣", "", "x", "9" * 5000])
def test_no_ports(text: str) -> None:
    for read in (values.port, values.port_or_free):
        with pytest.raises(ValueError, match="not a valid port"):
            read(text)


def test_only_a_port_to_listen_on_may_be_any() -> None:
    assert values.port_or_free("0") == 0
    with pytest.raises(ValueError, match=r"^not a valid port: 0 \(1 to 65535\)$"):
        values.port("0")


@given(st.integers(1, 65535), st.integers(1, 65535))
def test_a_port_range_has_two_ports_or_more(first: int, last: int) -> None:
    if first < last:
        assert values.port_range(f"{first}-{last}") == (first, last)
    else:
        with pytest.raises(ValueError, match=f"not a valid port range: {first}-{last}"):
            values.port_range(f"{first}-{last}")


@pytest.mark.parametrize("text", ["7100", "0-5", "7100-70000", "a-b", "1-2-3", "-5", "1 - 2"])
def test_no_port_ranges(text: str) -> None:
    with pytest.raises(ValueError, match="not a valid port range"):
        values.port_range(text)


@pytest.mark.parametrize(
    "text", ["127.0.0.1", "::1", "fd00::1", "localhost", "a.b-c.d", "a_b", "demo-gateway.ns.svc.", "a" * 63]
)
def test_hosts(text: str) -> None:
    assert values.host(text) == text


@pytest.mark.parametrize(
    "text", ["", "a b", "-a", "a-", "a..b", "http://a", "a:80", "[::1]", "a" * 64, "a/b", "a.b" * 90]
)
def test_no_hosts(text: str) -> None:
    with pytest.raises(ValueError, match="not a valid host"):
        values.host(text)


@pytest.mark.parametrize("text", ["127.0.0.1:80", "[::1]:80", "a.b:1", "localhost:65535"])
def test_addresses(text: str) -> None:
    assert values.host_port(text) == text


@pytest.mark.parametrize("text", ["", "80", ":80", "a", "a:", "a:0", "a:65536", "::1:80", "[a]:80", "[::1]", "a b:80"])
def test_no_addresses(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a valid address: .*HOST:PORT"):
        values.host_port(text)


@given(st.integers(-5, 15))
def test_whole_numbers_within_bounds(number: int) -> None:
    if 1 <= number <= 9:
        assert values.whole(str(number), 1, 9) == number
    else:
        with pytest.raises(ValueError, match=rf"^not a valid number: {number} \(1 to 9\)$"):
            values.whole(str(number), 1, 9)


@pytest.mark.parametrize("text", ["nan", "inf", "1e3", "-0.1", "1.01", ".5", "1.", ""])
def test_no_real_numbers(text: str) -> None:
    with pytest.raises(ValueError, match=r"\(0 to 1\)"):
        values.real(text, 0, 1)


def test_real_numbers_within_bounds() -> None:
    texts = ("0", "0.5", "1.000", repr(512 / 576))
    assert [values.real(text, 0, 1) for text in texts] == [0.0, 0.5, 1.0, 512 / 576]


@pytest.mark.parametrize("text", ["a", "a-1", "0", "a" * 63])
def test_kubernetes_names(text: str) -> None:
    assert values.kubernetes_name(text) == text


@pytest.mark.parametrize("text", ["", "A", "-a", "a-", "a.b", "a" * 64, "a\n"])
def test_no_kubernetes_names(text: str) -> None:
    with pytest.raises(ValueError, match="not a valid name"):
        values.kubernetes_name(text)


@pytest.mark.parametrize(
    ("given_", "shown"),
    [
        ("99999", "99999"),
        ("", "''"),
        (" 1", "' 1'"),
        ("a b", "'a b'"),
        ("a\x1b", r"'a\x1b'"),
        (90, "90"),
        (None, "None"),
    ],
)
def test_a_value_is_shown_so_that_it_can_be_seen(given_: object, shown: str) -> None:
    assert str(values.invalid("port", given_, "1 to 65535")) == f"not a valid port: {shown} (1 to 65535)"


def test_a_long_value_is_cut() -> None:
    assert len(str(values.invalid("port", "9" * 10_000, "1 to 65535"))) < 100
