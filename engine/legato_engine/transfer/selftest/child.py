"""The process of a self-test: `python -m legato_engine.transfer.selftest.child PARENT TRANSPORT HOST [LOW HIGH]`.

`process` starts it. Both ends are links of this process, opened as a worker opens them.
"""

import faulthandler
import os
import sys
from collections.abc import Sequence

from legato_engine.transfer import ucx
from legato_engine.transfer.link import LinkError
from legato_engine.transfer.selftest.blocks import HostBlocks, TrialBlocks
from legato_engine.transfer.selftest.check import SelfTest
from legato_engine.transfer.selftest.process import FAILED, PASSED
from legato_protocol.process.parent import die_with_parent


def run(transport: str, host: str, ports: tuple[int, int] | None) -> None:
    """Runs the test. Raises LinkError. The links end with this process."""
    source, target = _blocks(transport), _blocks(transport)
    sender, receiver = (
        ucx.open(transport, host, blocks.address, blocks.count * blocks.block_bytes, ports)
        for blocks in (source, target)
    )
    SelfTest(sender, receiver, source, target).run()


def _blocks(transport: str) -> TrialBlocks:
    """Blocks in the kind of memory that the transport reads and writes. Raises LinkError."""
    if transport != "GPUDirect":
        return HostBlocks()
    from legato_engine.transfer.selftest import gpu  # torch is loaded here

    return gpu.blocks()


def main(arguments: Sequence[str]) -> int:
    parent, transport, host, *ports = arguments
    if not die_with_parent(int(parent)):
        return FAILED
    faulthandler.enable()
    try:
        run(transport, host, (int(ports[0]), int(ports[1])) if ports else None)
    except LinkError as error:
        print(error, file=sys.stderr)
        return FAILED
    print(f"\n{PASSED}")
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # UCX and torch own threads that may not end by themselves
