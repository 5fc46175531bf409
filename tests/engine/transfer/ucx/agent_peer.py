"""A worker in a process of its own that sends room 1 when it is granted, or receives it; prints what happens."""

import json
import os
import select
import sys
import time

import torch
from secured_workers import channels

from legato_engine.kernels.block_sums.naive import sum_blocks
from legato_engine.transfer import ucx
from legato_engine.transfer.agent import TransferAgent
from legato_engine.transfer.checksum import ArenaMemory
from legato_engine.transfer.cuda import CudaCopies, CudaSums
from legato_engine.transfer.events import Granted
from legato_engine.transfer.staging import Staging
from legato_protocol import block_hash
from legato_protocol.packed_tokens import pack_tokens
from legato_protocol.stream import Peer

BLOCK, BLOCK_BYTES, BLOCKS, RING = 16, 1 << 20, 24, 8


def main() -> None:
    order = json.loads(sys.stdin.readline())
    arena = torch.full((BLOCKS * BLOCK_BYTES,), 7, dtype=torch.uint8)
    memory, staging = ArenaMemory(arena, BLOCKS), None
    reached = memory.address, memory.length
    if order["staged"]:
        copies = CudaCopies(arena, BLOCKS, BLOCKS + RING, CudaSums(arena, BLOCKS, sum_blocks))
        staging = Staging.over(copies, BLOCKS, RING)
        reached = copies.address, copies.nbytes
    link = ucx.open(order["transport"], "127.0.0.1", *reached)
    agent = TransferAgent(
        link,
        memory,
        worker=order["role"],
        epoch="p1",
        kv_revision="kv",
        layout="test",
        block_size=BLOCK,
        token=order["token"],
        lease=order["lease"],
        clock=time.monotonic,
        channels=channels(order["tls"]),
        staging=staging,
    )
    root = block_hash.root("kv")
    tokens = pack_tokens(range(BLOCKS * BLOCK - 3))
    hashes = block_hash.chain(tokens, BLOCK, root)
    other = Peer("here", "h1", order["address"].encode())
    if order["role"] == "sender":
        agent.expect(1, 1, other, root)
    else:
        arena.fill_(0)
        agent.grant(1, 1, other, range(BLOCKS), 0, root)
    print(json.dumps({"pid": os.getpid(), "address": link.address.decode()}), flush=True)
    while True:
        timer = agent.next_timer()
        select.select([agent.fileno(), sys.stdin], [], [], min(0.2, 0.2 if timer is None else timer))
        for event in agent.poll():
            print(json.dumps({"event": type(event).__name__}), flush=True)
            if isinstance(event, Granted):
                pushed = order["push"]
                agent.push(1, 0, range(pushed), hashes[:pushed])
                if pushed == BLOCKS - 1:
                    agent.finish(1, tokens, BLOCKS * BLOCK - 3, (), BLOCKS - 1)


main()
