"""Attention by Triton, interpreted: what the readable twin gives for any step, whatever unused memory holds."""

import pytest
import torch
from attention_step import Step
from budget import times
from hypothesis import example, given, settings
from hypothesis import strategies as st

from legato_engine.kernels.gpu.attention import attend as attention
from legato_engine.kernels.gpu.attention.attend import AttentionSizes
from legato_engine.kernels.gpu.configurations import Configuration

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def decode_config(tile_m=16, tile_n=32, splits=2, shortest=1):
    return Configuration({"TILE_M": tile_m, "TILE_N": tile_n, "SPLITS": splits, "SHORTEST": shortest})


def prefill_config(tile_m=32, tile_n=32):
    return Configuration({"TILE_M": tile_m, "TILE_N": tile_n})


def check(step, decode, prefill, work=None):
    """In 16 bits, the kernel rounds the weights of values and the result, the twin the result, each by at most half of
    `eps`. So they differ by at most eps / 2 · Σ weight · |value| + eps · |result|. 2 · eps allows more, unless the
    weighted |values| add up to 4: those of normal numbers do not. In float32, only the order of sums differs.
    """
    dtype = step.queries.dtype
    allowed = 1e-5 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(step.run(decode, prefill, work), step.expected(), rtol=allowed, atol=allowed)


@settings(max_examples=times(6), deadline=None)
@given(data=st.data())
def test_any_step_gives_what_the_twin_gives(data):
    """Also with rows of any number of tokens, windows, padded rows and tokens, and tiles below and above a block."""
    draw = data.draw
    decoding = st.tuples(st.integers(0, 130), st.integers(1, attention.DECODE_QUERIES))
    prompt = st.tuples(st.sampled_from([0, 0, 16, 37, 64, 100]), st.integers(9, 70))
    rows = draw(st.lists(st.one_of(decoding, decoding, prompt), min_size=1, max_size=5))
    step = Step(
        rows,
        group=draw(st.sampled_from([1, 2, 3, 4, 7, 8, 16])),
        kv_heads=draw(st.integers(1, 2)),
        dim=draw(st.sampled_from([16, 32, 80, 96])),
        block=draw(st.sampled_from([16, 32, 64])),
        dtype=draw(st.sampled_from(DTYPES)),
        padding=(draw(st.integers(0, 3)), draw(st.integers(0, 3))),
        window=draw(st.sampled_from([None, None, 1, 5, 33, 64])),
        seed=draw(st.integers(0, 99)),
        kv=draw(st.sampled_from([None, torch.uint8])),
        sinks=draw(st.booleans()),
    )
    decode = decode_config(
        draw(st.sampled_from([16, 32, 64])), draw(st.sampled_from([16, 32, 64])), draw(st.integers(1, 8)),
        draw(st.integers(1, 3)),
    )  # fmt: skip
    prefill = prefill_config(draw(st.sampled_from([16, 32, 64, 128])), draw(st.sampled_from([16, 32, 64])))
    check(step, decode, prefill, step.work(draw(st.integers(1, 8)), draw(st.integers(0, 2))))


HEAD_SIZES = (64, 128, 160, 192, 256)
MIXED = ((130, 1), (61, 8), (0, 9), (37, 21))  # two that decode, a prompt, and a chunk of one


