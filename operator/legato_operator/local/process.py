"""One process of a pod, in a process group of its own so that a terminal's Ctrl-C does not reach it."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence

from legato_operator.local.logs import Logs
from legato_protocol import names


class Process:
    """A started process. Its output is followed until the whole group is gone."""

    def __init__(self, process: asyncio.subprocess.Process, output: "asyncio.Task[str]") -> None:
        self._process = process
        self._output = output
        self._gone = False  # its number may be another process's by now

    @classmethod
    async def start(
        cls, pod: str, command: Sequence[str], environment: Mapping[str, str], inherited: Sequence[int], logs: Logs
    ) -> "Process":
        """`inherited` are file descriptors that it gets. Raises OSError when the program cannot be started."""
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
        """Exit code (negative: the signal) and last line of output, once the group is gone."""
        code = await self._process.wait()
        self.kill()  # what it started itself
        self._gone = True
        return code, await self._output

    def terminate(self) -> None:
        """Ask it to end. One that has ended is no error."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it and all of its group."""
        if self._gone:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
