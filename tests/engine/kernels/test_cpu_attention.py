"""Attention on a processor: every implementation computes what the readable twin does, at awkward sizes too.

Kernels for AMX and AVX512-BF16 run on any processor: where it lacks the instructions, these are emulated. Emulated
tiles, which are tested everywhere, also note misuse.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import emulated_kernels
import emulated_tiles
import numpy as np
import pytest
import torch

from legato_engine import processor
from legato_engine.backends.cpu import attention_work, kv_factors
from legato_engine.backends.cpu.numerics import Float32, Tiles
from legato_engine.backends.kv_groups import of_layer
from legato_engine.backends.torch.step import MASK_ENTRIES, group_rows
from legato_engine.kernels import paths
from legato_engine.kernels.cpu.attention import bf16 as bf16_attention
from legato_engine.kernels.cpu.attention import float32 as float32_attention
from legato_engine.kernels.cpu.linear.bf16_tiles import SHAPES
from legato_engine.kernels.paths import Path
from legato_engine.kernels.reference import attention as naive
from legato_engine.kernels.reference import float8
from legato_engine.kernels.torch import attention as torch_attention
from legato_engine.kernels.torch.float8 import KVScales
from legato_engine.runner import inputs
from legato_engine.scheduler.batch import Row

HERE = processor.detect()
WITH_AMX = pytest.mark.skipif(not HERE.amx, reason="this processor has no AMX")
emulated_bf16 = cache(lambda: emulated_kernels.load("attention.bf16")[0])
emulated_pairs = cache(lambda: emulated_kernels.load("attention.float32")[0])


class Step(NamedTuple):
    """Queries of `rows` for one layer of an arena; a step may be cut up and dealt out in several ways."""

    qkv: torch.Tensor  # [tokens, heads + 2 · kv_heads, dim]
    rows: list[Row]
    arena: torch.Tensor  # KVLayout's shape
    layer: int = 0
    window: int | None = None
    threads: int = 2
    scales: torch.Tensor | None = None  # of e4m3, [layers, 2, kv_heads]
    sinks: torch.Tensor | None = None  # [heads]
    ordered: Callable[[np.ndarray], np.ndarray] = lambda work: work

    @property
    def queries(self) -> torch.Tensor:
        return self.qkv[:, : self.qkv.shape[1] - 2 * self.arena.shape[1]]

    @property
    def shared(self) -> int:
        return self.qkv.shape[1] // self.arena.shape[1] - 2

    def expected(self) -> torch.Tensor:
        layer, counts = of_layer(self.arena, self.layer), [len(row.tokens) for row in self.rows]
        if self.scales is None:
            layer, scales = layer.float(), None
        else:
            layer, scales = layer.view(torch.uint8), self.scales[self.layer]
        parts = zip(self.queries.split(counts), self.rows, strict=True)
        return torch.cat(
            [
                naive.attention(part, layer, list(row.blocks), row.start, self.window, scales, self.sinks)
                for part, row in parts
            ]
        )

    def sinks_of_kernel(self) -> np.ndarray:
        return np.empty(0, np.float32) if self.sinks is None else self.sinks.numpy()

    def in_e4m3(self) -> "Step":
        """With scales of keys that round, and scales of values that do not."""
        kv_heads, layers = self.arena.shape[1:3]
        heads = torch.arange(layers * kv_heads).view(layers, kv_heads) % 7
        scales = torch.stack((0.3 + heads / 10, 2.0 ** (heads - 5)), 1)
        codes = float8.encode(self.arena, scales.permute(2, 0, 1)[..., None, None])
        return self._replace(arena=codes.view(torch.float8_e4m3fn), scales=scales)


def by_torch(step: Step, entries: int = MASK_ENTRIES) -> torch.Tensor:
    size = step.arena.shape[4]
    built = inputs.build(step.rows, size)
    groups = group_rows(built, size, step.shared, step.window, torch.float32, torch.device("cpu"), entries)
    scales = None if step.scales is None else KVScales(*step.scales[step.layer])
    return torch_attention.attention(step.queries, of_layer(step.arena, step.layer), groups, scales, step.sinks)


def by_float32(path: Path) -> Callable[[Step], torch.Tensor]:
    def attend(step: Step) -> torch.Tensor:
        kernels = float32_attention if path is not paths.INT8_BF16 or HERE.bf16 else emulated_pairs()
        built, out = inputs.build(step.rows, step.arena.shape[4]), np.zeros(step.queries.shape, np.float32)
        work, held = step.ordered(attention_work.parts(built, step.shared)), Float32(path).arena_view(step.arena)
        given = (
            path.kv_tag(held.dtype),
            step.qkv.numpy(),
            work,
            built.tables,
            step.window or 0,
            held,
            step.layer,
            kv_factors.from_scales(step.arena.shape[2], step.arena.shape[1], step.scales).reading,
            step.sinks_of_kernel(),
            step.threads,
            out,
        )
        kernels.attention(*given)
        return torch.from_numpy(out)

    return attend


def by_tiles(real: bool) -> Callable[[Step], torch.Tensor]:
    def attend(step: Step) -> torch.Tensor:
        kernels = bf16_attention if real else emulated_bf16()
        built, out = inputs.build(step.rows, step.arena.shape[4]), torch.full(step.queries.shape, torch.nan).bfloat16()
        work, held = step.ordered(attention_work.tiles(built, step.shared)), Tiles(paths.TILES).arena_view
        given = step.qkv.numpy(), work, built.tables, step.window or 0, SHAPES
        kernels.attention(*given, held(step.arena), step.layer, step.sinks_of_kernel(), step.threads, held(out))
        assert emulated_tiles.faults() == []
        return out.float()

    return attend


class Form(NamedTuple):
    """An implementation, the type of its arena, its largest error, and a size of blocks: others are multiples of it."""

    attend: Callable[[Step], torch.Tensor]
    arena: torch.dtype
    error: float
    size: int

    def found(self, step: Step) -> torch.Tensor:
        return self.attend(self.given(step))

    def expected(self, step: Step) -> torch.Tensor:
        return self.given(step).expected()

    def given(self, step: Step) -> Step:
        return step.in_e4m3() if self.arena is FLOAT8 else step._replace(arena=step.arena.to(self.arena))

    def check(self, step: Step, error: float | None = None) -> None:
        error = error or self.error
        torch.testing.assert_close(self.found(step), self.expected(step), atol=error, rtol=max(error, 1e-4))


FLOAT8 = torch.float8_e4m3fn
FORMS = {
    "torch": Form(by_torch, torch.float32, 1e-5, 16),
    "torch e4m3": Form(by_torch, FLOAT8, 1e-5, 16),
    "float32": Form(by_float32(paths.FLOAT32), torch.float32, 2e-5, 4),
    "int8": Form(by_float32(paths.INT8), torch.bfloat16, 2e-5, 4),
    "e4m3": Form(by_float32(paths.INT8_BF16), FLOAT8, 2e-5, 4),
    "pairs": Form(by_float32(paths.INT8_BF16), torch.bfloat16, 1e-2, 4),  # rounds queries and weights, as tiles do
    "emulated tiles": Form(by_tiles(False), torch.bfloat16, 1e-2, 16),
    "tiles": Form(by_tiles(True), torch.bfloat16, 1e-2, 16),
}


def of(*names: str) -> pytest.MarkDecorator:
    chosen = [pytest.param(FORMS[name], id=name, marks=[WITH_AMX] * (name == "tiles")) for name in names]
    return pytest.mark.parametrize("form", chosen)


ALL, PARTS = of(*FORMS), of("float32", "int8", "e4m3", "pairs")
KERNELS = of(*[name for name in FORMS if not name.startswith("torch")])
INFINITE = of(*[name for name, form in FORMS.items() if form.arena is not FLOAT8 and name != "torch"])


def step_of(
    *spans: tuple[int, int], shared: int = 3, size: int = 16, dim: int = 32, kv_heads: int = 2, **given: Any
) -> Step:
    """Rows of (start, tokens) in blocks of no order, in the second of two layers."""
    counts = [-(-(start + count) // size) for start, count in spans]
    free = iter(torch.randperm(sum(counts) + 5).tolist())
    blocks = [[next(free) for _ in range(count)] for count in counts]
    rows = [Row([0] * count, start, own) for (start, count), own in zip(spans, blocks, strict=True)]
    arena = torch.randn(sum(counts) + 5, kv_heads, 2, 2, size, dim)
    qkv = torch.randn(sum(count for _, count in spans), (shared + 2) * kv_heads, dim)
    return Step(qkv, rows, arena, 1, **given)


@pytest.fixture(autouse=True)
def the_same_numbers_in_every_run() -> None:
    """Seeds torch. Where much is rounded, some draw would be off by more than the largest error."""
    torch.manual_seed(1)


MIXED = (0, 33), (99, 1), (0, 1), (50, 7), (15, 1), (300, 1), (250, 9), (0, 75), (127, 2)


@ALL
@pytest.mark.parametrize(
    ("shared", "blocks", "dim", "kv_heads", "window"),
    [
        (1, 1, 96, 3, None),
        (3, 1, 64, 3, None),
        (3, 1, 64, 3, 5),
        (3, 2, 32, 2, 48),
        (5, 3, 32, 1, 140),
        (7, 1, 128, 1, 48),
        (8, 4, 32, 2, None),
        (16, 1, 256, 1, None),
        (40, 1, 64, 1, 5),
    ],
)
def test_mixed_rows(form: Form, shared: int, blocks: int, dim: int, kv_heads: int, window: int | None) -> None:
    """Chunks of prompts and decoding rows together, long ones in parts. Heads fill registers and tiles or not, windows
    begin within a block, and others left NaN in all that is not a row's own."""
    size = blocks * form.size
    step = step_of(*MIXED, shared=shared, size=size, dim=dim, kv_heads=kv_heads, window=window)
    unused = torch.ones(len(step.arena), dtype=torch.bool)
    for row in step.rows:
        unused[row.blocks] = False
        step.arena[row.blocks[-1], :, :, :, (row.start + len(row.tokens) - 1) % size + 1 :] = torch.nan
        if window and form.attend is not by_torch:  # what no token of the row sees any more may be someone else's
            step.arena[row.blocks[: max(0, row.start - window + 1) // size]] = torch.nan
    step.arena[unused], step.arena[:, :, 0] = torch.nan, torch.nan

    form.check(step)


@ALL
@pytest.mark.parametrize(("shared", "window"), [(3, None), (8, 48), (17, 5)])
def test_sinks_take_part_in_the_sum_of_weights_only(form: Form, shared: int, window: int | None) -> None:
    """Once for each row, however it is divided; far above and below all scores, too."""
    step = step_of(*MIXED, shared=shared, dim=64, window=window)
    sinks = torch.randn(2 * shared) * 3
    sinks[:3] = torch.tensor([400.0, -400.0, -torch.inf])

    form.check(step._replace(sinks=sinks))
    torch.testing.assert_close(form.found(step._replace(sinks=torch.full_like(sinks, -torch.inf))), form.found(step))


@PARTS
def test_parts_of_a_row_that_its_window_is_behind_have_nothing_to_do(form: Form) -> None:
    """The first two of three, which are also the first tasks."""
    form.check(step_of((600, 1), window=5))


@KERNELS
def test_a_row_is_the_same_beside_others_with_any_number_of_threads_and_in_any_order(form: Form) -> None:
    step = step_of((500, 50), (1000, 1), (700, 3), dim=64)
    tokens = step.qkv.split([len(row.tokens) for row in step.rows])
    alone = [form.found(step._replace(qkv=own, rows=[row])) for own, row in zip(tokens, step.rows, strict=True)]

    others = [{"threads": 1}, {"threads": 2}, {"threads": 3}, {"ordered": lambda work: work[::-1].copy()}]
    for changes in (*others, {"ordered": np.random.default_rng(1).permutation}):
        assert torch.equal(form.found(step._replace(**changes)), torch.cat(alone))


@KERNELS
def test_weights_add_up_to_what_they_are_divided_by(form: Form) -> None:
    """Rounded or not: the mean of equal values is that value."""
    step = step_of((211, 50), (20, 1), dim=64)
    step.arena[:, :, 1, 1] = 1

    found = form.found(step)

    torch.testing.assert_close(found, torch.ones_like(found), atol=3e-6, rtol=0)


@KERNELS
@pytest.mark.parametrize("sign", [1, -1])
def test_scores_of_any_size(form: Form, sign: int) -> None:
    """Their differences are far beyond what a weight can be: the largest is found early, or again in each block."""
    arena, blocks = torch.randn(20, 1, 1, 2, 16, 32), list(range(20))
    arena[:, 0, 0, 0] = sign * torch.linspace(-3000, 3000, 320).view(20, 16, 1)

    form.check(Step(torch.ones(31, 5, 32), [Row([0] * 30, 280, blocks), Row([0], 309, blocks)], arena), 2e-5)


@ALL
@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("which", [0, 1], ids=["keys", "values"])
def test_what_is_no_number_stays_none_and_in_its_row(form: Form, which: int, number: float) -> None:
    """Keys and values that are broken in the cache, for a prompt, a decoding row, and the first part of a long one; the
    row alongside them does not see them."""
    arena = torch.randn(9, 2, 1, 2, 16, 32)
    arena[3, :, 0, which, 5] = number
    rows = [Row([0] * 20, 40, [1, 2, 3, 4]), Row([0], 60, [4, 1, 3, 2]), Row([0], 20, [5, 6])]
    step = Step(torch.randn(23, 10, 32), [*rows, Row([0], 400, [3, *(7, 8) * 13])], arena)
    step.queries[..., 0].abs_().add_(1)

    found, right = form.found(step), form.expected(step)

    lost = ~right.isfinite()
    assert lost.any()
    assert not found[lost].isfinite().any()
    torch.testing.assert_close(found[21], right[21], atol=form.error, rtol=max(form.error, 1e-4))


@INFINITE
def test_positions_that_are_infinitely_far_weigh_nothing(form: Form) -> None:
    """Be they all that a block of positions has, the first one or a later one."""
    arena, blocks = torch.randn(30, 1, 1, 2, 16, 32), list(range(30))
    arena[:10, :, 0, 0], arena[18:28, :, 0, 0] = -torch.inf, -torch.inf

    form.check(Step(torch.rand(21, 5, 32) + 0.1, [Row([0] * 20, 450, blocks), Row([0], 475, blocks)], arena))
