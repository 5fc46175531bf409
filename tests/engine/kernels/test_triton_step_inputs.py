"""Rows expanded on the device equal those of the readable twin, and those that backends on the host are given."""

import torch
from budget import times
from hypothesis import given, settings
from hypothesis import strategies as st

from legato_engine.kernels.gpu import step_inputs as triton
from legato_engine.kernels.gpu.configurations import Configuration
from legato_engine.kernels.reference import step_inputs as naive
from legato_engine.kvcache.window_table import WindowTable
from legato_engine.runner import inputs
from legato_engine.scheduler.batch import Row

SIZES = st.sampled_from([16, 32, 64])
ROWS = st.lists(st.tuples(st.integers(0, 200), st.integers(1, 40)), min_size=1, max_size=9)
few = settings(max_examples=times(12), deadline=None)


def expanded(names, starts, lengths, tables, sampled, size, tile=16):
    """Tokens, positions and slots, in buffers with one number more that nobody may write to."""
    found = [torch.full((*many, len(names) + 1), 77, dtype=torch.int32) for many in ((), (), (len(tables),))]
    config = Configuration({"TOKENS": tile})
    triton.expand(names, starts, lengths, tables, sampled, *[x[..., :-1] for x in found], size, config)
    assert all(bool((x[..., -1] == 77).all()) for x in found)
    return [x[..., :-1] for x in found]


def ints(numbers):
    return torch.tensor(numbers, dtype=torch.int32)


@few
@given(
    rows=st.lists(st.tuples(st.integers(0, 200), st.sampled_from([0, 0, 1, 1, 1, 8, 63])), min_size=1, max_size=17),
    padded=st.tuples(st.integers(0, 20), st.integers(0, 5)),
    size=SIZES,
    tile=st.sampled_from([1, 16, 128]),
    wide=st.booleans(),
    groups=st.integers(1, 3),
    data=st.data(),
)
def test_rows_become_tokens_positions_and_slots(rows, padded, size, tile, wide, groups, data):
    """Also rows without tokens anywhere, padding behind, tables with room, and ids that the device alone knows."""
    counts = [count for _, count in rows] + [0] * padded[1]
    starts = torch.cat((torch.zeros(1), torch.tensor(counts).cumsum(0))).int()
    lengths = ints([begin + count for begin, count in rows] + [0] * padded[1])
    tables = torch.randint(0, 1000, (groups, len(counts), 300 // size + 3), dtype=torch.int32)[..., :-1]
    sampled = torch.randint(0, 50_000, (5,), dtype=torch.int64 if wide else torch.int32)
    total = sum(counts) + padded[0] or 1
    names = ints(data.draw(st.lists(st.integers(-5, 9), min_size=total, max_size=total)))

    found = expanded(names, starts, lengths, tables, sampled, size, tile)

    expected = naive.expand(names, starts, lengths, tables, sampled, size)
    assert [x.tolist() for x in found] == [x.tolist() for x in expected]


@few
@given(ROWS, SIZES)
def test_a_step_is_that_of_the_host(spans, size):
    free = iter(torch.randperm(900).tolist())
    rows = []
    for start, count in spans:
        blocks = [next(free) for _ in range(-(-(start + count) // size))]
        windows = (WindowTable(start // size, [next(free) for _ in blocks[start // size :]]),)
        rows.append(Row(torch.randint(0, 9999, (count,)).tolist(), start, blocks, windows=windows))
    host = inputs.build(rows, size)

    groups = host, host.windows[0]
    tables, slots = ([getattr(group, name).tolist() for group in groups] for name in ("tables", "slots"))
    found = expanded(ints(host.tokens), ints(host.starts), ints(host.lengths), ints(tables), torch.empty(0), size)

    assert [x.tolist() for x in found] == [host.tokens.tolist(), host.positions.tolist(), slots]


def test_padding_is_written_nowhere():
    """Whatever an earlier step has left in the buffers that padding reads."""
    starts, lengths, tables = ints([0, 1, 1]), ints([5, 999]), ints([[[3], [3]]])
    found = expanded(ints([-1, -7, 12345]), starts, lengths, tables, ints([42]), 16)
    assert [x.tolist() for x in found] == [[42, 0, 0], [4, 0, 0], [[52, -1, -1]]]
