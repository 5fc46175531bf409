"""A worker in a process of its own that sends room 1 when it is granted, or receives it; prints what happens."""

import json
import os
import select
import sys

from ucx_worker import BLOCK, BLOCKS, open_agent

from legato_engine.transfer.events import Granted
from legato_protocol import block_hash
from legato_protocol.packed_tokens import pack_tokens
from legato_protocol.stream import Peer


def main() -> None:
    order = json.loads(sys.stdin.readline())
    role, fill = order["role"], 7 if order["role"] == "sender" else 0
    agent, link, _ = open_agent(role, "p1", fill, order["transport"], order["lease"], order["tls"], order["staged"])
    root = block_hash.root("kv")
    tokens = pack_tokens(range(BLOCKS * BLOCK - 3))
    hashes = block_hash.chain(tokens, BLOCK, root)
    other = Peer("here", "h1", order["address"].encode())
    if role == "sender":
        agent.expect(1, 1, other, root)
    else:
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
