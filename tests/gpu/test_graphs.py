"""Replayed CUDA graphs give the results of the launches that they captured, bit for bit."""

import torch
from attention_step import Step
from places import Place, over
from test_attention import DECODING, chosen


@over(rows=(DECODING, ((3000, 1),) * 8))
def test_replayed_attention(place: Place, dtype: torch.dtype, rows: tuple[tuple[int, int], ...]) -> None:
    """With other queries and lengths than those that were captured."""
    if place.small:  # there are no graphs without a GPU
        return
    step = Step(rows, dtype, dim=128, group=4, device=place.device)
    given = *chosen(place, 128, 4, 16), step.work(place.processors)
    step.run(*given)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step.run(*given)
    step.queries.copy_(torch.randn_like(step.queries))
    step.lengths.sub_(step.lengths // 3)
    graph.replay()
    replayed = step.out.clone()
    assert torch.equal(step.run(*given), replayed)
    assert bool(replayed.isfinite().all())
