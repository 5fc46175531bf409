"""A link in a process of its own: reads calls from stdin, writes results to stdout, both pickled."""

import os
import pickle
import select
import sys

import numpy as np

from legato_engine.transfer import ucx
from legato_engine.transfer.link import PutSpan


def main():
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    memory = np.zeros(int(sys.argv[2]), np.uint8)
    link = ucx.open(sys.argv[1], "127.0.0.1", memory.ctypes.data, len(memory))
    calls = {
        "about": lambda: (link.address, link.rkey, memory.ctypes.data, os.getpid()),
        "fill": lambda value: memory.fill(value),
        "read": lambda start, length: memory[start : start + length].tobytes(),
        "events": lambda seconds: (select.select([link.fileno()], [], [], seconds), link.poll())[1],
        "connect": link.connect,
        "attach": link.attach,
        "send": link.send,
        "fence": link.fence,
        "put": lambda connection, spans, tag: link.put(
            connection, [PutSpan(memory.ctypes.data + a, b, n) for a, b, n in spans], tag
        ),
    }
    while True:
        try:
            name, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            break
        pickle.dump(calls[name](*arguments), out)
        out.flush()
    link.close()


main()
