"""A visitor's process in the self-test of GPU memory, since CUDA opens memory only in another process.

`python -m legato_engine.transfer.node.visitor FOLDER WORKER EPOCH GPU`, with the token on stdin, prints the arena's
first bytes in hexadecimal.
"""

import select
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from legato_engine.transfer.device import driver
from legato_engine.transfer.device.driver import Driver
from legato_engine.transfer.device.ipc import DeviceIpc
from legato_engine.transfer.link import LinkError
from legato_engine.transfer.node.door import Visit
from legato_engine.transfer.node.handshake import ArenaOwner

MARK = 16  # bytes that are read
_PATIENCE = 10.0  # seconds for the answer
_FAILED = 2


def read(folder: Path, owner: ArenaOwner, token: str, gpu: int, libcuda: Any = None) -> bytes:
    """Returns the first bytes of the arena. Raises LinkError, OSError and ValueError."""
    ipc = DeviceIpc(Driver(libcuda or driver.load(), gpu))
    visit = Visit(folder, owner, token)
    select.select([visit], [], [], _PATIENCE)
    came = visit.result()
    if came is None:
        raise ValueError(f"no answer within {_PATIENCE:g} s")
    return ipc.read(ipc.open(*came).address, MARK)


def main(arguments: Sequence[str], libcuda: Any = None) -> int:
    folder, worker, epoch, gpu = arguments
    try:
        print(read(Path(folder), ArenaOwner(worker, epoch), sys.stdin.read(), int(gpu), libcuda).hex())
    except (LinkError, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return _FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
