"""A self-test over UCX and TCP with one fault: what a broken device, driver or network may do."""

import os
import signal
import sys
import time

from legato_engine.transfer import ucx
from legato_engine.transfer.link import Fenced, LinkError
from legato_engine.transfer.selftest.blocks import HostBlocks
from legato_engine.transfer.selftest.check import SelfTest
from legato_engine.transfer.selftest.process import PASSED


class Faulty:
    """A receiver's link; `fault` is what is wrong with it."""

    def __init__(self, link, blocks, fault):
        self._link, self._blocks, self._fault = link, blocks, fault
        self._told = []

    def __getattr__(self, name):
        return getattr(self._link, name)

    def poll(self):
        told, self._told = self._told, []
        events = self._link.poll()
        if events and self._fault == "corrupts":
            self._blocks._words[3, 100] ^= 1
        return told + events

    def fence(self, connection):
        if self._fault == "lets through":  # says that it is closed, and is not
            self._told.append(Fenced(connection))
        else:
            self._link.fence(connection)


def main(fault):
    if fault == "crashes":
        os.kill(os.getpid(), signal.SIGSEGV)
    if fault == "hangs":
        time.sleep(600)
    if fault == "locks nothing":
        told = sys.stderr if os.environ.get("UCX_LOG_FILE") == "stderr" else sys.stdout  # as UCX would
        print("[1.5] [node:1:0] ib_md.c:293  UCX  ERROR set max locked memory (ulimit -l)", file=told)
        print("UCX could not register memory", file=sys.stderr)
        return 2
    if fault == "says nothing":
        return 0
    source, target = HostBlocks(), HostBlocks()
    opened = [ucx.open("TCP", "127.0.0.1", each.address, each.count * each.block_bytes) for each in (source, target)]
    try:
        SelfTest(opened[0], Faulty(opened[1], target, fault), source, target).run()
    except LinkError as error:
        print(error, file=sys.stderr)
        return 2
    print(PASSED)
    return 0


code = main(sys.argv[1])
sys.stdout.flush()
sys.stderr.flush()
os._exit(code)
