"""What is captured into a CUDA graph and replayed is what the launches themselves give, bit for bit."""

import torch
from places import Place, over
from test_attention import Step


@over(rows=(((99, 1), (499, 1), (0, 1), (62, 5)), ((3000, 1),) * 8))
def test_replayed_attention(place: Place, dtype: torch.dtype, rows: tuple[tuple[int, int], ...]) -> None:
    """With other queries and lengths than those that were captured."""
    if place.small:  # there are no graphs without a GPU
        return
    step = Step(place, dtype, rows, 128, 4, 2, 16)
    step.run(None)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step.run(None)
    step.queries.copy_(torch.randn_like(step.queries))
    step.lengths.sub_(step.lengths // 3)
    graph.replay()
    replayed = step.out.clone()
    step.out.zero_()
    assert torch.equal(step.run(None), replayed)
    assert bool(replayed.isfinite().all())
