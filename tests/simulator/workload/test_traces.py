"""Traces are read from files, and a bad line is named instead of being skipped."""

import json

import pytest
from budget import times
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from legato_simulator.workload import traces
from legato_simulator.workload.traces import TraceError
from legato_simulator.workload.workload import Arrival

random_cases = settings(
    max_examples=times(30),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
)
MOONCAKE = '{"timestamp": 500, "input_length": 600, "output_length": 7, "hash_ids": [3, 9]}'
LATER = '{"timestamp": 2500, "input_length": 20, "output_length": 0, "hash_ids": [3]}'
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"


@pytest.fixture
def read(tmp_path):

    def run(*lines, end="\n"):
        (tmp_path / "some.trace").write_bytes("".join(line + end for line in lines).encode())
        return traces.read(tmp_path / "some.trace")

    return run


def test_mooncake_begins_at_zero_and_keeps_prefixes(read):
    workload = read(MOONCAKE, "", LATER)
    assert (workload.name, workload.block) == ("some", 512)
    assert workload.arrivals == (Arrival(0, 600, 7, (3, 9)), Arrival(2, 20, 1, (3,)))


@pytest.mark.parametrize(
    ("rows", "end", "times"),
    [
        (["2023-11-16 18:17:03.9799600,4808,10", "2023-11-16 18:17:05,4809,11"], "\r\n", [0, 1.02004]),
        (["2024-05-10 00:00:00.009930+00:00,4808,10", "2024-05-10 02:00:01.009930+02:00,4809,11"], "\n", [0, 1]),
    ],
    ids=["2023", "2024, with time zones"],
)
def test_azure_is_recognized_by_its_content_whatever_the_file_is_called(read, rows, end, times):
    arrivals = read(HEADER, *rows, end=end).arrivals
    assert [(each.prompt, each.output, each.blocks) for each in arrivals] == [(4808, 10, ()), (4809, 11, ())]
    assert [each.at for each in arrivals] == pytest.approx(times)


def _request(**changes):
    return json.dumps({"timestamp": 600, "input_length": 6, "output_length": 1} | changes)


BAD_MOONCAKE = [
    ('{"timestamp": 600, "input_length": 600}', "missing required field `output_length`"),
    (_request(timestamp=-1), ">= 0"),
    (_request(input_length=-6), ">= 1"),
    (_request(input_length=0), ">= 1"),
    (_request(output_length=-1), ">= 0"),
    (_request(input_length=1.5), "Expected `int`"),
    (_request(timestamp=float("nan")), "invalid character"),
    (_request().replace("600", "1e999"), "out of range"),
    (_request(input_length=10_000_001), "<= 10000000"),
    (_request(timestamp=499), "0.001 s before the line above it"),
    (_request(input_length=512, hash_ids=[1, 2]), "2 hash_ids for 512 tokens"),
    ('{"timestamp": 600, "input_length"', "truncated"),
    ("[" * 100_000, ""),
    ("hello", ""),
]
BAD_AZURE = [
    ("2023-11-16 18:17:03,4808", "2 fields (expected 3)"),
    ("2023-11-16 18:17:03,4808,10,1", "4 fields (expected 3)"),
    ("yesterday,4808,10", "yesterday"),
    ("2023-11-16 18:17:03,-4808,10", "ContextTokens: not a number of tokens: -4808 (1 to 10000000)"),
    ("2023-11-16 18:17:03,0,10", "not a number of tokens: 0"),
    ("2023-11-16 18:17:03,nan,10", "not a number of tokens: nan"),
    ("2023-11-16 18:17:03,4,inf", "GeneratedTokens: not a number of tokens: inf (0 to"),
    ("2023-11-16 18:17:03," + "9" * 30 + ",1", "not a number of tokens: 999"),
    ("2023-11-16 18:17:02,4808,10", "1 s before the line above it"),
]


@pytest.mark.parametrize(
    ("before", "line", "begin", "reason"),
    [
        *(((MOONCAKE,), line, ":2: not a request", reason) for line, reason in BAD_MOONCAKE),
        *(((HEADER, "2023-11-16 18:17:03,1,1"), line, ":3: ", reason) for line, reason in BAD_AZURE),
        ((), "a,b,c", ":1: ", "expected a JSON object"),
        ((), "", ": ", "no requests"),
        ((), " ", ": ", "no requests"),
        ((), HEADER, ": ", "no requests"),
        ((MOONCAKE,), "x" * (traces.MOST_LINE + 1), ":2: ", "longer than 1048576 bytes"),
    ],
    ids=lambda value: value[:60] if isinstance(value, str) else "",
)
def test_a_bad_line_is_named_with_what_is_wrong(read, before, line, begin, reason):
    with pytest.raises(TraceError) as caught:
        read(*before, line)
    assert f"some.trace{begin}" in str(caught.value)
    assert reason in str(caught.value)


@pytest.mark.parametrize("limit", ["MOST_REQUESTS", "MOST_BLOCKS"])
def test_huge_trace_is_refused_with_its_limit(read, monkeypatch, limit):
    monkeypatch.setattr(traces, limit, 2)
    with pytest.raises(TraceError, match=r":[23]: .*too large \(at most"):
        read(MOONCAKE, LATER, LATER)


@random_cases
@given(lines=st.lists(st.binary(max_size=60) | st.sampled_from([MOONCAKE.encode(), HEADER.encode()]), max_size=6))
def test_any_bytes_give_a_trace_or_an_error_with_the_file(tmp_path, lines):
    path = tmp_path / "any"
    path.write_bytes(b"\n".join(lines))
    try:
        arrivals = traces.read(path).arrivals
    except TraceError as error:
        assert str(path) in str(error)  # noqa: PT017
    else:
        assert arrivals[0].at == 0
