"""The sum over ranks by Triton: one rank's kernel, with what other ranks have written before."""

import pytest
import torch

from legato_engine.kernels.gpu.all_reduce import add_ranks
from legato_engine.kernels.gpu.configurations import Configuration

TILE, MOST = 64, 4  # numbers of a program, programs


@pytest.mark.parametrize(("ranks", "rank"), [(2, 0), (4, 2)])
def test_sums_of_any_size_and_type_follow_each_other(ranks, rank):
    """In alternate slots; results are rounded once."""
    counters = torch.zeros(ranks, MOST, dtype=torch.int32)
    slots = torch.zeros(ranks, 2, MOST, 4 * TILE, dtype=torch.uint8)
    addresses = [torch.tensor([each.data_ptr() for each in memory]) for memory in (slots, counters)]
    sums, config = torch.zeros(MOST, dtype=torch.int32), Configuration({"TILE": TILE})
    for count, dtype in ((100, torch.float32), (250, torch.float16), (1, torch.float32), (256, torch.float16)):
        numbers = torch.randn(ranks, count).to(dtype)
        programs = -(-count // TILE)
        for other in set(range(ranks)) - {rank}:
            for program, piece in enumerate(numbers[other].split(TILE)):
                counters[other, program] += 1
                held = slots[other, int(counters[other, program]) % 2, program].view(dtype)
                held[: len(piece)] = piece
        x = numbers[rank].clone()

        add_ranks(x, *addresses, sums, rank, config)

        expected = torch.zeros(count)
        for each in numbers:
            expected += each.float()
        assert torch.equal(x, expected.to(dtype))
        assert torch.equal(counters[rank], sums)
        assert (sums[:programs] == counters[(rank + 1) % ranks, :programs]).all()
