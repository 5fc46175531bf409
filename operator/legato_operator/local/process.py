"""One process of a pod, in its own process group so that a terminal's Ctrl-C does not reach it."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence

from legato_operator.local.logs import Logs
from legato_protocol import names


class Process:
    """A started process. Its output is followed until the whole group has ended."""

    def __init__(self, process: asyncio.subprocess.Process, output: "asyncio.Task[str]") -> None:
        self._process = process
        self._output = output
        self._gone = False  # its pid may belong to another process by now

    @classmethod
    async def start(
        cls, pod: str, command: Sequence[str], environment: Mapping[str, str], inherited: Sequence[int], logs: Logs
    ) -> "Process":
        """Starts a process that inherits these file descriptors. Raises OSError if the program cannot be started."""
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**environment, names.ENV_PARENT: str(os.getpid())},
            process_group=0,
            pass_fds=inherited,
        )
        assert process.stdout is not None
        return cls(process, asyncio.create_task(logs.follow(pod, process.stdout)))

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> tuple[int, str]:
        """Returns the exit code (negative: the signal) and the last line of output, once the group has ended."""
        code = await self._process.wait()
        self.kill()  # its children
        self._gone = True
        return code, await self._output

    def terminate(self) -> None:
        """Sends SIGTERM. A process that has ended is not an error."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kills the process group."""
        if self._gone:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
