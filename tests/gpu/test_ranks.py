"""Sums over ranks on one GPU: two streams of this process, and two processes.

The interpreter computes one kernel at a time, and has a test of its own, `test_triton_all_reduce`.
"""

import multiprocessing
from typing import Any

import torch
from places import Place, over

from legato_engine.backends.sharded.peer_memory import PeerMemory
from legato_engine.backends.sharded.rank import Rank

SIZES = (1, 3000, 2048, 50_000, 7)
ROOM = 20_000  # fewer numbers than the largest


def numbers(rank: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(10 * size + rank)).to(dtype)


def total(size: int, dtype: torch.dtype) -> torch.Tensor:
    return (numbers(0, size, dtype).float() + numbers(1, size, dtype).float()).to(dtype)


@over()
def test_two_streams_add_in_graphs_that_are_replayed(place: Place, dtype: torch.dtype) -> None:
    if place.small:
        return
    device, streams = torch.device("cuda", 0), [torch.cuda.Stream() for _ in range(2)]
    peers = [PeerMemory(Rank(index, 2), device, ROOM) for index in range(2)]
    for each in peers:  # a kernel that waits would keep the driver from loading the other's
        each.connect([each.memory] * 2)
        for size in SIZES:
            each.add(torch.zeros(size, dtype=dtype, device=device))
        each.connect([other.memory for other in peers])
    given = [[numbers(rank, size, dtype).to(device) for size in SIZES] for rank in range(2)]
    held = [[x.clone() for x in of_rank] for of_rank in given]

    def add_all(rank: int) -> None:
        for x, before in zip(held[rank], given[rank], strict=True):
            x.copy_(before)
            peers[rank].add(x)

    def on_both(work: Any) -> None:
        torch.cuda.synchronize()
        for rank, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                work(rank)
        torch.cuda.synchronize()

    graphs = [torch.cuda.CUDAGraph() for _ in range(2)]
    for rank, graph in enumerate(graphs):
        with torch.cuda.graph(graph, stream=streams[rank]):
            add_all(rank)
    for _ in range(3):
        on_both(lambda rank: graphs[rank].replay())
        for of_rank in held:
            for x, size in zip(of_rank, SIZES, strict=True):
                assert torch.equal(x.cpu(), total(size, dtype))


def _add_in_a_process(index: int, dtype: torch.dtype, pipe: Any) -> None:
    peers = PeerMemory(Rank(index, 2), torch.device("cuda", 0), ROOM)
    pipe.send(peers.export())
    peers.open(pipe.recv())
    for size in SIZES:
        for kind in (torch.float32, dtype):
            x = numbers(index, size, kind).cuda()
            peers.add(x)
            pipe.send(x.cpu().float().numpy())
    pipe.recv()  # the other process may still read this one's memory


@over()
def test_two_processes_add(place: Place, dtype: torch.dtype) -> None:
    if place.small:
        return
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(2)]
    processes = [
        context.Process(target=_add_in_a_process, args=(index, dtype, theirs), daemon=True)
        for index, (_, theirs) in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    ours = [own for own, _ in pipes]
    handles = [own.recv() for own in ours]
    for own in ours:
        own.send(handles)
    for size in SIZES:
        for kind in (torch.float32, dtype):
            for own in ours:
                assert torch.equal(torch.from_numpy(own.recv()), total(size, kind).float())
    for own in ours:
        own.send(None)
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
