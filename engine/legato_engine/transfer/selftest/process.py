"""Runs a self-test in its own process with a time limit, since UCX may crash or hang because of a device or driver."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

from legato_engine.transfer.link import LinkError

LIMIT = 60.0  # seconds; a self-test over TCP takes two, one of GPU memory loads torch first
PASSED = "self-test passed"
FAILED = 2
_FAREWELL = 5.0  # seconds for the end of a killed process, which a driver may delay


def check(transport: str, host: str, ports: tuple[int, int] | None = None) -> None:
    """Tests `transport` between two links at `host`, an address of this machine.

    Raises LinkError with the reason if it does not transfer blocks, lets a late write through, or does not end.
    """
    judge([*_COMMAND, str(os.getpid()), transport, host, *map(str, ports or ())])


_COMMAND = (sys.executable, "-m", "legato_engine.transfer.selftest.child")


def judge(command: Sequence[str], limit: float = LIMIT) -> None:
    """Runs a self-test's process. It has passed only if it prints so. Raises LinkError."""
    code, output, complaints = _run(command, limit)
    if code == 0 and _last(output) == PASSED:
        return
    reason = f"the self-test crashed with {signal.Signals(-code).name}" if code < 0 else "the self-test failed"
    if code >= 0:
        reason += f": {_last(complaints) or f'it ended with {code} and no result'}"
    ucx = _last(b"\n".join(line for line in complaints.splitlines() if b"ERROR" in line and b"UCX" in line))
    raise LinkError(f"{reason} ({ucx})" if ucx and ucx not in reason else reason)


def _run(command: Sequence[str], limit: float) -> tuple[int, bytes, bytes]:
    """Exit code, stdout and stderr. Raises LinkError after `limit` seconds."""
    pipe = subprocess.PIPE
    # UCX's own messages are the most informative, for example about memory that cannot be locked.
    environment = {**os.environ, "UCX_LOG_FILE": "stderr"}
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=environment)
    except OSError as error:
        raise LinkError(f"the self-test could not be started: {error.strerror}") from None
    try:
        output, complaints = child.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        child.kill()
        with suppress(subprocess.TimeoutExpired):
            child.communicate(timeout=_FAREWELL)
        raise LinkError(f"the self-test did not end within {limit:g} s") from None
    return child.returncode, output, complaints


def _last(output: bytes) -> str:
    """The last line that is not empty."""
    lines = [line.strip() for line in output.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else ""
