"""A worker whose agent hands over by UCX in real time, here or in a process of its own."""

import time
from pathlib import Path

import torch

from legato_engine.kernels.block_sums.naive import sum_blocks
from legato_engine.transfer import ucx
from legato_engine.transfer.agent import TransferAgent
from legato_engine.transfer.certificates import HandoffCertificates
from legato_engine.transfer.channels import Channels
from legato_engine.transfer.checksum import ArenaMemory
from legato_engine.transfer.cuda import CudaCopies, CudaSums
from legato_engine.transfer.link import Link
from legato_engine.transfer.staging import Staging

BLOCK, BLOCK_BYTES, BLOCKS, RING = 16, 1 << 20, 24, 8
NAME = "s-workers.demo.svc"  # in the certificates of its service


def open_agent(
    name: str, epoch: str, fill: int, transport: str, lease: float, tls: str | None, staged: bool
) -> tuple[TransferAgent, Link, torch.Tensor]:
    """The agent, its link, and its arena.

    `tls` is the folder with the files of internal TLS, Strict; UCX does not reach an arena that is `staged`.
    """
    arena = torch.full((BLOCKS * BLOCK_BYTES,), fill, dtype=torch.uint8)
    memory, staging = ArenaMemory(arena, BLOCKS), None
    reached = memory.address, memory.length
    if staged:
        copies = CudaCopies(arena, BLOCKS, BLOCKS + RING, CudaSums(arena, BLOCKS, sum_blocks))
        staging = Staging.over(copies, BLOCKS, RING)
        reached = copies.address, copies.nbytes
    link = ucx.open(transport, "127.0.0.1", *reached)
    agent = TransferAgent(
        link,
        memory,
        worker=name,
        epoch=epoch,
        kv_revision="kv",
        layout="test",
        block_size=BLOCK,
        token="secret",
        lease=lease,
        clock=time.monotonic,
        channels=Channels(HandoffCertificates(Path(tls), NAME), strict=True) if tls else Channels(),
        staging=staging,
    )
    return agent, link, arena
