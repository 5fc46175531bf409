"""Tokens, positions and slots of a step, made from its rows."""

import torch
from places import Place, over

from legato_engine.kernels.gpu.configurations import choose
from legato_engine.kernels.gpu.step_inputs import expand
from legato_engine.kernels.reference import step_inputs as naive


@over(counts=((1, 1, 1), (3, 0, 70), (1,) * 100), block=(16, 64))
def test_expanded_rows(place: Place, dtype: torch.dtype, counts: tuple[int, ...], block: int) -> None:
    """Every third token is one that the step before has drawn; three tokens and a row are padding. There are two groups
    of layers."""
    real = sum(counts)
    starts = torch.tensor([0, *counts, 0]).cumsum(0).int()
    lengths = torch.tensor([*(count + 11 for count in counts), 0]).int()
    tables = torch.randperm(len(lengths) * 16).int().view(2, len(lengths), 8)
    given = torch.randint(0, 1000, (real + 3,)).int()
    sampled = torch.randint(1000, 2000, (len(counts),))
    given[:real:3] = -1 - torch.randint(0, len(sampled), given[:real:3].shape).int()
    shapes = (real + 3,), (real + 3,), (2, real + 3)
    found = [torch.full(shape, 7, dtype=torch.int32, device=place.device) for shape in shapes]
    on_device = (each.to(place.device) for each in (given, starts, lengths, tables, sampled))
    expand(*on_device, *found, block, choose("step_inputs", {}, place.chip))
    for one, expected in zip(found, naive.expand(given, starts, lengths, tables, sampled, block), strict=True):
        assert torch.equal(one.cpu(), expected)