@pytest.mark.parametrize(("slot", "group"), [*enumerate((1, 2, 3, 5, 7, 8))])
def test_head_sizes_of_large_models(slot, group):
    """With few and many heads that share a KV head; formats, blocks, windows and tiles alternate."""
    dtype, dim, kv = DTYPES[slot % 3], HEAD_SIZES[slot % 5], (None, torch.uint8)[slot % 2]
    block, tile_n, window = (16, 32, 64)[slot % 3], (64, 16, 32)[slot // 2 % 3], (None, 33, 100)[slot // 3 % 3]
    step = Step(
        MIXED,
        group=group,
        kv_heads=1,
        dim=dim,
        block=block,
        dtype=dtype,
        window=window,
        seed=group,
        kv=kv,
        sinks=slot > 2,
    )
    check(step, decode_config(tile_n=tile_n), prefill_config(64, tile_n))


def test_lists_of_an_earlier_step_leave_nothing_behind():
    """The same work for a large step, a smaller one, one with a window, and one with no row at all."""
    large = Step([(90, 1), (300, 8), (5, 40), (64, 1)], padding=(1, 0))
    work = large.work()
    check(large, decode_config(), prefill_config(), work)
    check(Step([(33, 2)], padding=(0, 1)), decode_config(), prefill_config(), work)
    check(Step([(90, 1), (100, 30)], window=20), decode_config(), prefill_config(), work)
    empty = Step([(0, 0)], padding=(2, 3))
    assert (empty.run(decode_config(), prefill_config(), work) == 7).all()


@settings(max_examples=times(4), deadline=None)
@given(
    rows=st.lists(
        st.one_of(
            st.tuples(st.integers(0, 5000), st.integers(0, 8)),
            st.tuples(st.integers(0, 5000), st.integers(9, 300)),
        ),
        min_size=1, max_size=6,
    ),
    group=st.sampled_from([1, 3, 4, 7, 16]),
    window=st.sampled_from([None, 1, 100, 999]),
    tile_m=st.sampled_from([16, 64, 128]),
    splits=st.integers(1, 8),
    shortest=st.integers(1, 5),
    processors=st.sampled_from([1, 7, 132]),
)  # fmt: skip
@example(
    rows=[(40, 1)] * 256 + [(40, 2), (3, 9)], group=1, window=None, tile_m=16, splits=8, shortest=1, processors=132
)
def test_every_lane_has_each_tile_that_it_sees_once_and_lists_are_never_too_short(
    rows, group, window, tile_m, splits, shortest, processors
):
    """Also for more rows than are read at a time."""
    starts = torch.tensor([0, *[count for _, count in rows]]).cumsum(0).to(torch.int32)
    lengths = torch.tensor([prefix + count for prefix, count in rows], dtype=torch.int32)
    work = attention.Work(len(rows), max(1, int(starts[-1])), AttentionSizes(group * 2, 2, 64, 16), "cpu", processors)
    for entries in (work.items, work.joins, work.prompts):
        entries.fill_(-9)
    decode, prefill = decode_config(tile_m, 32, splits, shortest), prefill_config(tile_m, 64)
    attention.plan(starts, lengths, work, window, decode, prefill)

    items, joins, prompts = (
        entries[:count].tolist()
        for entries, count in zip((work.items, work.joins, work.prompts), work.counts.tolist(), strict=True)
    )
    parts = work.parts(decode)
    tokens = int(starts[-1])
    assert len(items) <= work.lane_tiles(len(rows), tokens, tile_m) + parts
    assert len(joins) <= parts
    assert len(prompts) <= work.prompt_tiles(len(rows), tokens, tile_m)
    slots = [item[4] for item in items if item[4] >= 0]
    assert slots == list(range(len(slots)))
    assert len(slots) <= 2 * parts <= work.lanes // tile_m

    tiles = {}
    for row, lane, begin, end, slot, start, count, length in items + prompts:
        assert (start, count, length) == (starts[row], rows[row][1], lengths[row])
        tiles.setdefault((row, lane), []).append((begin, end, slot))
    expected, split = {}, []
    for row, (prefix, count) in enumerate(rows):
        tile_n = 32 if count <= attention.DECODE_QUERIES else 64
        for lane in range(0, count * group, tile_m):
            is_prompt = count > attention.DECODE_QUERIES
            seen_by = (lane // group, min(count - 1, (lane + tile_m - 1) // group)) if is_prompt else (0, count - 1)
            low = 0 if window is None else max(0, prefix + seen_by[0] - window + 1)
            expected[row, lane] = low // tile_n, (prefix + seen_by[1]) // tile_n + 1
            found = tiles.get((row, lane), [])
            if len(found) > 1:
                split.append([int(starts[row]), count, lane, found[0][2], len(found)])
            assert [end for _, end, _ in found[:-1]] == [begin for begin, _, _ in found[1:]]
            assert all(begin < end for begin, end, _ in found)
            assert len(found) > 1 or found[0][2] == -1
            lengths_of_parts = [end - begin for begin, end, _ in found]
            assert max(lengths_of_parts) - min(lengths_of_parts) <= 1
    assert {key: (found[0][0], found[-1][1]) for key, found in tiles.items()} == expected
    assert [join[:5] for join in joins] == split
    assert (work.items[len(items) :] == -9).all()
    assert (work.prompts[len(prompts) :] == -9).all()


def test_blocks_far_into_a_large_arena_are_found(tmp_path):
    """Beyond 2³¹ numbers: an arena of 4.4 GB, which is a file with holes."""
    block, stride = 16, 1 << 20
    flat = torch.from_file(str(tmp_path / "arena"), shared=True, size=stride * 2100, dtype=torch.float16)
    step = Step([(20, 1), (0, 9)], group=1, kv_heads=1, block=block, dtype=torch.float16)
    far = flat.as_strided((2100, *step.layer.shape[1:]), (stride, *step.layer.stride()[1:]))
    for row, mine in enumerate(step.tables.tolist()):
        for index, old in enumerate(mine):
            if old >= 0:
                new = 2099 - row * 8 - index
                far[new] = step.layer[old]
                step.tables[row, index] = new
    step.layer = far
    check(step, decode_config(), prefill_config())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"block_size": 8}, r"unsupported block size: 8 \(allowed: 16, 32, 64\)"),
        ({"head_dim": 264}, r"unsupported head_dim: 264 \(multiples of 8 from 16 to 256\)"),
        ({"head_dim": 20}, r"unsupported head_dim: 20 "),
        ({"heads": 9}, r"unsupported heads: 9 for 2 KV heads"),
        ({"heads": 34}, r"unsupported heads: 34 for 2 KV heads \(1 to 16 for each KV head\)"),
    ],
)
def test_shapes_that_the_kernels_do_not_support_are_refused(changed, message):
    sizes = {"heads": 4, "kv_heads": 2, "head_dim": 64, "block_size": 16}
    with pytest.raises(ValueError, match=message):
        AttentionSizes(**{**sizes, **changed})


def test_what_the_work_has_no_room_for_is_refused():
    step = Step([(4, 1), (4, 1)])
    shape = (AttentionSizes(4, 2, 32, 16), "cpu", 4)
    with pytest.raises(ValueError, match=r"too many rows: 2 \(at most 1\)"):
        step.run(decode_config(), prefill_config(), attention.Work(1, 8, *shape))
    with pytest.raises(ValueError, match=r"too many tokens: 2 \(at most 1\)"):
        step.run(decode_config(), prefill_config(), attention.Work(8, 1, *shape))
    with pytest.raises(ValueError, match=r"unsupported TILE_M: 256 \(16 to 128\)"):
        step.run(decode_config(tile_m=256), prefill_config())
