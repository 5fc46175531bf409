"""The self-test of a door to GPU memory: another process gets the arena and sees its bytes."""

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from legato_engine.transfer.node.neighbours import DoorNeighbours
from legato_engine.transfer.node.visitor import MARK

VISITOR = (sys.executable, "-m", "legato_engine.transfer.node.visitor")
LIMIT = 30.0  # seconds; the visitor loads no torch
_PAUSE = 0.05  # seconds between checks if it has ended


def check(
    neighbours: DoorNeighbours, write: Callable[[bytes], None], token: str, gpu: int, visitor: Sequence[str] = VISITOR
) -> None:
    """Runs before any block is used; `write` sets the arena's first bytes. Raises OSError and ValueError."""
    neighbours.trust((token,))
    mark = os.urandom(MARK)
    write(mark)
    try:
        seen = _visit(neighbours, [*visitor, *neighbours.own_door, str(gpu)], token)
    finally:
        write(bytes(MARK))
    if seen != mark.hex():
        raise ValueError("a visitor does not see the arena's bytes")


def _visit(neighbours: DoorNeighbours, command: Sequence[str], token: str) -> str:
    """Serves the door until the visitor has ended. Returns its output."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as child:
        assert child.stdin is not None
        child.stdin.write(token)
        child.stdin.close()
        child.stdin = None
        give_up = time.monotonic() + LIMIT
        while child.poll() is None:
            if time.monotonic() > give_up:
                child.kill()
                raise ValueError(f"a visitor did not end within {LIMIT:g} s")
            select.select([neighbours.fileno()], [], [], _PAUSE)
            neighbours.poll()
        output, complaints = child.communicate()
    if child.returncode:
        raise ValueError((complaints.strip().splitlines() or [f"a visitor ended with {child.returncode}"])[-1])
    return output.strip()
