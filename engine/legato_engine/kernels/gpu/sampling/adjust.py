"""Changes of a row before a token is chosen: the mask of a grammar, and the entries of `sampling/adjust.py`."""

import triton
import triton.language as tl

from legato_engine.kernels.gpu.sampling.numbers import LARGEST

SEEN = tl.constexpr(1)  # marks of an entry: the repetition penalty applies …
FORBIDDEN = tl.constexpr(2)  # … or the token may not be sampled


@triton.jit
def mask_rows(logits, stride, rows, allowed, words, vocab, TILE: tl.constexpr):
    row = tl.load(rows + tl.program_id(0))
    if row >= 0:
        ids = tl.program_id(1) * TILE + tl.arange(0, TILE)
        inside = ids < vocab
        word = tl.load(allowed + tl.program_id(0) * words + ids // 32, mask=inside, other=0)
        kept = ((word >> (ids & 31)) & 1) != 0
        places = logits + row.to(tl.int64) * stride + ids
        # Added, so that NaN stays NaN.
        masked = tl.load(places, mask=inside, other=0.0) + tl.where(kept, 0.0, float("-inf"))
        tl.store(places, masked.to(logits.dtype.element_ty), mask=inside & ~kept)


@triton.jit
def copy_rows(logits, stride, rows, changes, restricted, changed, vocab, TILE: tl.constexpr):
    """Copies rows of draws with entries. In a restricted row, only tokens with entries keep a logit."""
    draw = tl.program_id(0)
    change = tl.load(changes + draw)
    if change >= 0:
        ids = tl.program_id(1) * TILE + tl.arange(0, TILE)
        inside = ids < vocab
        row = tl.load(rows + draw)
        values = tl.load(logits + row.to(tl.int64) * stride + ids, mask=inside, other=0.0).to(tl.float32)
        values = tl.where(tl.load(restricted + draw) != 0, float("-inf"), values)
        tl.store(changed + change.to(tl.int64) * vocab + ids, values, mask=inside)


@triton.jit
def apply_entries(logits, stride, rows, changes, repetitions, entries, count, changed, vocab, ENTRIES: tl.constexpr):
    """Applies each entry, one token of one draw, to the model's logit."""
    entry = tl.program_id(0) * ENTRIES + tl.arange(0, ENTRIES)
    draw = tl.load(entries + entry, mask=entry < count, other=-1)
    there = draw >= 0
    token = tl.load(entries + count + entry, mask=there, other=0)
    bias = tl.load(entries + 2 * count + entry, mask=there, other=0).to(tl.float32, bitcast=True)
    drop = tl.load(entries + 3 * count + entry, mask=there, other=0).to(tl.float32, bitcast=True)
    marks = tl.load(entries + 4 * count + entry, mask=there, other=0)
    row = tl.load(rows + draw, mask=there, other=0).to(tl.int64)
    repetition = tl.load(repetitions + draw, mask=there & ((marks & SEEN) != 0), other=1.0)
    given = tl.load(logits + row * stride + token, mask=there, other=0.0).to(tl.float32)
    value = _bounded(given + bias)
    value = _bounded(tl.where(value > 0, tl.math.div_rn(value, repetition), value * repetition))
    value = _bounded(value - drop)
    gone = ((marks & FORBIDDEN) != 0) | (given == float("-inf"))
    value = tl.where(gone, float("-inf"), value)
    change = tl.load(changes + draw, mask=there, other=0).to(tl.int64)
    tl.store(changed + change * vocab + token, value, mask=there)


@triton.jit
def _bounded(value):
    value = tl.where(value > LARGEST, LARGEST, value)
    return tl.where(value < -LARGEST, -LARGEST, value)
