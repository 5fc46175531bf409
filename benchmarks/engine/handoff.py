#!/usr/bin/env python3
"""Measures hand-offs between two processes of this machine: GB/s from grant to commit, and CPU seconds for a GB.

    python benchmarks/engine/handoff.py --mebibytes 384 --rounds 5

Each round hands off one sequence by every way in turn, so that other work on the machine disturbs all of them alike:
over TCP, over UCX with shared memory, and by copies from the sender's memory. The best of the rounds is shown.
"""

import argparse
import multiprocessing
import os
import select
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection

import numpy as np

from legato_engine.transfer import ucx
from legato_engine.transfer.agent import TransferAgent
from legato_engine.transfer.blocks.checksum import ArenaMemory
from legato_engine.transfer.identity import TransferArena, TransferIdentity
from legato_engine.transfer.node.door import FOLDER
from legato_engine.transfer.node.handshake import ArenaOffer, ArenaOwner
from legato_engine.transfer.node.host_pulls import HostPulls
from legato_engine.transfer.node.interface import NodeMemory
from legato_engine.transfer.node.memory_file import allocate
from legato_engine.transfer.node.neighbours import DoorNeighbours, OwnArena
from legato_engine.transfer.session.events import Aborted, Arrived, Committed, Granted, TransferEvent
from legato_protocol.wire import block_hash
from legato_protocol.wire.packed_tokens import pack_tokens
from legato_protocol.wire.stream import Peer

BLOCK_BYTES, BLOCK_SIZE, HOST, ROOT = 1 << 20, 16, "127.0.0.1", block_hash.root("benchmark")
WAYS = {"TCP": ("TCP", False), "SharedMemory": ("SharedMemory", False), "memory": ("TCP", True)}  # link, node memory


class Worker:
    """One side: an agent with an arena of `blocks`, all of them written."""

    def __init__(self, name: str, way: str, blocks: int) -> None:
        transport, node = WAYS[way]
        memory, file = allocate(blocks * BLOCK_BYTES, shared=node)
        words = np.frombuffer(memory, np.uint8).reshape(blocks, -1)
        words[:] = ord(name[0])
        arena, around = ArenaMemory(words, blocks), NodeMemory()
        if node:
            own = OwnArena(ArenaOwner(name, name), ArenaOffer(blocks, BLOCK_BYTES), file)
            around = NodeMemory(DoorNeighbours(own, time.monotonic, FOLDER), HostPulls(arena))
        link = ucx.open(transport, HOST, arena.address, arena.length)
        identity = TransferIdentity(name, name, "kv", "layout", "token")
        self.agent = TransferAgent(link, TransferArena(arena, BLOCK_SIZE, node=around), identity, time.monotonic)
        self.peer = Peer(name, name, link.address)

    def wait(self, *kinds: type[TransferEvent]) -> TransferEvent:
        """Polls until an event of these kinds. Raises SystemExit if the hand-off fails."""
        while True:
            timer = self.agent.next_timer()
            select.select([self.agent.fileno()], [], [], 1.0 if timer is None else timer)
            for event in self.agent.poll():
                if isinstance(event, Aborted):
                    raise SystemExit(f"{self.peer.worker}: the hand-off failed: {event.reason}")
                if isinstance(event, kinds):
                    return event


def send(pipe: Connection, way: str, blocks: int) -> None:
    """Runs the sender: hands off one sequence for each room that it is sent, until the receiver ends."""
    worker = Worker(f"sender-{way}-{os.getpid()}", way, blocks)
    pipe.send(worker.peer)
    tokens = pack_tokens(range(blocks * BLOCK_SIZE))
    hashes = block_hash.chain(tokens, BLOCK_SIZE, ROOT)
    with suppress(EOFError):
        while True:
            room, peer = pipe.recv()
            begin = time.process_time()
            worker.agent.expect(room, 1, peer, ROOT)
            worker.wait(Granted)
            worker.agent.push(room, 0, range(blocks), hashes)
            worker.agent.finish(room, tokens, blocks * BLOCK_SIZE, ())
            worker.wait(Committed)
            pipe.send(time.process_time() - begin)


def receiver(way: str, blocks: int) -> Callable[[int], tuple[float, float]]:
    """Starts both sides. Returns a function that hands off one sequence: seconds, and CPU seconds of both."""
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    context.Process(target=send, args=(theirs, way, blocks), daemon=True).start()
    worker, source = Worker(f"receiver-{way}-{os.getpid()}", way, blocks), pipe.recv()

    def hand_off(room: int) -> tuple[float, float]:
        pipe.send((room, worker.peer))
        begin, busy = time.perf_counter(), time.process_time()
        worker.agent.grant(room, 1, source, range(blocks), 0, ROOT)
        event = worker.wait(Arrived)
        seconds, used = time.perf_counter() - begin, time.process_time() - busy
        assert isinstance(event, Arrived)
        assert event.pulled == WAYS[way][1]
        return seconds, used + pipe.recv()

    return hand_off


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mebibytes", type=int, default=384)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    ways = {way: receiver(way, args.mebibytes) for way in WAYS}
    for room, hand_off in enumerate(ways.values(), 1):
        hand_off(room)  # pages are touched for the first time
    print("| way | GB/s | CPU s/GB |\n| --- | --- | --- |")
    size = args.mebibytes * BLOCK_BYTES / 1e9
    rounds = [{way: hand_off(10 + i) for way, hand_off in ways.items()} for i in range(args.rounds)]
    for way in ways:
        measured = [each[way] for each in rounds]
        seconds, busy = (min(values) for values in zip(*measured, strict=True))
        print(f"| {way} | {size / seconds:.2f} | {busy / size:.2f} |")
    os._exit(0)  # UCX owns threads that may not end by themselves


if __name__ == "__main__":
    main()
