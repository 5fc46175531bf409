"""GGUF headers: what was written is read, and bytes that are no header are refused and nothing else."""

import struct
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato_protocol.model_files.gguf_header import BadGguf, TensorInfo, parse

METADATA = {
    "general.architecture": "llama",
    "small": 7,
    "list": ["ä", "", "long " * 50],
    "numbers": [1, -2, 3],
    "flag": True,
    "real": 0.5,
}


def string(text):
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(given_value):
    if isinstance(given_value, bool):
        return struct.pack("<I?", 7, given_value)
    if isinstance(given_value, int):
        return struct.pack("<II", 4, given_value)
    if isinstance(given_value, float):
        return struct.pack("<If", 6, given_value)
    if isinstance(given_value, str):
        return struct.pack("<I", 8) + string(given_value)
    items = b"".join(string(item) if isinstance(item, str) else struct.pack("<i", item) for item in given_value)
    return struct.pack("<IIQ", 9, 8 if isinstance(given_value[0], str) else 5, len(given_value)) + items


def tensor(name, dimensions, kind, offset):
    sizes = struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
    return string(name) + sizes + struct.pack("<IQ", kind, offset)


def header(metadata, *tensors, version=3):
    keys = b"".join(string(key) + value(item) for key, item in metadata.items())
    return b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata)) + keys + b"".join(tensors)


WHOLE = header(METADATA, tensor("a", (4, 3), 0, 0), tensor("b", (32,), 8, 64))


@pytest.mark.parametrize("version", [2, 3])
def test_metadata_and_tensors_come_back(version):
    found = parse(header(METADATA, tensor("a", (4, 3), 0, 0), tensor("b", (32,), 8, 64), version=version))
    start = -(-len(WHOLE) // 32) * 32
    assert found.metadata == METADATA
    assert found.tensors == {"a": TensorInfo("a", (3, 4), 0, start), "b": TensorInfo("b", (32,), 8, start + 64)}


def test_tensors_begin_where_the_files_own_alignment_says():
    found = parse(header({"general.alignment": 4096}, tensor("a", (1,), 0, 8)))
    assert found.tensors["a"].offset == 4096 + 8


@given(st.integers(0, len(WHOLE) - 1))
def test_every_truncation_is_refused(size):
    with pytest.raises(BadGguf):
        parse(WHOLE[:size])


@settings(max_examples=300)
@given(st.integers(4, len(WHOLE) - 1), st.binary(min_size=1, max_size=8))
def test_damage_is_refused_or_read_but_never_worse(at, damage):
    damaged = WHOLE[:at] + damage + WHOLE[at + len(damage) :]
    with suppress(BadGguf):
        assert parse(damaged).metadata is not None


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "not a GGUF"),
        (b"GGML" + WHOLE[4:], "GGML"),
        (header({}, version=1), "version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "little-endian"),
        (header({}, tensor("a", (1,) * 5, 0, 0)), "5 dimensions"),
        (header({}, tensor("a", (1,), 0, 0), tensor("a", (1,), 0, 0)), "same name"),
        (header({"general.alignment": 0}), "general.alignment"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + string("k") + struct.pack("<I", 99), "unknown type 99"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + string("k") + struct.pack("<IIQ", 9, 0, 2**62), "truncated"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + string("k") + struct.pack("<I", 9) * 60000, "truncated|nested"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2) + b"\xff\xfe" * 9, "UTF-8"),
    ],
)
def test_what_is_wrong_is_said(data, text):
    with pytest.raises(BadGguf, match=text):
        parse(data)


def test_arrays_in_arrays_are_read_to_any_sensible_depth():
    nested = struct.pack("<IIQ", 9, 9, 2) + struct.pack("<IQ2i", 5, 2, 1, 2) + struct.pack("<IQi", 5, 1, 3)
    found = parse(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + string("k") + nested)
    assert found.metadata == {"k": [[1, 2], [3]]}
    deep = struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 100_000
    with pytest.raises(BadGguf, match="nested too deeply"):
        parse(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + string("k") + deep)
